"""mmengine's runner with whole checkpoints, and evaluations that name a bad sample."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, is_main_process, master_only
from mmengine.hooks import EMAHook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..config.rules import SPLITS
from ..console import keep_readable
from ..errors import UserError, reason
from ..files import require_writable, write_whole
from ..processes import cpu_group, digest_of_file, lost_processes_named, require_same
from ..run_files import has_checkpoints
from ..weights.names import HEAD, modules_of, require_same_tensors
from ..weights.read import read_checkpoint
from .build_model import weights_for
from .data.loader import evaluation_loader
from .distributed import connect_run, unwrapped
from .resume import newest_checkpoint
from .same_run import described
from .training_state import require_same_run, require_training_state

AVERAGED = 'module.'  # the prefix of the averaged weights of mmengine's EMAHook
# What mmengine and PyTorch raise for the state of another run.
MISMATCH_ERRORS = (AssertionError, AttributeError, KeyError, TypeError, ValueError)


@lost_processes_named()
def build_runner(cfg: Config, notes: list[str], task: str) -> 'CheckedRunner':
    """Build the runner of a config that is checked for a ``task``, and log how it was adapted.

    The processes of a launcher are connected, and compare what they are about to do.
    """
    for folder in (cfg.work_dir, cfg.default_hooks.get('pictures', {}).get('test_dir')):
        if folder is not None:
            require_writable(folder)
    if cfg.launcher != 'none':
        connect_run(cfg)
        require_same(described(cfg, SPLITS[task]), cpu_group(), str(cfg.filename))
    runner = CheckedRunner.from_cfg(cfg)
    for note in notes:
        runner.logger.warning(note)
    return runner


@RUNNERS.register_module()
class CheckedRunner(Runner):
    """mmengine's runner, which loads and writes a checkpoint as a whole or stops.

    mmengine itself loads the tensors whose names fit and logs the others. In an evaluation a sample
    that cannot be read is an error that names it. The arguments are those of mmengine's runner.
    """

    _is_resumed = False

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

    @master_only
    def dump_config(self) -> None:
        """Write the config to the work dir, whole, also where a link has its name.

        A run that resumes writes it when its checkpoint is accepted: it may have another config.
        """
        if self._resume and not self._is_resumed:
            return
        name = Path(self.cfg.filename or f'{self.timestamp}.py').name
        with write_whole(Path(self.work_dir, name), 'w') as file:
            file.write(self.cfg.dump())

    @staticmethod
    def build_dataloader(*args, **kwargs) -> DataLoader:
        """Build the loader of an evaluation; the loops of a training build their own."""
        return evaluation_loader(Runner.build_dataloader(*args, **kwargs))

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """Scale the learning rate with the images of an update, in all its iterations.

        mmengine counts the images of one iteration.
        """
        counts = self.cfg.optim_wrapper.get('accumulative_counts', 1)
        if counts > 1 and (auto_scale_lr or {}).get('enable'):
            base = auto_scale_lr['base_batch_size'] / counts
            auto_scale_lr = {**auto_scale_lr, 'base_batch_size': base}
            self.logger.info(
                'An update adds up %d iterations; the next line has the batch sizes of one', counts
            )
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def load_or_resume(self) -> None:
        """Load weights, or resume from the newest checkpoint that the first process can read."""
        self._content: dict[str, dict] = {}  # by path, so that no file is read twice
        is_here = has_checkpoints(self.work_dir)  # none for mmdet's --resume in a new folder
        if self._resume and self._load_from is None and not self._has_loaded and is_here:
            path = None
            if is_main_process():
                trusted = self.cfg.get('trust_checkpoint', False)
                path, content, warnings = newest_checkpoint(self.work_dir, trusted)
                self._content[str(path)] = content
                for warning in warnings:
                    self.logger.warning(warning)
            self._load_from = str(all_gather_object(path, cpu_group())[0])
            if self.distributed:
                path = Path(self._load_from)  # which may be missing on another machine
                digest = digest_of_file(path) if path.is_file() else 'missing'
                require_same({self._load_from: digest}, cpu_group())
        super().load_or_resume()
        if self._resume:
            self._is_resumed = True
            self.dump_config()

    def resume(self, filename: str, **kwargs) -> None:
        """Resume from a checkpoint of this run (see mmengine's ``Runner.resume``)."""
        seed = self.seed
        try:
            # mmengine's default would put all of the file beside the model on the GPU.
            super().resume(filename, **{**kwargs, 'map_location': 'cpu'})
        except MISMATCH_ERRORS as error:
            raise UserError(
                f'{filename} is not of a run like this one ({reason(error)}); resume with the '
                'config that it was started with, or start from its weights: load_from'
            ) from error
        if self.seed != seed:  # the order of the data follows from the seed of the checkpoint
            epoch, iteration = self._train_loop._epoch, self._train_loop._iter
            self._train_loop = self.build_train_loop(self.cfg.train_cfg)
            self._train_loop._epoch, self._train_loop._iter = epoch, iteration

    @master_only
    def save_checkpoint(self, out_dir: str, filename: str, *args, **kwargs) -> None:
        """Write a checkpoint, whole or not at all (see mmengine's ``Runner.save_checkpoint``)."""
        if '://' in out_dir:  # an object store, where a file is always whole
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        try:
            Path(out_dir).mkdir(parents=True, exist_ok=True)
            with write_whole(Path(out_dir, filename)) as file:
                super().save_checkpoint(out_dir, Path(file.name).name, *args, **kwargs)
        except OSError as error:
            raise UserError(
                f'the checkpoint {Path(out_dir, filename)} cannot be written ({reason(error)}); '
                'the earlier ones are good: make room, and resume the run with --resume'
            ) from None

    def load_checkpoint(
        self,
        filename: str,
        map_location: str | torch.device | Callable = 'cpu',
        strict: bool = False,
        revise_keys: list | None = None,
    ) -> dict[str, Any]:
        """Load the weights of a detector or segmentor, in any layout of :mod:`xcit_mm.weights`.

        A test and a resumed run require every tensor, as ``strict`` does. Otherwise the heads may
        differ, as when a model is fine-tuned for other classes: their tensors that do not fit keep
        their initial values, and a warning names them.
        """
        del revise_keys  # an argument of mmengine's method: the names need no revision here
        checkpoint = getattr(self, '_content', {}).pop(filename, None)
        if checkpoint is None:
            trusted = self.cfg.get('trust_checkpoint', False)
            checkpoint = read_checkpoint(filename, map_location, trusted)
        model = unwrapped(self.model)
        state = weights_for(model, checkpoint, filename)
        if self._resume:
            require_training_state(checkpoint, filename)
            checkpoint['meta'].pop('config', None)  # mmengine would run it as Python
            if isinstance(self.optim_wrapper, OptimWrapper):
                require_same_run(checkpoint, self)
        wanted = model.state_dict()
        initial: set[str] = set()
        is_training = not isinstance(self._train_loop, (dict, type(None)))
        if is_training and not strict and not self._resume:
            state, initial = without_other_heads(state, wanted)
        require_same_tensors(state, wanted, filename, may_be_missing=initial)
        if self._resume and 'ema_state_dict' in checkpoint:
            if not any(isinstance(hook, EMAHook) for hook in self.hooks):
                raise UserError(
                    f'{filename} is of a run that averages its weights: resume it with its '
                    'default_hooks.ema options'
                )
            average = checkpoint['ema_state_dict'].items()
            average = {k.removeprefix(AVERAGED): v for k, v in average if k.startswith(AVERAGED)}
            require_same_tensors(average, wanted, f'{filename} (ema_state_dict)')
        checkpoint = {**checkpoint, 'state_dict': state}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)  # may replace tensors
        model.load_state_dict(checkpoint['state_dict'], strict=False)
        self._has_loaded = True
        self.logger.info('Loaded %d of the %d tensors from %s', len(state), len(wanted), filename)
        if initial:
            self.logger.warning(
                'These keep their initial values, as they are missing from %s or have another '
                'size: %s',
                filename,
                ', '.join(modules_of(initial)),
            )
        return checkpoint


def without_other_heads(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """Drop the tensors of the heads that do not fit, and return the names that are missing then."""

    def is_of_head(name: str) -> bool:
        return name.split('.')[0].endswith(HEAD)

    sizes = {name: value.shape for name, value in wanted.items()}
    kept = {k: v for k, v in state.items() if not is_of_head(k) or sizes.get(k) == v.shape}
    return kept, {name for name in wanted if is_of_head(name) and name not in kept}
