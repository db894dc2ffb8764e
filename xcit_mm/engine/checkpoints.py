"""Checkpoints of a run: whole or not there, the last ones kept, the newest readable one found."""

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Optimizer

from ..checkpoint import (
    is_number,
    model_state,
    read_checkpoint,
    require_finite,
    require_training_state,
)
from ..errors import UserError
from ..files import EARLIER, remove_unfinished, set_aside, write_whole
from .config import near

POINTER = 'last_checkpoint'  # mmengine's file with the path of the newest
OF_A_RUN = ('epoch_*.pth', 'iter_*.pth')
# What a run adds to its folder, beside its log.
WRITTEN = (
    *OF_A_RUN,
    'best_*.pth',
    'not_finite_*.pth',
    POINTER,
    'losses.jsonl',
    'metrics.jsonl',
    'run.json',
    'report.html',
    'pictures',
    'tensorboard',
)
BETWEEN = 'iter_{}.pth'  # a checkpoint where none is due
BEST = 'best_'  # how mmengine calls those of the best metric
# In the message hub, and so in the checkpoints:
KEPT = 'kept_checkpoints'  # names
BEST_PATH = 'best_ckpt'  # paths, of mmengine: one, or one for each metric
OF_MMENGINE = 'keep_ckpt_ids'  # what its own hook removes by
# In the state of an optimizer: of the shape of the parameter, and without which Adam fails.
MOMENTS = ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer')
OF_ADAM = ('step', 'exp_avg', 'exp_avg_sq')
# Options of optimizers that change how fast they are, and not what they compute.
HOW_FAST = ('fused', 'foreach', 'capturable', 'differentiable')
MAX_NAME = 255  # characters, as of most disks
MAX_POINTER = 4096  # likewise, of a path


