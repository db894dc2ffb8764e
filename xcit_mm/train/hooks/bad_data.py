"""Bad samples and annotations: named in the log and counted; too many stop the run."""

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ...base.errors import UserError
from ...base.processes import cpu_group
from ...data.audit.annotations import HINT, LOST_SHARE
from ...data.audit.examples import (
    examples_of,
    is_measured,
    missing_classes,
    refusal,
)
from ...data.audit.sample_check import SampleCheck
from ...data.datasets.samples import BadSample, kept_random_state
from ..checkpoints.training_state import BAD_DATA
from . import order

INTERVAL = 50  # iterations after which the processes exchange and log their bad samples


@HOOKS.register_module()
class BadDataHook(Hook):
    """Name, once, every bad sample that was replaced in training.

    Stops the run if more of the training data is bad than the config's ``max_bad_share``, and
    before the run if so many annotations are lost that the file probably has another format, if
    there is nothing to learn or to measure, or if an evaluation would fail at its first image.
    Before the run, it also names the classes that have no example.
    """

    priority = order.BAD_DATA

    def before_run(self, runner: Runner) -> None:
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if isinstance(loop, BaseLoop):
                _check_annotations(loop.dataloader.dataset, runner.cfg.max_bad_share)
        with kept_random_state():  # the initial weights are drawn from it
            sentences = _examine(runner)
        for sentence in sentences:
            runner.logger.warning(sentence)

    def before_train(self, runner: Runner) -> None:
        self._max_share = runner.cfg.max_bad_share
        self._bad = dict(runner.message_hub.runtime_info.get(BAD_DATA, {}))
        runner.message_hub.update_info(BAD_DATA, self._bad)
        self._num_logged = len(self._bad)
        self._size = len(runner.train_dataloader.dataset)
        self._group = cpu_group()

    def on_bad_samples(self, runner: Runner, samples: list[BadSample]) -> None:
        self._bad |= dict(samples)
        self._stop_at_too_many()

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        if not (self.every_n_train_iters(runner, INTERVAL) or self.is_last_train_iter(runner)):
            return
        for bad in all_gather_object(self._bad, self._group):
            self._bad |= bad
        for file, reason in list(self._bad.items())[self._num_logged :]:
            runner.logger.warning(f'{file} cannot be read, another is used: {reason}')
        if len(self._bad) > self._num_logged:
            runner.logger.warning(f'{self._summary()} so far; {HINT}')
        self._num_logged = len(self._bad)
        self._stop_at_too_many()

    def _stop_at_too_many(self) -> None:
        if len(self._bad) > self._max_share * self._size:
            listed = '\n'.join(f'    {file}: {reason}' for file, reason in self._bad.items())
            is_same = len(self._bad) > 1 and len(set(self._bad.values())) == 1
            hint = ', or fix the transform, which fails in the same way for all' * is_same
            raise UserError(
                f'{self._summary()}, more than the share of {self._max_share:g} that '
                f'max_bad_share allows: repair them or raise it{hint}; {HINT}:\n{listed}'
            )

    def _summary(self) -> str:
        return f'{len(self._bad)} of the {self._size} training samples cannot be read'


def _examine(runner: Runner) -> list[str]:
    """Require examples and a valid first image of each evaluation; return warnings for the log."""
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    counted, classes = {}, ()
    for split, loop in loops.items():
        if not isinstance(loop, BaseLoop):
            continue
        dataset = loop.dataloader.dataset
        if split != 'train' and len(dataset):
            problem = SampleCheck(runner.cfg, split, dataset.dataset)(0)
            if problem is not None:
                raise UserError(f'{split} data: {problem.file}: {problem.kind}: {problem.detail}')
        if not is_measured(runner.cfg, split):
            continue
        examples, is_complete = examples_of(dataset, split, runner.cfg.max_bad_share)
        if examples is None or not is_complete:
            continue
        counted[split], classes = examples, dataset.metainfo['classes']
        if why := refusal(split, examples, classes):
            raise UserError(why)
    return missing_classes(counted, classes)


def _check_annotations(dataset: Any, max_bad_share: float) -> None:
    """Check a dataset of annotations, or those inside one that wraps or joins others."""
    if hasattr(dataset, 'misplaced'):
        why = dataset.misplaced(max(LOST_SHARE, max_bad_share))
        if why is not None:
            raise UserError(
                f'{dataset.ann_file}: {why}; repair them, or allow this share with '
                f'max_bad_share; {HINT}'
            )
        return
    for inner in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if inner is not None:
            _check_annotations(inner, max_bad_share)
