"""Pictures of attention maps over their image, as a grid of panels."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from ...base.files import write_whole
from ...base.fonts import chart_fonts
from .maps import AttentionMaps, checked_index, scaled

MAX_COLUMNS = 6
PANEL_SIDE = 320  # pixels
MIN_WIDTH = 240  # pixels of a panel, as wide as a title
GAP = 10  # pixels between panels
TITLE_HEIGHT = 50  # pixels, for two lines and the gap
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

    ``image`` is RGB, (H, W, 3) uint8. All heads together are the mean of the class attention, and
    the norm over all channels of queries and keys, as in the paper's figure D.2.
    """
    from matplotlib import rc_context

    kinds = [
        (f'|q|, layer {maps.layer}', maps.queries, maps.queries.norm(dim=0)),
        (f'|k|, layer {maps.layer}', maps.keys, maps.keys.norm(dim=0)),
    ]
    if maps.class_attention is not None:
        name = f'class attention, layer {maps.class_layer}'
        kinds.insert(0, (name, maps.class_attention, maps.class_attention.mean(0)))
    small = scaled(image, panel_side / max(image.shape[:2]))
    with rc_context(chart_fonts([title])), write_whole(path) as file:
        grid = _grid(len(kinds), 2 + len(heads), small.shape[:2])
        figure = grid[0, 0].figure
        figure.suptitle(title, fontsize=10, parse_math=False)  # file names may contain $
        for (name, values, together), row in zip(kinds, grid.reshape(len(kinds), -1), strict=True):
            row[0].imshow(small)
            row[0].set_title('image\n', fontsize=8)
            panels = [('all heads', together), *((f'head {i}', values[i]) for i in heads)]
            for axes, (head, weights) in zip(row[1:], panels, strict=False):
                largest = (weights.max() / weights.mean()).item()
                axes.imshow(overlay(image, small, weights, patch_size))
                axes.set_title(f'{name}, {head}\nup to {largest:.3g} times the mean', fontsize=8)
        figure.savefig(file, format='png')


def _grid(kinds: int, panels: int, size: tuple[int, int]) -> np.ndarray:
    """Return the axes of a figure with rows of panels (H, W) for each kind of map."""
    from matplotlib.figure import Figure

    rows = math.ceil(panels / MAX_COLUMNS)  # for each kind of map
    columns = math.ceil(panels / rows)
    cell_width, relative_gap = max(size[1], MIN_WIDTH) + GAP, TITLE_HEIGHT / size[0]
    height = kinds * rows * (size[0] + TITLE_HEIGHT) + TITLE_HEIGHT
    figure = Figure((columns * cell_width / DPI, height / DPI), DPI)
    top = 1 - 2 * TITLE_HEIGHT / height
    space = dict(left=0, right=1, bottom=0, top=top, wspace=GAP / cell_width, hspace=relative_gap)
    grid = figure.subplots(kinds * rows, columns, squeeze=False, gridspec_kw=space)
    for axes in grid.flat:
        axes.set_axis_off()
    return grid


def choose_heads(heads: Sequence[int] | None, num_heads: int) -> Sequence[int]:
    """Return the indices of heads, by default all of them, or raise an ArgumentError."""
    heads = range(num_heads) if heads is None else heads
    return [checked_index('head', head, num_heads) for head in heads]


def overlay(image: np.ndarray, small: np.ndarray, values: Tensor, patch_size: int) -> np.ndarray:
    """Color an image by a map (h, w) of its tokens, from its minimum (dark) to its maximum.

    ``small`` and the result are the image (H, W, 3) at the size of the panel, RGB uint8.
    """
    from matplotlib import colormaps

    weights, size = values.float().numpy(), small.shape[1::-1]
    scale = np.divide(image.shape[1::-1], size)  # of x and y
    if scale.max() > patch_size:  # a pixel of the panel has several tokens
        weights = cv2.resize(weights, size, interpolation=cv2.INTER_AREA)
    else:
        # The convolutions of the stem have stride 2 and padding 1, which centers token i on the
        # pixel i * patch_size. Centers of pixels are at halves.
        first = (0.5 * scale - 0.5) / patch_size
        matrix = np.column_stack([np.diag(scale / patch_size), first])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        weights = cv2.warpAffine(
            weights, matrix, size, flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
    weights = (weights - weights.min()) / (np.ptp(weights) or 1)
    colored = 255 * colormaps[COLORMAP](weights)[..., :3]
    gray = cv2.cvtColor(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return (OPACITY * colored + (1 - OPACITY) * gray).round().astype(np.uint8)
