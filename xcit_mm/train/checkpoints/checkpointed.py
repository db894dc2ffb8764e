"""A runner that loads and writes checkpoints as a whole, or stops."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_gather_object, is_main_process, master_only
from mmengine.runner import BaseLoop, Runner
from torch import nn

from ...base.errors import UserError, reason
from ...base.files import write_whole
from ...base.processes import cpu_group, digest_of_file, require_same
from ...base.run_files import has_checkpoints
from ...config.build_model import weights_for, without_other_heads
from ...network.weights.names import modules_of, require_same_tensors
from ...network.weights.read import read_checkpoint
from ..distributed import unwrapped
from .newest import newest_checkpoint
from .recipe import changed_places, listed_changes, recipe_of
from .training_state import RECIPE, fit_training_state, require_training_state


class CheckpointedRunner(Runner):
    """mmengine's runner with whole checkpoints.

    mmengine itself loads the tensors whose names fit, and logs the others.
    """

    def load_or_resume(self) -> None:
        """Load weights, or resume from the newest checkpoint that the first process can read."""
        is_here = has_checkpoints(self.work_dir)  # none for mmdet's --resume in a new folder
        if self._resume and self._load_from is None and not self._has_loaded and is_here:
            self._load_from = self._newest_checkpoint()
        super().load_or_resume()
        if self._resume:
            self._write_config()

    def _newest_checkpoint(self) -> str:
        """Find the checkpoint to resume from; all processes must have it."""
        path = None
        if is_main_process():
            trusted = self.cfg.get('trust_checkpoint', False)
            path, warnings = newest_checkpoint(self.work_dir, trusted)
            for warning in warnings:
                self.logger.warning(warning)
        path = Path(all_gather_object(path, cpu_group())[0])
        if self.distributed:  # it may be missing on another machine
            digest = digest_of_file(path) if path.is_file() else 'missing'
            require_same({str(path): digest}, cpu_group())
        return str(path)

    def resume(self, filename: str, **kwargs) -> None:
        """Resume from a checkpoint of this run (see mmengine's ``Runner.resume``)."""
        seed = self.seed
        try:
            # mmengine's default would put the whole file on the GPU, in addition to the model.
            super().resume(filename, **{**kwargs, 'map_location': 'cpu'})
        except (KeyError, ValueError) as error:  # of PyTorch
            now = recipe_of(self.cfg)
            before = self._recipe_before or now
            changed = changed_places(before, now)
            what = f'; changed since: {listed_changes(before, now, changed)}' if changed else ''
            raise UserError(
                f'{filename} does not belong to this run ({reason(error)}{what}); resume with the '
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
        """Load the weights of a detector or segmentor, in any layout that :mod:`~.weights` reads.

        - A run that resumes requires every tensor, and the state of the training.
        - A test, and a training run with ``strict``, require every tensor.
        - Any other training run starts from weights whose heads may differ, as when a model is
          fine-tuned for other classes: tensors that do not fit keep their initial values, and a
          warning names them.

        A warning names a class that the checkpoint has under another name. In a test, the same
        classes in another order are an error.
        """
        from ...predict.results.class_names import check_names

        del revise_keys  # an argument of mmengine's method: the names need no revision here
        checkpoint = read_checkpoint(
            filename, map_location, self.cfg.get('trust_checkpoint', False)
        )
        if self._resume:
            require_training_state(checkpoint, filename)
            self._recipe_before = checkpoint['message_hub']['runtime_info'].get(RECIPE)
            fit_training_state(checkpoint, self, filename)
            checkpoint['meta'].pop('config', None)  # mmengine would run it as Python
        model = unwrapped(self.model)
        state, wanted = weights_for(model, checkpoint, filename), model.state_dict()
        initial: set[str] = set()
        trains = isinstance(self._train_loop, BaseLoop)
        if renamed := check_names(self.cfg, checkpoint, filename, predicts=not trains):
            self.logger.warning(renamed)
        if trains and not strict and not self._resume:
            state, initial = without_other_heads(state, wanted)
        require_same_tensors(state, wanted, filename, may_be_missing=initial)
        checkpoint = {**checkpoint, 'state_dict': state}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)  # may replace tensors
        model.load_state_dict(checkpoint['state_dict'], strict=False)
        self._has_loaded = True
        self.logger.info('Loaded %d of the %d tensors from %s', len(state), len(wanted), filename)
        if initial:
            self.logger.warning(
                '%d of the %d tensors are new, with random weights, because the file has none of '
                'their size: %s',
                len(initial),
                len(wanted),
                ', '.join(modules_of(initial)),
            )
        return checkpoint

    def dump_config(self) -> None:
        """Write nothing when the runner is built: a test leaves the config of the training."""

    def train(self) -> nn.Module:
        """Write the config to the work dir, and train (see mmengine's ``Runner.train``).

        A run that resumes writes it when its checkpoint is accepted: it may have another config.
        """
        if not self._resume:
            self._write_config()
        return super().train()

    @master_only
    def _write_config(self) -> None:
        """Write the config, whole, also where a link has its name, for runs that do not resume."""
        name = Path(self.cfg.filename or f'{self.timestamp}.py').name
        cfg = deepcopy(self.cfg)
        cfg.resume = False
        with write_whole(Path(self.work_dir, name), 'w') as file:
            file.write(cfg.dump())