@HOOKS.register_module()
class WholeCheckpointHook(CheckpointHook):
    """mmengine's hook, which removes an old checkpoint only once the new one is on the disk.

    That the new one is whole is the runner's part (``CheckedRunner.save_checkpoint``).

    A resumed run takes from its checkpoint which files to remove later. The work dir may have been
    moved since, and the checkpoint may come from somebody else: only files directly in the hook's
    own folder are removed, with names as it writes them.

    The arguments are those of mmengine's hook, which keeps what it does not know for the first
    checkpoint, hours later; here that is an error at once.

    Raises:
        UserError: If an argument is neither of the hook nor of the runner's ``save_checkpoint``.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        known = inspect.signature(CheckpointHook).parameters
        for name in self.args.keys() - inspect.signature(Runner.save_checkpoint).parameters:
            raise UserError(f'default_hooks.checkpoint has no argument {name}{near(name, known)}')

    def before_train(self, runner: Runner) -> None:
        hub = runner.message_hub
        hub.pop_info(OF_MMENGINE)
        super().before_train(runner)
        self.written: int | None = None  # the iteration of the newest one
        noted = hub.get_info(KEPT)
        kept = filter(self._is_own, noted if isinstance(noted, list) else [])
        hub.update_info(KEPT, list(dict.fromkeys(kept)))
        if self.save_best is not None:
            self._find_best(runner)
        if is_main_process():
            for folder in {runner.work_dir, self.out_dir}:
                remove_unfinished(Path(folder))  # of a run that was killed

    def save_between(self, runner: Runner, done: int) -> None:
        """Write a checkpoint after ``done`` iterations, which are none for it in the config."""
        if self.written != done:
            self._write(runner, BETWEEN.format(done), dict(epoch=runner.epoch, iter=done))

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        self._write(runner, self.filename_tmpl.format(step), meta)

    def _write(self, runner: Runner, name: str, meta: dict[str, int]) -> None:
        self.written = meta['iter']
        hub = runner.message_hub
        kept = [*(other for other in hub.get_info(KEPT) if other != name), name]
        num_kept = self.max_keep_ckpts if self.max_keep_ckpts > 0 else len(kept)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        # With those that are removed below: a run that is killed before that removes them later.
        hub.update_info(KEPT, kept)
        hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            with write_whole(Path(runner.work_dir, POINTER), 'w') as file:
                file.write(self.last_ckpt)
            for other in kept[:-num_kept]:
                if self._has(other):
                    self.file_backend.remove(self.file_backend.join_path(self.out_dir, other))
        hub.update_info(KEPT, kept[-num_kept:])

    def _find_best(self, runner: Runner) -> None:
        """Look for the checkpoints of the best metrics in the folder that this run writes to."""
        hub = runner.message_hub
        for indicator in self.key_indicators:
            is_one = len(self.key_indicators) == 1
            key = BEST_PATH if is_one else f'{BEST_PATH}_{indicator}'
            if key not in hub.runtime_info:
                continue
            name = Path(str(hub.get_info(key))).name
            is_there = name.startswith(BEST) and self._is_own(name, '_') and self._has(name)
            path = self.file_backend.join_path(self.out_dir, name) if is_there else None
            hub.update_info(key, path)
            if is_one:
                self.best_ckpt_path = path
            else:
                self.best_ckpt_path_dict[indicator] = path

    def _is_own(self, name: Any, before: str | None = None) -> bool:
        """Whether this hook gives a file such a name, or one that ends so behind a text."""
        if not isinstance(name, str) or len(name) > MAX_NAME:
            return False
        numbers = [int(number) for number in re.findall(r'\d+', name)]
        own = {form.format(number) for form in (self.filename_tmpl, BETWEEN) for number in numbers}
        return name in own if before is None else name.endswith(tuple(before + end for end in own))

    def _has(self, name: str) -> bool:
        """Whether its folder has a file of a name, which is no link to another one."""
        path = self.file_backend.join_path(self.out_dir, name)
        return self.file_backend.isfile(path) and not Path(path).is_symlink()


def newest_checkpoint(work_dir: str, trusted: bool) -> tuple[Path, dict[str, Any], list[str]]:
    """Find the checkpoint of a run that is furthest on, of those that can be read.

    Args:
        work_dir: The folder of the run, which may have been moved: mmengine notes full paths.
        trusted: As of :func:`xcit_mm.checkpoint.read_checkpoint`.

    Returns:
        Its path, what it holds, and sentences on others that cannot be read.

    Raises:
        UserError: If there is none, or none that can be read.
    """
    newest, content, problems = None, {}, []
    for path in _candidates(Path(work_dir)):
        try:
            checkpoint = read_checkpoint(path, trusted=trusted)
            require_training_state(checkpoint, path)
            require_finite(model_state(checkpoint, path), path)
        except UserError as error:
            problems.append(str(error))
            continue
        if newest is None or checkpoint['meta']['iter'] >= content['meta']['iter']:
            newest, content = path, checkpoint
    if newest is not None:
        return newest, content, [f'{problem}; {newest.name} is taken' for problem in problems]
    if problems:
        raise UserError(
            f'--resume: no checkpoint in {work_dir} can be gone on with: {"; ".join(problems)}; '
            'without --resume the run is started anew, and these are kept'
        )
    earlier = sorted(map(str, Path(work_dir).glob(f'{EARLIER}*')))
    hint = f'; of earlier runs there are --work-dir {", ".join(earlier)}' if earlier else ''
    raise UserError(f'--resume: {work_dir} holds no checkpoint to go on from{hint}')


def require_same_run(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Compare the state of the optimizer and the schedules with that of a run that is resumed.

    PyTorch and mmengine take whatever is there, and fail in the first step, or do something else.

    Args:
        checkpoint: As of :func:`xcit_mm.checkpoint.require_training_state`.
        runner: With its optimizer and schedules, which are at their beginning.

    Raises:
        ValueError: If they differ in kind, with the place.
    """
    loaded = checkpoint['optimizer']
    begin = runner.optim_wrapper.state_dict()
    for name in ('base_param_settings', 'loss_scaler'):
        # A run may go on without a scale for the loss, which is then left out.
        if name in loaded and (name in begin or name != 'loss_scaler'):
            _require_alike(begin.get(name), loaded[name], f'optimizer.{name}')
    optimizer = runner.optim_wrapper.optimizer
    needed = [name for name, value in optimizer.defaults.items() if not _is_option(value)]
    groups = zip(begin['param_groups'], loaded['param_groups'], strict=True)
    for i, (group, other) in enumerate(groups):
        place = f'optimizer.param_groups.{i}'
        if any(name not in other for name in needed):
            raise ValueError(f'{place} has no {" or no ".join(needed)}')
        _require_alike(group, other, place)
        for name, value in group.items():
            changes_result = name not in HOW_FAST and isinstance(value, bool)
            if changes_result and other.get(name, value) is not value:
                raise ValueError(f'{place}.{name} is {other[name]}')
        if not all(0 <= beta < 1 for beta in other.get('betas', ())):
            raise ValueError(f'{place}.betas are not below 1')
    numbers = [number for group in loaded['param_groups'] for number in group['params']]
    tensors = [tensor for group in optimizer.param_groups for tensor in group['params']]
    for number, tensor in zip(numbers, tensors, strict=True):
        place = f'optimizer.state.{number}'
        _require_moments(loaded['state'].get(number, {}), tensor, optimizer, place)
    schedules = runner.param_schedulers if isinstance(runner.param_schedulers, list) else []
    for i, other in enumerate(checkpoint.get('param_schedulers', [])[: len(schedules)]):
        state = schedules[i].state_dict()
        for name in other.keys() - state.keys():
            if hasattr(schedules[i], str(name)):  # a method, which it would hide
                raise ValueError(f'param_schedulers.{i} holds {name}')
        _require_alike(state, other, f'param_schedulers.{i}')


