"""The network that embeds images, from any file with an XCiT, and what the file says of images."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...base.errors import UserError
from ..models.image_xcit import ImageXCiT, XCiTTrunk
from .inflation import STEM
from .names import (
    CLASSIFIER,
    Architecture,
    architecture,
    image_state,
    model_state,
    require_same_tensors,
)
from .pretrained import HEAD
from .read import read_checkpoint

# The keys in ``meta`` of our checkpoints. The last one is False if class attention was not trained.
IMAGES, CLASSES, CLASS_ATTENTION = 'images', 'classes', 'class_attention'
LISTS = 'mean', 'std'


class ImageNetwork(NamedTuple):
    """A network without a classification head, and the description of its images.

    Attributes:
        model: An ``ImageXCiT``, or an ``XCiTTrunk`` if the file has no class attention.
        shape: Its architecture.
        images: ``meta['images']`` of our files, with valid values, or an empty dict.
    """

    model: nn.Module
    shape: Architecture
    images: dict[str, Any]


def load_image_network(path: str | Path, trusted: bool = False) -> ImageNetwork:
    """Load all weights of the XCiT in a file except for its classification head, or raise an error.

    Args:
        path: A file, a URL or ``timm://NAME``: a classifier, a DINO model, a distilled model, a
            backbone, a detector or a segmentor.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.

    Raises:
        UserError: If the file cannot be read, is not exactly an XCiT, or describes its images with
            invalid values.
    """
    checkpoint = read_checkpoint(path, trusted=trusted)
    state = {
        name: value
        for name, value in image_state(model_state(checkpoint, path)).items()
        if name not in HEAD
    }
    if _meta(checkpoint).get(CLASS_ATTENTION) is False:
        state = {name: value for name, value in state.items() if not name.startswith(CLASSIFIER)}
    shape = architecture(state, path)
    has_token = any(name.startswith(CLASSIFIER) for name in state)
    stem = state.get(STEM)
    arch = shape.arch or dict(
        embed_dim=shape.embed_dim, depth=shape.depth, num_heads=shape.num_heads, eta=1.0
    )
    channels = stem.shape[1] if stem is not None and stem.ndim == 4 else 3
    model = (ImageXCiT if has_token else XCiTTrunk)(arch, shape.patch_size, in_channels=channels)
    require_same_tensors(state, model.state_dict(), path)
    model.load_state_dict(state)
    return ImageNetwork(model.eval(), shape, described_images(checkpoint, channels, path))


def described_images(checkpoint: Any, channels: int, path: str | Path) -> dict[str, Any]:
    """Return ``meta['images']`` of what a file holds, or an empty dict without it.

    Raises:
        UserError: If a value is invalid.
    """
    images = _meta(checkpoint).get(IMAGES)
    if images is not None:
        _require_valid(images, channels, path)
    return dict(images or {})


def described_classes(checkpoint: Any, number: int, path: str | Path) -> list[str]:
    """Return the names of the classes of what a file holds, or an empty list without them.

    Raises:
        UserError: If they are not ``number`` different names.
    """
    names = _meta(checkpoint).get(CLASSES)
    if names is None:
        return []
    is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not is_list or len(set(names)) != len(names) or len(names) != number:
        raise UserError(
            f"meta['{CLASSES}'] of {path} has no names for its {number} classes: write the file "
            'again by a training'
        )
    return list(names)


def _meta(checkpoint: Any) -> Mapping[str, Any]:
    meta = checkpoint.get('meta') if isinstance(checkpoint, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def _require_valid(images: Any, channels: int, path: str | Path) -> None:
    problem = ''
    if not isinstance(images, Mapping) or images.get('channels') != channels:
        problem = f'does not describe images of {channels} channels'
    elif not all(_are_numbers(images.get(name), channels) for name in LISTS):
        problem = f'has no mean and std of {channels} channels'
    elif any(value <= 0 for value in images['std']):
        problem = 'has a std that is not positive'
    elif type(images.get('bgr_to_rgb')) is not bool:
        problem = 'does not say whether bgr_to_rgb'
    elif not isinstance(images.get('bands'), (Mapping, type(None))):
        problem = 'has a loader of bands that is not a dict'
    elif images.get('size') is not None and not _is_size(images['size']):
        problem = f'has size={images["size"]!r}, which is not a number of pixels'
    if problem:
        raise UserError(f"meta['{IMAGES}'] of {path} {problem}: write the file again by a training")


def _are_numbers(values: Any, channels: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) in (1, channels)
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0
