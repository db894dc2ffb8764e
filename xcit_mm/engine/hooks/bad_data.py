"""Bad samples and annotations: named in the log, counted, and too many of them the end of a run."""

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ...datasets.annotations import LOST_SHARE
from ...errors import UserError
from ..data.loader import BadSample
from ..distributed import Consensus

INTERVAL = 50  # iterations after which the processes tell each other, and the log
BAD = 'bad_data'  # in the message hub, and so in the checkpoints: file to reason
REMEDY = 'tools/check_dataset.py CONFIG names them all'


@HOOKS.register_module()
class BadDataHook(Hook):
    """Name every bad sample once, where a training took another one in its place.

    Raises:
        UserError: If more of the training data is bad than the config's ``max_bad_share``, with
            the list; before the run, if so many annotations of any split are lost that the file
            is rather of another format.
    """

    priority = 'BELOW_NORMAL'  # before a checkpoint

    def before_run(self, runner: Runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if isinstance(loop, BaseLoop):
                _check_annotations(loop.dataloader.dataset, runner.cfg.max_bad_share)

    def before_train(self, runner: Runner) -> None:
        self._max_share = runner.cfg.max_bad_share
        self._bad = dict(runner.message_hub.runtime_info.get(BAD, {}))
        runner.message_hub.update_info(BAD, self._bad)
        self._named = len(self._bad)
        self._size = len(runner.train_dataloader.dataset)
        self._consensus = Consensus.of(runner)
        runner.train_dataloader.report = self._note

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        if self.every_n_train_iters(runner, INTERVAL) or self.is_last_train_iter(runner):
            self._exchange(runner)

    def _note(self, samples: list[BadSample]) -> None:
        self._bad |= dict(samples)
        self._check()

    def _exchange(self, runner: Runner) -> None:
        for bad in self._consensus.gather(self._bad):
            self._bad |= bad
        for file, reason in list(self._bad.items())[self._named :]:
            # mmengine's logger passes a warning once, and compares those that are unformatted.
            runner.logger.warning(f'{file} cannot be read, another one was taken: {reason}')
        if len(self._bad) > self._named:
            runner.logger.warning(
                f'{len(self._bad)} of the {self._size} training samples cannot be read so far; '
                f'{REMEDY}'
            )
        self._named = len(self._bad)
        self._check()

    def _check(self) -> None:
        if len(self._bad) > self._max_share * self._size:
            listed = '\n'.join(f'    {file}: {reason}' for file, reason in self._bad.items())
            raise UserError(
                f'{len(self._bad)} of the {self._size} training samples cannot be read, more than '
                f'the share of {self._max_share:g} that max_bad_share allows: mend them or raise '
                f'it; {REMEDY}:\n{listed}'
            )


def _check_annotations(dataset: Any, max_bad_share: float) -> None:
    for leaf in _datasets(dataset):
        why = leaf.misplaced(max(LOST_SHARE, max_bad_share))
        if why is not None:
            raise UserError(
                f'{leaf.ann_file}: {why}. Mend them, or allow such a share with max_bad_share; '
                f'{REMEDY}'
            )


def _datasets(dataset: Any) -> Iterator[Any]:
    """Those of annotations, inside of those that wrap or join others."""
    if hasattr(dataset, 'misplaced'):
        yield dataset
        return
    inner = [dataset.dataset] if hasattr(dataset, 'dataset') else getattr(dataset, 'datasets', [])
    for wrapped in inner:
        yield from _datasets(wrapped)
