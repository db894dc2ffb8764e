"""The network that embeds images, from any file with an XCiT, and what the file says of images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..models.image_xcit import ImageXCiT, XCiTTrunk
from .inflation import STEM
from .names import (
    CLASSIFIER,
    Architecture,
    architecture,
    image_state,
    meta_of,
    model_state,
    require_same_tensors,
)
from .pretrained import HEAD
from .read import read_checkpoint

# The keys in ``meta`` of our checkpoints. The last one is False if class attention was not trained.
IMAGES, CLASSES, CLASS_ATTENTION = 'images', 'classes', 'class_attention'
BIRDER_IMAGES = 'rgb_stats'  # the mean and standard deviation of images in 0..1


class ImageNetwork(NamedTuple):
    """A network without a classification head, and the description of its images.

    Attributes:
        model: An ``ImageXCiT``, or an ``XCiTTrunk`` if the file has no class attention.
        shape: Its architecture.
        images: ``meta['images']`` of our files, or an empty dict.
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
        UserError: If the file cannot be read, or is not exactly an XCiT.
    """
    checkpoint = read_checkpoint(path, trusted=trusted)
    state = {
        name: value
        for name, value in image_state(model_state(checkpoint, path)).items()
        if name not in HEAD
    }
    if meta_of(checkpoint).get(CLASS_ATTENTION) is False:
        state = {name: value for name, value in state.items() if not name.startswith(CLASSIFIER)}
    shape = architecture(state, path, checkpoint)
    has_token = any(name.startswith(CLASSIFIER) for name in state)
    stem = state.get(STEM)
    arch = shape.arch or dict(
        embed_dim=shape.embed_dim, depth=shape.depth, num_heads=shape.num_heads, eta=1.0
    )
    channels = stem.shape[1] if stem is not None and stem.ndim == 4 else 3
    model = (ImageXCiT if has_token else XCiTTrunk)(arch, shape.patch_size, in_channels=channels)
    require_same_tensors(state, model.state_dict(), path)
    model.load_state_dict(state)
    return ImageNetwork(model.eval(), shape, described_images(checkpoint))


def described_images(checkpoint: Any) -> dict[str, Any]:
    """Return ``meta['images']`` of what a file holds, or an empty dict without it.

    A file of birder says how its images are normalized.
    """
    stats = checkpoint.get(BIRDER_IMAGES) if isinstance(checkpoint, Mapping) else None
    if isinstance(stats, Mapping):
        return {name: [255 * x for x in stats[name]] for name in ('mean', 'std')}
    return dict(meta_of(checkpoint).get(IMAGES) or {})


def described_classes(checkpoint: Any) -> list[str]:
    """Return the names of the classes of what a file holds, or an empty list without them."""
    return list(meta_of(checkpoint).get(CLASSES) or [])
