"""Write the checkpoints of a run, and keep the last ones."""

import inspect
import re
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...errors import UserError, did_you_mean
from ...files import remove_unfinished, write_whole
from ..resume import POINTER

BETWEEN = 'iter_{}.pth'  # the name of a checkpoint that the config does not ask for
BEST = 'best_'  # the start of the names that mmengine gives to those of the best metric
# Keys of the message hub, which is part of the checkpoints:
KEPT = 'kept_checkpoints'  # names
BEST_PATH = 'best_ckpt'  # mmengine's: a path, or one for each metric
OF_MMENGINE = 'keep_ckpt_ids'  # what mmengine's hook removes checkpoints by
MAX_NAME = 255  # characters, the longest name of a file on most disks


@HOOKS.register_module()
class WholeCheckpointHook(CheckpointHook):
    """mmengine's hook, which removes an old checkpoint only when the new one is on the disk.

    The runner makes sure that the new one is whole (``CheckedRunner.save_checkpoint``). A resumed
    run learns from its checkpoint which files to remove later. The work dir may have been moved
    since, and the checkpoint may come from somebody else: only files directly in the hook's folder
    are removed, with names that it would give.

    The arguments are those of mmengine's hook, which would pass an unknown one to the first
    checkpoint, hours later; here it is an error at once.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        known = inspect.signature(CheckpointHook).parameters
        for name in self.args.keys() - inspect.signature(Runner.save_checkpoint).parameters:
            hint = did_you_mean(name, known)
            raise UserError(f'default_hooks.checkpoint has no argument {name}{hint}')

    def before_train(self, runner: Runner) -> None:
        hub = runner.message_hub
        hub.pop_info(OF_MMENGINE)
        super().before_train(runner)
        self.written: int | None = None  # the iteration of the newest checkpoint
        noted = hub.get_info(KEPT)
        kept = filter(self._is_own, noted if isinstance(noted, list) else [])
        hub.update_info(KEPT, list(dict.fromkeys(kept)))
        if self.save_best is not None:
            self._find_best(runner)
        if is_main_process():
            for folder in {runner.work_dir, self.out_dir}:
                remove_unfinished(Path(folder))  # of a run that was killed

    def save_between(self, runner: Runner, done: int) -> None:
        """Write a checkpoint after ``done`` iterations, where the config does not ask for it."""
        if self.written != done:
            self._write(runner, BETWEEN.format(done), dict(epoch=runner.epoch, iter=done))

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        self._write(runner, self.filename_tmpl.format(step), meta)

    def _write(self, runner: Runner, name: str, meta: dict[str, int]) -> None:
        self.written = meta['iter']
        hub = runner.message_hub
        names = [*(earlier for earlier in hub.get_info(KEPT) if earlier != name), name]
        num_kept = self.max_keep_ckpts if self.max_keep_ckpts > 0 else len(names)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        # Including those removed below: a run that is killed before that removes them later.
        hub.update_info(KEPT, names)
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
            for old in names[:-num_kept]:
                if self._has(old):
                    self.file_backend.remove(self.file_backend.join_path(self.out_dir, old))
        hub.update_info(KEPT, names[-num_kept:])

    def _find_best(self, runner: Runner) -> None:
        """Look for the checkpoints of the best metrics in the folder that this run writes to."""
        hub = runner.message_hub
        for indicator in self.key_indicators:
            is_single = len(self.key_indicators) == 1
            key = BEST_PATH if is_single else f'{BEST_PATH}_{indicator}'
            if key not in hub.runtime_info:
                continue
            name = Path(str(hub.get_info(key))).name
            is_there = name.startswith(BEST) and self._is_own(name, '_') and self._has(name)
            path = self.file_backend.join_path(self.out_dir, name) if is_there else None
            hub.update_info(key, path)
            if is_single:
                self.best_ckpt_path = path
            else:
                self.best_ckpt_path_dict[indicator] = path

    def _is_own(self, name: Any, before: str | None = None) -> bool:
        """Return whether this hook gives a file such a name, or one that ends with such a name."""
        if not isinstance(name, str) or len(name) > MAX_NAME:
            return False
        numbers = [int(number) for number in re.findall(r'\d+', name)]
        own = {form.format(number) for form in (self.filename_tmpl, BETWEEN) for number in numbers}
        return name in own if before is None else name.endswith(tuple(before + end for end in own))

    def _has(self, name: str) -> bool:
        """Return whether the folder has a file of this name that is not a link."""
        path = self.file_backend.join_path(self.out_dir, name)
        return self.file_backend.isfile(path) and not Path(path).is_symlink()
