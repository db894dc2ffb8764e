"""Attention maps laid over the image, as a grid of panels."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from ..errors import ArgumentError
from ..files import write_whole
from .maps import AttentionMaps

Panel = tuple[str, np.ndarray]  # a title, and RGB

MAX_COLUMNS = 6
PANEL_SIDE = 320  # pixels
MIN_CELL = 240  # pixels: as wide as a title
GAP = 10  # pixels, between panels
TITLE_HEIGHT = 50  # pixels: of two lines over a panel
DPI = 100
OPACITY = 0.65  # of a map over the image
COLORMAP = 'inferno'


def draw_attention(
    path: Path,
    image: np.ndarray,
    maps: AttentionMaps,
    patch_size: int,
    title: str,
    heads: Sequence[int],
    panel_side: int = PANEL_SIDE,
) -> None:
    """Write a PNG: for each kind of map the image, all heads together and each head.

    All heads together are the mean of the class attention, and the norm over all channels of
    queries and keys, as in the paper's figure D.2. Every panel has a scale of its own, from its
    lowest value (dark) to its highest (bright).

    Args:
        path: The file, which is replaced.
        image: RGB, (H, W, 3) uint8, that the maps are of.
        maps: Of an :class:`~xcit_mm.attention.maps.AttentionProbe`.
        patch_size: Of the model, in pixels.
        title: Over the grid.
        heads: Which to draw, as of :func:`choose_heads`.
        panel_side: The longer side of a panel, in pixels.
    """
    from matplotlib.figure import Figure

    small = _shrunk(image, panel_side)
    num_panels = 2 + len(heads)
    columns = math.ceil(num_panels / math.ceil(num_panels / MAX_COLUMNS))
    rows = [
        panels[i : i + columns]
        for name, values, together in _kinds(maps)
        for panels in [_panels(name, values, together, heads, image, small, patch_size)]
        for i in range(0, num_panels, columns)
    ]
    height, width = small.shape[:2]
    cell = max(width, MIN_CELL) + GAP, height + TITLE_HEIGHT
    size = columns * cell[0], len(rows) * cell[1] + TITLE_HEIGHT
    figure = Figure(figsize=[side / DPI for side in size], dpi=DPI)
    style = dict(ha='center', va='center', fontsize=10, parse_math=False)  # of a file's name
    figure.text(0.5, 1 - 12 / size[1], title, **style)
    for y, panels in enumerate(rows):
        for x, (name, picture) in enumerate(panels):
            left, bottom = (x + 0.5) * cell[0] - width / 2, (len(rows) - 1 - y) * cell[1] + GAP
            place = left / size[0], bottom / size[1], width / size[0], height / size[1]
            axes = figure.add_axes(place)
            axes.axis('off')
            axes.imshow(picture, aspect='auto')
            axes.set_title(name, fontsize=8)
    with write_whole(path) as file:
        figure.savefig(file, format='png')


def choose_heads(heads: Sequence[int] | None, num_heads: int) -> Sequence[int]:
    """Numbers of heads, from 0; None: all.

    Raises:
        ValueError: If there is no head of a number.
    """
    for head in heads or ():
        if head not in range(num_heads):
            raise ArgumentError(f'head {head} is not in 0..{num_heads - 1}, those of this model')
    return range(num_heads) if heads is None else heads


def overlay(image: np.ndarray, small: np.ndarray, values: Tensor, patch_size: int) -> np.ndarray:
    """Colour an image by a map of its tokens, from the lowest value (dark) to the highest.

    Args:
        image: RGB, (H, W, 3) uint8.
        small: The same image at the size of the panel.
        values: One for each token, (h, w).
        patch_size: In pixels.

    Returns:
        RGB, uint8, of the size of ``small``.
    """
    from matplotlib import colormaps

    grey = cv2.cvtColor(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    weights = _at_pixels(values.float().numpy(), image.shape[:2], small.shape[:2], patch_size)
    spread = weights.max() - weights.min()
    weights = (weights - weights.min()) / (spread or 1)
    coloured = 255 * colormaps[COLORMAP](weights)[..., :3]
    return (OPACITY * coloured + (1 - OPACITY) * grey).round().astype(np.uint8)


def _at_pixels(
    values: np.ndarray, of: tuple[int, int], to: tuple[int, int], patch_size: int
) -> np.ndarray:
    """Take a map of the tokens of an image of one size (H, W) to the pixels of another size."""
    scale = np.array([of[1] / to[1], of[0] / to[0]])  # of x and y, pixels of the image
    if scale.max() > patch_size:  # several tokens in a pixel
        return cv2.resize(values, to[::-1], interpolation=cv2.INTER_AREA)
    # A token is centred on the pixel at patch_size times its place: the convolutions before it
    # have stride 2 and padding 1. Middles of pixels are at halves in the image.
    first = (0.5 * scale - 0.5) / patch_size
    matrix = np.column_stack([np.diag(scale / patch_size), first])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(values, matrix, to[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """The image with a longer side of so many pixels; a small one is enlarged."""
    height, width = image.shape[:2]
    factor = side / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)


def _kinds(maps: AttentionMaps) -> list[tuple[str, Tensor, Tensor]]:
    """Name, maps of the heads (h, H, W), and the map of all heads together (H, W)."""
    kinds = [
        (f'|{letter}|, layer {maps.layer}', values, values.norm(dim=0))
        for letter, values in (('q', maps.queries), ('k', maps.keys))
    ]
    if maps.class_attention is not None:
        name = f'class attention, layer {maps.class_layer}'
        kinds.insert(0, (name, maps.class_attention, maps.class_attention.mean(0)))
    return kinds


def _panels(
    name: str,
    values: Tensor,
    together: Tensor,
    heads: Sequence[int],
    image: np.ndarray,
    small: np.ndarray,
    patch_size: int,
) -> list[Panel]:
    named = [(f'{name}, all heads', together), *((f'{name}, head {i}', values[i]) for i in heads)]
    panels = [
        (
            f'{title}\nup to {(one.max() / one.mean()).item():.3g} times the mean',
            overlay(image, small, one, patch_size),
        )
        for title, one in named
    ]
    return [('image', small), *panels]
