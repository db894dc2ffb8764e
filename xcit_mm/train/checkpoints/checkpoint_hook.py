"""The hook that writes the checkpoints of a run and keeps the last ones."""

import re
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import reason
from ...base.files import remove_unfinished, write_whole
from ...base.run_files import BEST, LAST, POINTER
from ...network.weights.names import PATCH_SIZE
from ...network.xcit import XCiT
from ..distributed import unwrapped
from .links import is_of_user, point_to

UNSCHEDULED = 'iter_{}.pth'  # the name of a checkpoint that the config does not schedule


@HOOKS.register_module()
class WholeCheckpointHook(CheckpointHook):
    """mmengine's hook, but it removes an old checkpoint only when the new one is on the disk.

    The runner makes sure that the new one is whole (``CheckpointedRunner.save_checkpoint``). The
    work dir may have been moved since the last start, and the checkpoint that a run resumes from
    may come from somebody else. So the hook follows no path in a checkpoint: it removes only files
    directly in its folder, with names that it would choose. On an object store it removes none.

    The links ``last.pth`` and, with ``save_best``, ``best.pth`` in the work dir name the newest and
    the best checkpoint. With several metrics, the first one decides which is the best.
    """

    def before_train(self, runner: Runner) -> None:
        runner.message_hub.pop_info('keep_ckpt_ids')  # by which mmengine removes checkpoints
        super().before_train(runner)
        self._is_due = False
        # The iteration of the newest checkpoint.
        source = Path(str(runner._load_from)).resolve()
        is_here = source.parent == Path(runner.work_dir).resolve()
        # The next best checkpoint replaces the best one.
        is_saved = runner._resume and is_here and not source.name.startswith('best_')
        self.written: int | None = runner.iter if is_saved else None
        # In a separate out_dir, the checkpoints of an earlier run are kept.
        templates = () if runner._resume else (self.filename_tmpl, UNSCHEDULED)
        self._kept = {path for template in templates for _, path in self._files(template)}
        for indicator in self.key_indicators if self.save_best is not None else ():
            is_single = len(self.key_indicators) == 1
            key = 'best_ckpt' if is_single else f'best_ckpt_{indicator}'  # mmengine's
            name = Path(str(runner.message_hub.runtime_info.get(key))).name
            written = self._files(self.filename_tmpl, 'best_.+_')
            path = next((str(path) for _, path in written if path.name == name), None)
            if is_single:
                self.best_ckpt_path = path
            else:
                self.best_ckpt_path_dict[indicator] = path
        if is_main_process():
            for folder in {runner.work_dir, self.out_dir}:
                remove_unfinished(Path(folder))  # of a run that was killed
            self._check_links(runner)
            if is_saved:
                self._link(runner, LAST, str(source))
            # A run that was killed may have removed its best checkpoint and not written the next.
            if self.best or not Path(runner.work_dir, BEST).exists():
                self._link_best(runner)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        """Write the checkpoint of an interval when no gradients are accumulated."""
        interval = self.every_n_train_iters(runner, self.interval, self.save_begin)
        is_last = self.save_last and self.is_last_train_iter(runner)
        self._is_due |= not self.by_epoch and (interval or is_last)
        if self._is_due and runner.optim_wrapper.should_update():
            self._is_due = False
            runner.logger.info(f'Saving checkpoint at {runner.iter + 1} iterations')
            self._save_checkpoint(runner)

    @property
    def best(self) -> dict[str, str | None]:
        """The best checkpoint by each metric of ``save_best``, None before the first."""
        if self.save_best is None:
            return {}
        if len(self.key_indicators) == 1:
            return {self.key_indicators[0]: self.best_ckpt_path}
        return {name: self.best_ckpt_path_dict[name] for name in self.key_indicators}

    def save_unscheduled(self, runner: Runner, done: int) -> None:
        """Write a checkpoint after ``done`` iterations that the config does not schedule."""
        if self.written != done:
            name = UNSCHEDULED.format(done)
            self._write(runner, name, dict(epoch=runner.epoch, iter=done))

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, Any]) -> None:
        super()._save_best_checkpoint(runner, metrics)
        if is_main_process() and self.best:
            self._link_best(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Add the patch size of the backbone: the weights of an XCiT do not tell 4 from 16."""
        backbone = getattr(unwrapped(runner.model), 'backbone', None)
        if isinstance(backbone, XCiT):
            checkpoint['meta'][PATCH_SIZE] = backbone.patch_size

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        self._write(runner, self.filename_tmpl.format(step), meta)

    def _write(self, runner: Runner, name: str, meta: dict[str, int]) -> None:
        self.written = meta['iter']
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
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
        if not is_main_process():
            return
        with write_whole(Path(runner.work_dir, POINTER), 'w') as file:
            file.write(self.last_ckpt)
        self._link(runner, LAST, self.last_ckpt)
        if self.max_keep_ckpts > 0:
            iters = len(runner.train_dataloader) if self.by_epoch else 1
            written = {(i * iters, path) for i, path in self._files(self.filename_tmpl)}
            written |= set(self._files(UNSCHEDULED))
            self._kept.discard(Path(self.last_ckpt))
            # One with a higher number is damaged: the run has resumed from an older one.
            until_now = sorted(pair for pair in written if pair[0] <= self.written)
            ours = [path for _, path in until_now if path not in self._kept]
            for path in ours[: -self.max_keep_ckpts]:
                path.unlink()

    def _check_links(self, runner: Runner) -> None:
        """Log once why the work dir gets no links, if it gets none."""
        folder, why = Path(runner.work_dir), ''
        taken = [name for name in (BEST, LAST) if is_of_user(folder / name)]
        self._has_links = '://' not in self.out_dir
        if not self._has_links:
            why = f'the checkpoints are in {self.out_dir}'
        elif taken:
            why = f'{folder / taken[0]} is not a link, and stays as it is'
        if why:
            runner.logger.info(f'No link {" or ".join(taken or (BEST, LAST))} is made: {why}')

    def _link_best(self, runner: Runner) -> None:
        self._link(runner, BEST, next(iter(self.best.values()), None))

    def _link(self, runner: Runner, name: str, checkpoint: str | None) -> None:
        if not self._has_links:
            return
        try:
            point_to(Path(runner.work_dir, name), checkpoint and Path(checkpoint))
        except OSError as error:
            self._has_links = False
            runner.logger.info(f'No link {BEST} or {LAST} is made: {reason(error)}')

    def _files(self, template: str, prefix: str = '') -> list[tuple[int, Path]]:
        """Return the files, not links, that a template names, with their numbers."""
        paths = [p for p in Path(self.out_dir).glob('*') if p.is_file() and not p.is_symlink()]
        numbered = [(int(n), path) for path in paths for n in re.findall(r'\d+', path.name)]
        patterns = {n: re.compile(prefix + re.escape(template.format(n))) for n, _ in numbered}
        return [(n, path) for n, path in numbered if patterns[n].fullmatch(path.name)]
