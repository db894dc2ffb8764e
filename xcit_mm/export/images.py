"""The user's images, in the form that an exported file takes."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..inference import Model
from ..inference.sources import VIDEOS, find_inputs
from .comparison import Images

MOST_IMAGES = 100


def find_images(model: Model, arguments: Sequence[str]) -> Images:
    """Find images. They are loaded and resized as the test pipeline of the config does.

    Args:
        model: The model that was exported.
        arguments: Paths of images and folders, patterns, and URLs.

    Returns:
        Functions that load pixels (1, channels, H, W) float32, by path: up to 100, spread evenly
        over all images.

    Raises:
        UserError: If an argument is no image; from the functions, if an image cannot be read.
    """
    inputs, problems = find_inputs(arguments, lambda path: False)
    if problems:
        raise UserError(f'{problems[0]}: name images, or a folder of images')
    sources = [s for s in inputs.values() if not s.lower().endswith(VIDEOS)]
    if not sources:
        raise UserError(f'{arguments[0]} holds no image: name images, or a folder of images')
    count = min(MOST_IMAGES, len(sources))
    chosen = [sources[i * len(sources) // count] for i in range(count)]
    return {source: partial(_load, model, source) for source in chosen}


def _load(model: Model, source: str) -> Tensor:
    inputs = model.pack(model.prepare(source))['inputs']
    return pixels(inputs, model.module.data_preprocessor)


def pixels(inputs: Tensor, preprocessor: nn.Module) -> Tensor:
    """Return an image (C, H, W) of mmdet's and mmseg's pipelines as (1, C, H, W) float32.

    The channels are in the order in which the config normalizes them.
    """
    if getattr(preprocessor, '_channel_conversion', False):
        inputs = inputs.flip(0)
    return inputs[None].to(torch.float32).contiguous()
