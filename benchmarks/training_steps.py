"""The steps of a training run, one at a time, and where the host spends their time."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from xcit_mm.base.environment import quiet
from xcit_mm.train.distributed import unwrapped

# What the host does in a step, in this order.
PARTS = ('loader', 'forward', 'backward', 'rest')


class _BegunError(Exception):
    """The run is about to take its first step."""


class _Begin(Hook):
    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        raise _BegunError


class TrainingSteps:
    """The steps that the loop of a runner takes, with its loader, its model and its hooks."""

    def __init__(self, runner: Runner) -> None:
        runner.register_hook(_Begin())
        try:
            with quiet():  # datasets print
                runner.train()  # builds the loop and the optimizer, and initializes the weights
        except _BegunError:
            runner.call_hook('before_train_epoch')
        runner.model.train()
        self._loop, self._spent = runner.train_loop, Counter()
        has_own = hasattr(self._loop, '_batches')  # our loop
        self._batches = self._loop._batches() if has_own else self._loop.dataloader_iterator
        loader = self._loop.dataloader
        self.images = loader.batch_sampler.batch_size  # in a step
        self._prefetched = loader.num_workers * (loader.prefetch_factor or 0)
        self._time(unwrapped(runner.model), 'train_step')
        self._time(runner.optim_wrapper, 'update_params')
        self._time(runner.optim_wrapper, 'backward')

    def step(self) -> Counter[str]:
        """Take a step, and return the seconds that the host spends on each of its ``PARTS``."""
        self._spent.clear()
        start = time.perf_counter()
        batch = next(self._batches)
        loaded = time.perf_counter()
        self._loop.run_iter(batch)
        whole, spent = time.perf_counter() - loaded, self._spent
        forward = spent['train_step'] - spent['update_params']
        rest = whole - forward - spent['backward']  # of update_params, and the hooks
        seconds = (loaded - start, forward, spent['backward'], rest)
        return Counter(dict(zip(PARTS, seconds, strict=True)))

    def drop_prefetched(self) -> None:
        """Drop the batches that the workers have loaded while no step was taken."""
        for _ in range(self._prefetched):
            next(self._batches)

    def close(self) -> None:
        """End the workers; those of mmengine's loader would hold up the end of this process."""
        if self._loop.dataloader.num_workers > 0:
            self._loop.dataloader._iterator._shutdown_workers()

    def _time(self, owner: Any, name: str) -> None:
        """Add up the time that a method takes."""
        method: Callable = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._spent[name] += time.perf_counter() - start

        setattr(owner, name, timed)
