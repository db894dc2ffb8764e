"""The runner of our tools: mmengine's, with files that are whole and samples that are good."""

from collections.abc import Callable, Mapping
from logging import FileHandler
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import master_only
from mmengine.logging import MMLogger
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.runner import BaseLoop, Runner
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import UserError, reason
from ..files import write_whole
from ..weights.checkpoint import HEAD, modules_of, read_checkpoint, require_same_tensors
from ..weights.pretrained import weights_for
from .config.load import ours
from .console import keep_readable
from .data.loader import BadSample, CheckedLoader, evaluation_loader
from .training_state import require_same_run, require_training_state

OF_WORKERS = ('persistent_workers', 'prefetch_factor', 'timeout')
AVERAGED = 'module.'  # how mmengine's EMAHook calls the averaged weights
NOT_OF_THIS_RUN = (AssertionError, AttributeError, KeyError, TypeError, ValueError)


class CheckedRunner(Runner):
    """mmengine's runner, which loads and writes a checkpoint as a whole or stops.

    mmengine loads the tensors that fit, by name, and logs the others. What evaluates reads its
    data through our loader, where a bad sample is an error that names it.
    """

    _testing = False

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        keep_readable(logger)
        for handler in logger.handlers:
            if isinstance(handler, FileHandler):  # in the encoding of the locale
                handler.stream.reconfigure(errors='backslashreplace')
        return logger

    @master_only
    def dump_config(self) -> None:
        """Write the config into the work dir; what is there under its name may be a link."""
        name = Path(self.cfg.filename or f'{self.timestamp}.py').name
        with write_whole(Path(self.work_dir, name), 'w') as file:
            file.write(self.cfg.dump())

    @staticmethod
    def build_dataloader(dataloader: dict, *args, **kwargs) -> DataLoader:
        dataloader = ours(dataloader)
        if isinstance(dataloader, dict) and dataloader.get('num_workers') == 0:
            for name in OF_WORKERS:  # which PyTorch refuses then
                dataloader.pop(name, None)
        return Runner.build_dataloader(dataloader, *args, **kwargs)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, dict) and 'type' not in loop:  # as mmengine takes it, too
            by_epoch = loop.get('by_epoch', True)
            loop = {name: value for name, value in loop.items() if name != 'by_epoch'}
            loop['type'] = 'EpochBasedTrainLoop' if by_epoch else 'IterBasedTrainLoop'
        return super().build_train_loop(ours(loop))

    def register_default_hooks(self, hooks: dict | None = None) -> None:
        super().register_default_hooks(ours(hooks))

    def register_custom_hooks(self, hooks: list) -> None:
        super().register_custom_hooks(ours(hooks))

    def test(self) -> dict[str, float]:
        self._testing = True
        return super().test()

    def build_val_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        self._val_dataloader = self._evaluation_loader(self._val_dataloader)
        return super().build_val_loop(loop)

    def build_test_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        self._test_dataloader = self._evaluation_loader(self._test_dataloader)
        return super().build_test_loop(loop)

    def _evaluation_loader(self, dataloader: dict) -> CheckedLoader:
        loader = evaluation_loader(self.build_dataloader(dataloader, seed=self.seed))

        def report(samples: list[BadSample]) -> None:
            listed = ', '.join(map(str, samples))
            raise UserError(
                f'{listed}; the metrics of an evaluation without it could not be compared with '
                'those of other models: repair or replace the image'
            )

        loader.report = report
        return loader

    def resume(self, filename: str, **kwargs) -> None:
        """Go on from a checkpoint (see mmengine's ``Runner.resume``).

        Raises:
            UserError: If the file cannot be read, is not of this model or not of such a run.
        """
        try:
            # Not on the GPU, as is mmengine's default: all of it beside the model.
            super().resume(filename, **{**kwargs, 'map_location': 'cpu'})
        except NOT_OF_THIS_RUN as error:  # what the parts of the state say of others
            raise UserError(
                f'{filename} is not of a run like this one ({reason(error)}); resume with the '
                'config that it was started with, or start from its weights: load_from'
            ) from error

    @master_only
    def save_checkpoint(self, out_dir: str, filename: str, *args, **kwargs) -> None:
        """Write a checkpoint, whole or not at all (see mmengine's ``Runner.save_checkpoint``).

        Raises:
            UserError: If the disk is full, or anything else prevents it; earlier ones stay.
        """
        if '://' in out_dir:  # a store of objects, where a file is whole or not there anyway
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        try:
            Path(out_dir).mkdir(parents=True, exist_ok=True)
            with write_whole(Path(out_dir, filename)) as file:
                super().save_checkpoint(out_dir, Path(file.name).name, *args, **kwargs)
        except OSError as error:
            raise UserError(
                f'the checkpoint {Path(out_dir, filename)} cannot be written ({reason(error)}); '
                'those before it are good: make room, and go on from the last one with --resume'
            ) from None

    def load_checkpoint(
        self,
        filename: str,
        map_location: str | torch.device | Callable = 'cpu',
        strict: bool = False,
        revise_keys: list | None = None,
    ) -> dict[str, Any]:
        """Load the weights of a detector or segmentor, in any format of ``checkpoint.py``.

        Args:
            filename: A file or URL.
            map_location: As of ``torch.load``.
            strict: Every tensor has to be there, as always in a test and a run that is
                resumed. Otherwise the heads may differ, as where a model is fine-tuned on
                other classes: what does not fit starts anew and is named in a warning.
            revise_keys: Of mmengine's method; the names need no revision.

        Returns:
            What the file holds, the weights under ``state_dict``.

        Raises:
            UserError: If the file cannot be read or is not of this model.
        """
        del revise_keys
        trusted = self.cfg.get('trust_checkpoint', False)
        checkpoint = read_checkpoint(filename, map_location, trusted)
        model = self.model.module if is_model_wrapper(self.model) else self.model
        state = weights_for(model, checkpoint, filename)
        if self._resume:
            require_training_state(checkpoint, filename)
            checkpoint['meta'].pop('config', None)  # which mmengine would run as Python
            if isinstance(self.optim_wrapper, OptimWrapper):
                require_same_run(checkpoint, self)
        wanted = model.state_dict()
        anew: set[str] = set()
        if not (strict or self._resume or self._testing):
            state, anew = _without_other_heads(state, wanted)
        require_same_tensors(state, wanted, filename, may_be_missing=anew)
        if self._resume and 'ema_state_dict' in checkpoint:
            average = checkpoint['ema_state_dict'].items()
            average = {k.removeprefix(AVERAGED): v for k, v in average if k.startswith(AVERAGED)}
            require_same_tensors(average, wanted, f'{filename} (ema_state_dict)')
        checkpoint = {**checkpoint, 'state_dict': state}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)  # which may exchange them
        model.load_state_dict(checkpoint['state_dict'], strict=False)
        self._has_loaded = True
        self.logger.info('Loaded %d of the %d tensors from %s', len(state), len(wanted), filename)
        if anew:
            self.logger.warning(
                'These start anew, because %s has them in another size or not at all: %s',
                filename,
                ', '.join(modules_of(anew)),
            )
        return checkpoint


def _without_other_heads(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """Leave the tensors of the heads out that do not fit.

    Returns:
        The state without them, and the names of those in ``wanted`` that are not in it.
    """

    def of_head(name: str) -> bool:
        return name.split('.')[0].endswith(HEAD)

    def fits(name: str) -> bool:
        return name in wanted and wanted[name].shape == state[name].shape

    kept = {name: value for name, value in state.items() if not of_head(name) or fits(name)}
    return kept, {name for name in wanted if of_head(name) and name not in kept}
