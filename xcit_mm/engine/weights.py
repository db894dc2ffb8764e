"""The weights that a run starts from: whole, checked, and said in the log."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor

from ..checkpoint import (
    HEAD,
    TIMM,
    detector_state,
    model_state,
    modules_of,
    read_checkpoint,
    require_same_tensors,
)
from ..download import UnreachableError, download, is_url
from ..errors import UserError
from ..models import XCiT


def pretrained_weights(cfg: Config, options: Mapping[str, Any]) -> list[str]:
    """Fetch the weights that the config's backbone starts from, before anything is built.

    Where the network is away, a trial of a recipe goes on without them: one that the command
    line ends within the warm-up, so that it cannot be a training, and that names no weights.

    Args:
        cfg: The config, with the options in it.
        options: What the command line set.

    Returns:
        Sentences for the log.

    Raises:
        UserError: If they are a file that is missing, or at a URL and cannot be fetched.
    """
    backbone = cfg.model.get('backbone') or {}
    if backbone.get('type') != 'XCiT':
        return []
    init_cfg = backbone.get('init_cfg') or {}
    url = init_cfg.get('checkpoint')
    if not init_cfg:
        return ['The backbone starts from random weights: init_cfg names no checkpoint.']
    if not isinstance(url, str) or url.startswith(TIMM):
        return []
    if not is_url(url):
        require_file(url)
        return []
    try:
        download(url)
    except UnreachableError as error:
        named = any(name == 'pretrained' or 'init_cfg' in name for name in options)
        if named or options.get('train_cfg.max_iters', float('inf')) > _warm_up(cfg):
            raise
        backbone.init_cfg = None
        return [f'{error}. This trial starts from random weights instead.']
    return []


def require_file(checkpoint: str) -> None:
    """Make sure that a checkpoint is on this machine, and fetch it from a URL.

    Raises:
        UserError: If there is none.
    """
    if is_url(checkpoint):
        download(checkpoint)
    elif not Path(checkpoint).expanduser().is_file():
        raise UserError(f'the checkpoint {checkpoint} does not exist (looked in {Path.cwd()})')


def _warm_up(cfg: Config) -> int:
    schedulers = cfg.get('param_scheduler') or []
    schedulers = [schedulers] if isinstance(schedulers, dict) else schedulers
    linear = (s for s in schedulers if s.type == 'LinearLR' and not s.get('by_epoch', True))
    return max((s.get('end', 0) for s in linear), default=0)


class CheckedRunner(Runner):
    """mmengine's runner, which loads a checkpoint as a whole or stops.

    mmengine loads the tensors that fit, by name, and logs the others.
    """

    _testing = False

    def test(self) -> dict[str, float]:
        self._testing = True
        return super().test()

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
        state = model_state(checkpoint, filename)
        model = self.model.module if is_model_wrapper(self.model) else self.model
        if isinstance(getattr(model, 'backbone', None), XCiT):
            state = detector_state(state)
        wanted = model.state_dict()
        anew: set[str] = set()
        if not (strict or self._resume or self._testing):
            state, anew = _without_other_heads(state, wanted)
        require_same_tensors(state, wanted, filename, may_be_missing=anew)
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
