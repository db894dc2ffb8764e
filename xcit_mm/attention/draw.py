"""Draw attention maps over their image, as a grid of panels."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor

from ..errors import ArgumentError
from ..files import write_whole
from .maps import AttentionMaps, scaled

MAX_COLUMNS = 6
PANEL_SIDE = 320  # pixels
MIN_WIDTH = 240  # pixels of a cell, as wide as a title
GAP = 10  # pixels between panels
TITLE_HEIGHT = 50  # pixels above a panel, for two lines and the gap
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
    queries and keys, as in the paper's figure D.2. The colours of every panel range from its own
    minimum (dark) to its own maximum (bright).

    Args:
        path: File to write.
        image: RGB image of the maps, (H, W, 3) uint8.
        maps: Maps of the image.
        patch_size: Patch size of the model in pixels.
        title: Title of the picture.
        heads: Heads to draw.
        panel_side: Longer side of a panel in pixels.
    """
    from matplotlib.figure import Figure

    kinds = [
        (f'|q|, layer {maps.layer}', maps.queries, maps.queries.norm(dim=0)),
        (f'|k|, layer {maps.layer}', maps.keys, maps.keys.norm(dim=0)),
    ]
    if maps.class_attention is not None:
        name = f'class attention, layer {maps.class_layer}'
        kinds.insert(0, (name, maps.class_attention, maps.class_attention.mean(0)))
    small = scaled(image, panel_side / max(image.shape[:2]))
    num_panels = 2 + len(heads)  # of a kind
    columns = math.ceil(num_panels / math.ceil(num_panels / MAX_COLUMNS))
    rows = []
    for name, values, together in kinds:
        panels = [('image', small)]
        for head, weights in [('all heads', together), *((f'head {i}', values[i]) for i in heads)]:
            largest = (weights.max() / weights.mean()).item()
            text = f'{name}, {head}\nup to {largest:.3g} times the mean'
            panels.append((text, overlay(image, small, weights, patch_size)))
        rows += [panels[i : i + columns] for i in range(0, num_panels, columns)]
    height, width = small.shape[:2]
    cell = max(width, MIN_WIDTH) + GAP, height + TITLE_HEIGHT
    size = columns * cell[0], len(rows) * cell[1] + TITLE_HEIGHT
    figure = Figure([side / DPI for side in size], DPI)
    style = dict(ha='center', parse_math=False)  # file names may contain $
    figure.text(0.5, 1 - 12 / size[1], title, va='center', fontsize=10, **style)
    for row, panels in enumerate(reversed(rows)):
        for column, (text, picture) in enumerate(panels):
            x, y = column * cell[0] + (cell[0] - width) // 2, row * cell[1] + GAP
            figure.figimage(picture, x, y, origin='upper')
            place = (x + width / 2) / size[0], (y + height + GAP / 2) / size[1]
            figure.text(*place, text, va='bottom', fontsize=8, **style)
    with write_whole(path) as file:
        figure.savefig(file, format='png', dpi=DPI)


def choose_heads(heads: Sequence[int] | None, num_heads: int) -> Sequence[int]:
    """Return the indices of heads. None: all of them.

    Raises:
        ArgumentError: If there is no head of an index.
    """
    for head in heads or ():
        if head not in range(num_heads):
            raise ArgumentError(f'head {head} is not in 0..{num_heads - 1}, those of this model')
    return range(num_heads) if heads is None else heads


def overlay(image: np.ndarray, small: np.ndarray, values: Tensor, patch_size: int) -> np.ndarray:
    """Colour an image by a map (h, w) of its tokens, from its minimum (dark) to its maximum.

    ``small`` and the result are the image (H, W, 3) at the size of the panel, RGB uint8.
    """
    from matplotlib import colormaps

    grey = cv2.cvtColor(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    weights = _resampled(values.float().numpy(), image.shape[:2], small.shape[:2], patch_size)
    weights = (weights - weights.min()) / (np.ptp(weights) or 1)
    coloured = 255 * colormaps[COLORMAP](weights)[..., :3]
    return (OPACITY * coloured + (1 - OPACITY) * grey).round().astype(np.uint8)


def _resampled(
    values: np.ndarray, size: tuple[int, int], panel: tuple[int, int], patch_size: int
) -> np.ndarray:
    """Bring the tokens of an image of a size (H, W) to the pixels of a panel (H, W)."""
    scale = np.array([size[1] / panel[1], size[0] / panel[0]])  # of x and y
    if scale.max() > patch_size:  # a pixel of the panel has several tokens
        return cv2.resize(values, panel[::-1], interpolation=cv2.INTER_AREA)
    # The convolutions of the stem have stride 2 and padding 1, which centres token i on the pixel
    # i * patch_size. Centres of pixels are at halves.
    first = (0.5 * scale - 0.5) / patch_size
    matrix = np.column_stack([np.diag(scale / patch_size), first])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(values, matrix, panel[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)
