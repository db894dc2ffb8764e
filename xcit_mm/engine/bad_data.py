"""Bad samples of a training: named in the log, counted, and too many of them the end of it."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import UserError
from .consensus import Consensus
from .loader import BadSample

INTERVAL = 50  # iterations after which the processes tell each other, and the log
BAD = 'bad_data'  # in the message hub, and so in the checkpoints: file to reason
REMEDY = 'tools/check_dataset.py CONFIG names them all'


@HOOKS.register_module()
class BadDataHook(Hook):
    """Name every bad sample once, where a training took another one in its place.

    Raises:
        UserError: If more of the training data is bad than the config's ``max_bad_share``, with
            the list.
    """

    priority = 'BELOW_NORMAL'  # before a checkpoint

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
