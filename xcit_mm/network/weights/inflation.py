"""Weights for RGB images, adapted to images with another number of channels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...base.errors import ArgumentError, UserError

STEM = 'patch_embed.proj.0.0.weight'  # of the first convolution, (C, channels, 3, 3)
RGB = 3


def inflate(
    state: Mapping[str, Tensor],
    in_channels: int,
    path: str | Path,
    rgb: Sequence[int] | None = None,
) -> tuple[dict[str, Tensor], str]:
    """Return weights for images of ``in_channels`` channels, and a sentence on what was changed.

    By default every channel gets the mean of the kernels of red, green and blue, times
    3 / ``in_channels``: the response to a signal that all channels share stays the same. With
    ``rgb``, three channels keep the kernels of red, green and blue and the others get zeros: the
    outputs for these three stay the same. Weights for ``in_channels`` channels are not changed.

    Args:
        state: Weights of a backbone, a detector or a segmentor, under our names.
        in_channels: Channels of the images.
        path: File of the weights, for errors.
        rgb: The channels, from 0, that are red, green and blue, such as (3, 2, 1) for Sentinel-2.

    Raises:
        UserError: If the weights are for neither 3 nor ``in_channels`` channels.
        ArgumentError: If ``rgb`` does not name three different channels.
    """
    name = next((name for name in state if name.endswith(STEM)), None)
    kernel = state.get(name)  # (C, 3, 3, 3)
    channels = in_channels if kernel is None or kernel.ndim != 4 else kernel.shape[1]
    if channels == in_channels and (rgb is None or channels != RGB):
        return dict(state), ''
    if channels != RGB:
        raise UserError(
            f'{path} holds an XCiT for images of {channels} channels, and only weights for RGB '
            f'can be adapted to in_channels={in_channels}: use a file of an RGB model'
        )
    if rgb is None:
        shares = torch.full((in_channels, RGB), 1 / in_channels)
        what = f'each has the mean kernel of red, green and blue times 3/{in_channels}'
    else:
        if len(rgb) != RGB or len({*rgb} & {*range(in_channels)}) != RGB:
            raise ArgumentError(f'rgb={rgb} does not name 3 of the channels 0..{in_channels - 1}')
        shares = torch.eye(in_channels)[:, list(rgb)]
        what = '{}, {} and {} have the kernels of red, green and blue, the rest zeros'.format(*rgb)
    inflated = torch.einsum('oihw,ci->ochw', kernel, shares.to(kernel))
    return {**state, name: inflated}, f'From 3 to {in_channels} input channels: {what}'
