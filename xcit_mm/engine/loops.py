"""mmengine's two loops of a training, which go on after an interruption as if there was none."""

from collections.abc import Iterator
from typing import Any

from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn

from ..errors import UserError
from .data.loader import training_loader
from .data.seeding import seed_all
from .distributed import Consensus
from .hooks.checkpoint import set_run_aside

SHARE = 'share_of_the_data'  # in the message hub, and so in the checkpoints


class _Resumable:
    """What both loops do before a step, on a resume, and for a validation."""

    endless: bool

    def __init__(self, runner: Runner, dataloader: dict, **kwargs) -> None:
        seed = runner.seed
        if runner._randomness_cfg.get('diff_rank_seed', False):
            seed -= get_rank()  # the processes share the data in one order
        loader = runner.build_dataloader(dataloader, seed=seed)
        super().__init__(runner, training_loader(loader, seed, self.endless), **kwargs)

    def _begin(self) -> None:
        """Compare with the run that is gone on with, if one is.

        Raises:
            UserError: If the processes do not go on from the same iteration.
        """
        places = Consensus.of(self.runner).gather((self._epoch, self._iter))
        if len(set(places)) > 1:
            raise UserError(
                f'the processes go on from different epochs and iterations ({places}, by rank): '
                'they need one work dir, on a disk that all machines share'
            )
        hub = self.runner.message_hub
        images = get_world_size() * self.dataloader.batch_sampler.batch_size
        now = {'images a step': images, 'steps an epoch': len(self.dataloader)}
        before = hub.runtime_info.get(SHARE, now)
        if before != now:
            if not self.endless:
                self._iter = self._epoch * len(self.dataloader)
            self.runner.logger.warning(
                f'There are {now}, before the interruption {before}: this is not the run that it '
                'would have been, and an epoch that was begun is begun anew'
            )
        hub.update_info(SHARE, now)
        if not self.runner._resume and is_main_process():
            folder = set_run_aside(self.runner.work_dir)  # now that nothing is left that could fail
            if folder is not None:
                self.runner.logger.warning(f'What an earlier run left here is in {folder} now.')
        if self._iter >= self._max_iters:
            self.runner.logger.info('This run was at its end; it is evaluated once more.')
        self.runner.call_hook('before_train')
        self._decide_current_val_interval()

    def run_iter(self, *args) -> None:
        seed_all(self.runner.seed, get_rank(), self._iter)
        super().run_iter(*args)

    def _batches(self) -> Iterator[Any]:
        self.dataloader.batch_sampler.start = self._iter
        return iter(self.dataloader)

    def _validate(self, step: int, last: int) -> None:
        """Validate where ``step`` is one for it.

        Also where a run is resumed: the checkpoint is written before the validation, which may
        be what was interrupted.
        """
        is_due = step % self.val_interval == 0 or step >= last
        if self.runner.val_loop is not None and step >= max(self.val_begin, 1) and is_due:
            self.runner.val_loop.run()


@LOOPS.register_module()
class ResumableEpochLoop(_Resumable, EpochBasedTrainLoop):
    """An ``EpochBasedTrainLoop`` that goes on in the midst of an epoch.

    The arguments are those of mmengine's loop.
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
        end = (self._epoch + 1) * len(self.dataloader)
        done = self._iter + len(self.dataloader) - end
        if self._iter < end:
            for number, batch in enumerate(self._batches(), done):
                self.run_iter(number, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


@LOOPS.register_module()
class ResumableIterLoop(_Resumable, IterBasedTrainLoop):
    """An ``IterBasedTrainLoop`` that reads nothing to get to where it goes on.

    The arguments are those of mmengine's loop.
    """

    endless = True

    def run(self) -> nn.Module:
        self._begin()
        self.runner.call_hook('before_train_epoch')
        self._validate(self._iter, self._max_iters)
        batches = self._batches()
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(batches))
            self._decide_current_val_interval()
            self._validate(self._iter, self._max_iters)
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model
