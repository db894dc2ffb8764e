"""mmengine's loops: training resumes with the same steps, evaluation does not mix sizes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from mmengine.dist import broadcast, get_rank, is_main_process
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, TestLoop, ValLoop
from mmengine.runner.amp import autocast
from torch import nn

from ..base.device import DTYPES
from ..base.run_files import set_run_aside
from ..data.datasets.samples import BadSample, seed_all
from ..predict.same_sizes import predict_by_size
from .checkpoints.recipe import compare_recipes, recipe_of
from .checkpoints.training_state import RECIPE, STEP_LAYOUT
from .data.loader import training_loader
from .distributed import unwrapped


def _report_bad(runner: Runner, samples: list[BadSample]) -> None:
    """Call the hooks for samples that others replace, or log the samples if no hook does."""
    if any(hasattr(hook, 'on_bad_samples') for hook in runner.hooks):
        runner.call_hook('on_bad_samples', samples=samples)
    else:
        for sample in samples:
            runner.logger.warning('Replaced: %s', sample)


class _Resumable:
    """What both loops do at the start, before a step, and for a validation."""

    endless: bool
    stop_reason: str | None = None  # why a hook has set mmengine's stop_training

    def __init__(self, runner: Runner, dataloader: dict, **kwargs) -> None:
        seed = runner.seed
        if runner._randomness_cfg.get('diff_rank_seed', False):
            seed -= get_rank()  # the processes share the data in one order
        loader = training_loader(
            Runner.build_dataloader(dataloader, seed=seed),
            seed,
            self.endless,
            on_bad=partial(_report_bad, runner),
            on_wait=partial(runner.call_hook, 'while_training_waits'),
        )
        super().__init__(runner, loader, **kwargs)

    def _begin(self) -> None:
        """Compare a resumed run with the run before the interruption."""
        hub = self.runner.message_hub
        images = self.dataloader.batch_sampler.images
        now = {'images a step': images, 'steps an epoch': len(self.dataloader)}
        before = hub.runtime_info.get(STEP_LAYOUT, now)
        if before != now:
            if not self.endless:
                self._iter = self._epoch * len(self.dataloader)
            self.runner.logger.warning(
                f'There are {now}, before the interruption {before}: the steps will differ from '
                'an uninterrupted run, and an epoch that was interrupted starts again'
            )
        hub.update_info(STEP_LAYOUT, now)
        recipe = recipe_of(self.runner.cfg)
        changes, recipe = compare_recipes(hub.runtime_info.get(RECIPE, recipe), recipe)
        for change in changes:
            self.runner.logger.warning(change)
        hub.update_info(RECIPE, recipe)
        if not self.runner._resume and is_main_process():
            folder = set_run_aside(self.runner.work_dir)  # now that nothing can fail any more
            if folder is not None:
                self.runner.logger.warning(f'The files of an earlier run are now in {folder}.')
        if self._iter >= self._max_iters:
            self.runner.logger.info('This run is already complete; it is only evaluated.')
        self.runner.call_hook('before_train')
        self._decide_current_val_interval()

    def run_iter(self, *args) -> None:
        seed_all(self.runner.seed, self.dataloader.batch_sampler.rank, self._iter)
        super().run_iter(*args)

    def _batches(self) -> Iterator[Any]:
        self.dataloader.batch_sampler.start = self._iter
        return iter(self.dataloader)

    def _accumulate(self, steps: int) -> None:
        """Apply gradients that ``accumulative_counts`` adds up within the next steps.

        A resumed run has lost none, because no checkpoint is written while gradients are held.
        """
        # A model without BatchNorm, about which mmengine has warned at the start.
        self.runner.optim_wrapper.initialize_count_status(nn.Identity(), 0, steps)

    def _validate(self, step: int, last: int) -> None:
        """Validate if ``step`` is due for it.

        A resumed run starts with this, because a checkpoint is written before its validation, and
        the validation may be what was interrupted.
        """
        is_due = step % self.val_interval == 0 or step >= last
        if self.runner.val_loop is not None and step >= max(self.val_begin, 1) and is_due:
            # Without synchronized BatchNorm each process has running statistics of its own. The
            # first process writes the checkpoint, so its statistics are the ones to evaluate.
            for buffer in self.runner.model.buffers():
                broadcast(buffer)
            self.runner.val_loop.run()


@LOOPS.register_module()
class ResumableEpochLoop(_Resumable, EpochBasedTrainLoop):
    """An ``EpochBasedTrainLoop`` that resumes in the middle of an epoch.

    Gradients are not accumulated across epochs. It has the arguments of mmengine's loop.
    """

    endless = False

    def run(self) -> nn.Module:
        self._begin()
        if self._iter == self._epoch * len(self.dataloader):
            self._validate(self._epoch, self._max_epochs)
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            self._validate(self._epoch, self._max_epochs)
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._iter - self._epoch * len(self.dataloader)
        if done < len(self.dataloader):
            self._accumulate(len(self.dataloader) - done)
            for number, batch in enumerate(self._batches(), done):
                self.run_iter(number, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


@LOOPS.register_module()
class ResumableIterLoop(_Resumable, IterBasedTrainLoop):
    """An ``IterBasedTrainLoop`` that resumes without reading the data before that point.

    It has the arguments of mmengine's loop.
    """

    endless = True

    def run(self) -> nn.Module:
        self._begin()
        self.runner.call_hook('before_train_epoch')
        self._validate(self._iter, self._max_iters)
        batches = self._batches()
        self._accumulate(self._max_iters - self._iter)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(batches))
            self._decide_current_val_interval()
            self._validate(self._iter, self._max_iters)
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model


@LOOPS.register_module()
class SameSizeValLoop(ValLoop):
    """A ``ValLoop`` whose results do not depend on the batch size; see :func:`predict_by_size`."""

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        self.runner.call_hook('before_val_iter', batch_idx=idx, data_batch=data_batch)
        with autocast(enabled=self.fp16):
            outputs = predict_by_size(self.runner.model.val_step, data_batch)
        self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        self.runner.call_hook(
            'after_val_iter', batch_idx=idx, data_batch=data_batch, outputs=outputs
        )


@LOOPS.register_module()
class FusedTestLoop(TestLoop):
    """A ``TestLoop`` that predicts in a dtype with the layers of :mod:`xcit_mm.predict.fusion`.

    Its results do not depend on the batch size either.

    Args:
        dtype: 'float32', 'bfloat16' or 'float16'.
        compiled: Whether to compile the backbone and the neck with ``torch.compile``.
        args, kwargs: Arguments of mmengine's loop.
    """

    def __init__(
        self, *args: Any, dtype: str = 'float32', compiled: bool = False, **kwargs: Any
    ) -> None:
        from ..predict.fusion.fused_copy import FusedCopy

        super().__init__(*args, **kwargs)
        self._fused = FusedCopy(DTYPES[dtype], compiled)

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        self.runner.call_hook('before_test_iter', batch_idx=idx, data_batch=data_batch)
        with self._fused.of(unwrapped(self.runner.model)) as model:
            outputs = predict_by_size(model.test_step, data_batch)
        self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        self.runner.call_hook(
            'after_test_iter', batch_idx=idx, data_batch=data_batch, outputs=outputs
        )
