"""mmengine's runner with whole checkpoints, and evaluations that name a bad sample."""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS, RUNNERS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from ..base.console import ADAPTED, keep_readable
from ..base.files import require_writable
from ..base.processes import cpu_group, lost_processes_named, require_same
from ..base.shipped import commands
from ..config.adapt import AUTO, fit_loaders, use_graphs
from ..config.rules import SPLITS
from ..config.streaming import WRAPPER
from ..config.tree import class_name
from .checkpoints.checkpointed import CheckpointedRunner
from .checkpoints.recipe import fingerprint
from .data.loader import evaluation_loader
from .data.pinned import copy_without_waiting
from .distributed import connect_run


@lost_processes_named()
def build_runner(
    cfg: Config, notes: list[str], task: str, changes: Sequence[str] = ()
) -> 'CheckedRunner':
    """Build the runner of a config that is checked for a ``task``, and log how it was adapted.

    The console has the ``notes``, but only the number of the ``changes``, which are the same in any
    run of the config.

    The processes of a launcher are connected, and compare what they are about to do.
    """
    folders = [cfg.default_hooks.get(name, {}).get('test_dir') for name in ('pictures', 'errors')]
    for folder in (cfg.work_dir, *folders):
        if folder is not None:
            require_writable(folder)
    if cfg.launcher != 'none':
        connect_run(cfg)
        require_same(fingerprint(cfg, SPLITS[task]), cpu_group(), str(cfg.filename))
    if task == 'train' and cfg.train_dataloader.get('batch_size') == AUTO:
        from .batch_size import choose_batch_size

        notes = notes + choose_batch_size(cfg)
    runner = CheckedRunner.from_cfg(cfg)
    changes = [change for change in changes if change not in notes]  # some are noted by each call
    if changes:
        where = commands('tools/config.py CONFIG')
        about = 'Changes that let the config run with xcit_mm: %d, which %s and the log file list'
        runner.logger.info(about, len(changes), where)
        runner.logger.info('\n    '.join([ADAPTED, *changes]))
    for note in notes:
        runner.logger.info(note)
    return runner


@RUNNERS.register_module()
class CheckedRunner(CheckpointedRunner):
    """mmengine's runner with whole checkpoints, and evaluations that name a bad sample.

    It has the arguments of mmengine's runner.
    """

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'CheckedRunner':
        """Build the runner of a config, and fit its loaders to this machine.

        The tools of mmdet and mmseg call this, too.
        """
        cfg = deepcopy(cfg)
        if _streams(cfg.get('model_wrapper_cfg')):
            from .hooks import room_check  # noqa: F401  registers StreamedModel and its hook
        notes = fit_loaders(cfg)
        use_graphs(cfg)
        runner = super().from_cfg(cfg)
        for note in notes:
            runner.logger.info(note)
        return runner

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        keep_readable(logger)
        return logger

    @lost_processes_named()
    def train(self) -> nn.Module:
        """Train; see mmengine's ``Runner.train``."""
        return super().train()

    @lost_processes_named()
    def test(self) -> dict[str, float]:
        """Evaluate; see mmengine's ``Runner.test``."""
        return super().test()

    def build_dataloader(self, *args, **kwargs) -> DataLoader:
        """Build the loader of an evaluation; the training loops build their own."""
        loader = Runner.build_dataloader(*args, **kwargs)
        return evaluation_loader(loader, partial(self.call_hook, 'while_evaluation_waits'))

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build the model, whose preprocessors copy pinned batches without waiting."""
        model = super().build_model(model)
        if torch.cuda.is_available():
            copy_without_waiting(model)
        return model

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Wrap the model for several processes, or to stream images in a single process."""
        model = super().wrap_model(model_wrapper_cfg, model)
        if _streams(model_wrapper_cfg) and not is_model_wrapper(model):
            return MODEL_WRAPPERS.build(model_wrapper_cfg, default_args=dict(module=model))
        return model

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """Scale the learning rate with the images of an update, in all its iterations.

        mmengine counts the images of one iteration, and counts an image once per process.
        """
        counts = self.cfg.optim_wrapper.get('accumulative_counts', 1)
        is_shared = getattr(self.model, 'shared', False) and self.model.trains
        sharing = self.world_size if is_shared else 1
        if (counts, sharing) != (1, 1) and (auto_scale_lr or {}).get('enable'):
            base = auto_scale_lr['base_batch_size'] / counts * sharing
            auto_scale_lr = {**auto_scale_lr, 'base_batch_size': base}
            if counts > 1:
                self.logger.info(
                    'An update adds up %d iterations; the next line has the batch sizes of one',
                    counts,
                )
            if sharing > 1:
                self.logger.info(
                    '%d processes share each image; the next line counts it once per process',
                    sharing,
                )
        super().scale_lr(optim_wrapper, auto_scale_lr)


def _streams(model_wrapper_cfg: dict | None) -> bool:
    return class_name((model_wrapper_cfg or {}).get('type')) == WRAPPER
