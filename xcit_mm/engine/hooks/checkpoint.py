"""Checkpoints of a run: whole or not there, the last ones kept, the newest readable one found."""

import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...errors import UserError
from ...files import EARLIER, remove_unfinished, set_aside, write_whole
from ...weights.read import read_checkpoint
from ...weights.states import model_state, require_finite
from ..config.load import near
from ..training_state import require_training_state

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
        trusted: As of :func:`xcit_mm.weights.read.read_checkpoint`.

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
