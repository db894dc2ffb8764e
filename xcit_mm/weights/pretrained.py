"""The weights that a run starts from: there before anything is built."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from ..errors import UserError
from ..models import XCiT
from .checkpoint import TIMM, detector_state, model_state, read_checkpoint
from .download import UnreachableError, download, is_url


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
        if Path(checkpoint).expanduser().is_dir():
            raise UserError(f'the checkpoint {checkpoint} is a folder: name a file in it')
        if Path(checkpoint).expanduser().exists():
            raise UserError(f'the checkpoint {checkpoint} is a device or a pipe: name a file')
        raise UserError(f'the checkpoint {checkpoint} does not exist (looked in {Path.cwd()})')


def weights_for(model: nn.Module, checkpoint: Any, path: str) -> dict[str, Tensor]:
    """Take the weights of a detector or segmentor out of what a file holds, under our names.

    Args:
        model: What they are for.
        checkpoint: As of :func:`xcit_mm.weights.checkpoint.model_state`.
        path: Of the file, for the error.

    Raises:
        UserError: If the file holds no weights.
    """
    state = model_state(checkpoint, path)
    has_xcit = isinstance(getattr(model, 'backbone', None), XCiT)
    return detector_state(state) if has_xcit else state


@contextmanager
def read_all_safely(trusted: bool) -> Iterator[None]:
    """Make mmengine read files and URLs as we do within the block, such as ``init_cfg`` of heads.

    Args:
        trusted: See :func:`xcit_mm.weights.checkpoint.read_checkpoint`.
    """

    def load_from_xcit_mm(filename: str, map_location: Any = None) -> Any:
        return read_checkpoint(filename, map_location, trusted)

    before = dict(CheckpointLoader._schemes)
    CheckpointLoader.register_scheme(('', 'http://', 'https://'), load_from_xcit_mm, force=True)
    try:
        yield
    finally:
        CheckpointLoader._schemes = before


def _warm_up(cfg: Config) -> int:
    schedulers = cfg.get('param_scheduler') or []
    schedulers = [schedulers] if isinstance(schedulers, dict) else schedulers
    linear = (s for s in schedulers if s.type == 'LinearLR' and not s.get('by_epoch', True))
    return max((s.get('end', 0) for s in linear), default=0)