def _require_moments(
    state: Mapping[str, Any], tensor: Tensor, optimizer: Optimizer, place: str
) -> None:
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and state:
        if any(name not in state for name in OF_ADAM):
            raise ValueError(f'{place} has no {" or no ".join(OF_ADAM)}')
        if not is_number(state['step']) or state['step'] <= 0:
            raise ValueError(f'{place}.step is not a number of steps')
    for name, value in state.items():
        if value is None:  # of SGD without momentum
            continue
        if isinstance(value, np.ndarray):
            raise ValueError(f'{place}.{name} is an array, not a tensor')
        if name in MOMENTS and getattr(value, 'shape', None) != tensor.shape:
            raise ValueError(f'{place}.{name} does not have the shape {tuple(tensor.shape)}')
        if name in MOMENTS and not torch.isfinite(value).all():
            raise ValueError(f'{place}.{name} holds numbers that are infinite or NaN')


def _require_alike(begin: Any, loaded: Any, place: str) -> None:
    """Raise ValueError if what is loaded is of another kind than what the run begins with."""
    if isinstance(begin, Mapping) and isinstance(loaded, Mapping):
        for name, value in loaded.items():
            if name in begin or isinstance(begin, Counter):
                _require_alike(begin[name], value, f'{place}.{name}')
        return
    if isinstance(begin, (list, tuple)) and isinstance(loaded, (list, tuple)):
        is_alike = len(begin) == len(loaded)
        for i, pair in enumerate(zip(begin, loaded, strict=False)):
            _require_alike(*pair, f'{place}.{i}')
    elif _is_option(begin):
        is_alike = _is_option(loaded) or (begin is None and is_number(loaded))
    elif isinstance(begin, str):
        is_alike = isinstance(loaded, str) and loaded == begin
    elif isinstance(begin, (Real, Tensor)):
        is_alike = is_number(loaded) and not _is_option(loaded)
    else:
        is_alike = type(loaded) is type(begin)
    if not is_alike:
        raise ValueError(f'{place} is a {type(loaded).__name__} that does not fit')


def _is_option(value: Any) -> bool:
    """What an optimizer may have or not, such as ``foreach``."""
    return value is None or isinstance(value, bool)


def has_checkpoints(work_dir: str) -> bool:
    """Whether a folder has a file that looks like a checkpoint of a run."""
    return bool(_candidates(Path(work_dir)))


def set_run_aside(work_dir: str) -> Path | None:
    """Move what an earlier run left in a folder that a new one starts in.

    The checkpoints of the new run would replace some of them, and a resume mix both up.

    Returns:
        As of :func:`xcit_mm.files.set_aside`.
    """
    earlier = sorted(path for pattern in WRITTEN for path in Path(work_dir).glob(pattern))
    return set_aside(Path(work_dir), earlier, 'name another --work-dir, or go on with it: --resume')


def _candidates(work_dir: Path) -> list[Path]:
    """In the work dir, or in the folder of its name where the config has them written."""
    found = _of_a_run(work_dir)
    if not found and (work_dir / POINTER).is_file():
        with (work_dir / POINTER).open(errors='replace') as file:
            noted = Path(file.read(MAX_POINTER).strip())
        if noted.parent.name == work_dir.absolute().name:  # not that of what this is a copy of
            with suppress(OSError, ValueError):  # no path at all
                found = _of_a_run(noted.parent)
    return found


def _of_a_run(folder: Path) -> list[Path]:
    return sorted(path for name in OF_A_RUN for path in folder.glob(name) if path.is_file())
