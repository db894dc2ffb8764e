"""Read the user's images in the form that an exported file takes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..inference import Model
from ..inference.sources import VIDEOS, find_inputs


def load_images(
    model: Model, arguments: Sequence[str], number: int | None = None
) -> dict[str, Tensor]:
    """Read images, and resize them as the test pipeline of the config does.

    Args:
        model: The model that was exported.
        arguments: Paths of images and folders, patterns, and URLs.
        number: Largest number of images, spread evenly over all of them. None: all of them.

    Returns:
        Pixels (1, channels, H, W) float32 by path.

    Raises:
        UserError: If an argument is no image, or an image cannot be read.
    """
    inputs, problems = find_inputs(arguments, lambda path: False)
    if problems:
        raise UserError(f'{problems[0]}: name images, or a folder of images')
    sources = [s for s in inputs.values() if not s.lower().endswith(VIDEOS)]
    if not sources:
        raise UserError(f'{arguments[0]} holds no image: name images, or a folder of images')
    count = len(sources) if number is None else min(number, len(sources))
    chosen = [sources[i * len(sources) // count] for i in range(count)]
    preprocessor = model.module.data_preprocessor
    return {s: pixels(model.pack(model.prepare(s))['inputs'], preprocessor) for s in chosen}


def pixels(inputs: Tensor, preprocessor: nn.Module) -> Tensor:
    """Return an image (C, H, W) of mmdet's and mmseg's pipelines as (1, C, H, W) float32.

    The channels are in the order in which the config normalises them.
    """
    if getattr(preprocessor, '_channel_conversion', False):
        inputs = inputs.flip(0)
    return inputs[None].to(torch.float32).contiguous()
