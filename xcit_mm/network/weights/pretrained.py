"""The weights that a backbone or a run starts from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import nn

from ...base.errors import UserError, did_you_mean, list_folder_hint
from ...base.http import is_url
from ...base.shipped import HUB, is_folder
from .cache import download
from .hub import find_file
from .inflation import inflate
from .names import (
    CLASSIFIER,
    PYRAMID,
    backbone_state,
    image_state,
    model_state,
    modules_of,
    require_same_tensors,
)
from .read import read_checkpoint

BACKBONES = 'XCiT', 'ImageXCiT'  # types in configs
HEAD = {'head.weight', 'head.bias'}  # of a classifier
# What to do if the weights that the backbone starts from cannot be downloaded.
RANDOM = ' (--cfg-options pretrained=FILE; for random weights: --cfg-options pretrained=None)'


def load_pretrained(
    backbone: nn.Module,
    path: str | Path | None,
    trusted: bool = False,
    rgb: Sequence[int] | None = None,
) -> None:
    """Load pretrained weights into an XCiT backbone, and log how many tensors were loaded.

    The file must hold exactly the tensors of this backbone. Only the pyramid and the norms after it
    may be missing, or in an ``ImageXCiT`` the class attention and the head. Otherwise a UserError
    is raised, and the backbone is unchanged. Weights for RGB fit a backbone with other
    ``in_channels``: see :func:`~xcit_mm.network.weights.inflation.inflate`.
    """
    if not path:
        raise UserError("init_cfg=dict(type='Pretrained', checkpoint=...) names no checkpoint")
    weights = model_state(read_checkpoint(path, trusted=trusted), path)
    model = backbone.state_dict()
    if hasattr(backbone, 'cls_attn_blocks'):  # an ImageXCiT
        state, optional = image_state(weights), CLASSIFIER
        # A head for other classes, or for none.
        if any(state[n].shape != getattr(model.get(n), 'shape', None) for n in HEAD & state.keys()):
            state = {name: value for name, value in state.items() if name not in HEAD}
    else:
        state, optional = backbone_state(weights), PYRAMID
    state, inflated = inflate(state, backbone.in_channels, path, rgb)
    may_be_missing = {name for name in model if name.startswith(optional)}
    require_same_tensors(state, model, path, may_be_missing)
    backbone.load_state_dict(state, strict=False)
    print_log(f'Loaded {len(state)} of the {len(model)} tensors of XCiT from {path}', 'current')
    if inflated:
        print_log(inflated, 'current')
    if missing := model.keys() - state.keys():
        modules = ', '.join(modules_of(missing))
        print_log(
            f'{len(missing)} tensors are not in {path}, so initialized at random: {modules}',
            'current',
        )


def download_pretrained(cfg: Config) -> list[str]:
    """Download the weights that a config's backbone starts from, and return lines for the log."""
    backbone = cfg.model.get('backbone') or {}
    if backbone.get('type') not in BACKBONES:
        return []
    init_cfg = backbone.get('init_cfg')
    if not init_cfg:
        return ['The backbone starts from random weights: init_cfg names no checkpoint.']
    checkpoint = init_cfg.get('checkpoint')
    # mmengine reads torchvision:// and other schemes, and timm reads its own.
    is_ours = '://' not in str(checkpoint) or is_url(checkpoint) or checkpoint.startswith(HUB)
    if isinstance(checkpoint, str) and is_ours:
        require_file(checkpoint, RANDOM, init_cfg.get('trusted', False))
    return []


def require_file(checkpoint: str, otherwise: str = '', trusted: bool = False) -> None:
    """Make sure that a checkpoint is on this machine, and download it from a URL or the hub.

    ``otherwise`` is the end of the remedy if that fails, and ``trusted`` is as for
    :func:`.read_checkpoint`.
    """
    path = Path(checkpoint).expanduser()
    if is_url(checkpoint):
        download(checkpoint, otherwise)
    elif is_folder(checkpoint):
        find_file(checkpoint, trusted)
    elif not path.is_file():
        if path.exists():
            raise UserError(f'the checkpoint {checkpoint} is not a regular file')
        hint = did_you_mean(path.name, [file.name for file in path.parent.glob('*.pth')])
        raise UserError(f'the checkpoint {checkpoint} does not exist{list_folder_hint(path)}{hint}')


@contextmanager
def read_all_safely(trusted: bool) -> Iterator[None]:
    """Make mmengine read files and URLs with ``read_checkpoint``, also for other packages."""

    def load_from_xcit_mm(filename: str, map_location: Any = None) -> Any:
        return read_checkpoint(filename, map_location, trusted)

    schemes = CheckpointLoader._schemes.copy()
    prefixes = ('', 'http://', 'https://', HUB)
    CheckpointLoader.register_scheme(prefixes, load_from_xcit_mm, force=True)
    try:
        yield
    finally:
        CheckpointLoader._schemes = schemes
