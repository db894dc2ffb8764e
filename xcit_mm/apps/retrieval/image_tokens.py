"""Features of single images, computed at once or tile by tile."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...base.errors import UserError, is_out_of_memory
from ...base.free_memory import free_memory
from ...base.http import is_url
from ...data.tiff.tiff_bands import MAX_VALUES
from ...large.files.normalized_image import NormalizedImage
from ...large.files.open_image import BY_WINDOWS, image_size, needs_windows, open_image, suffix_of
from ...large.tokens.streamed_features import StreamedFeatures
from ...network.models.image_preprocessor import ImagePreprocessor
from ...network.tokens import map_to_tokens
from ...predict.embedder import Embedder
from .ranking import Box

NATIVE = 'native'
BYTES_OF_PIXEL = 1  # per pixel and channel, as in tools/infer.py


class ImageTokens(NamedTuple):
    """The features of one image, the same whether it is streamed or not.

    Attributes:
        size: (H, W) of the image file in pixels.
        token: Returns the class token (C) or, without class attention, the mean of the tokens.
        tiles: Yields the tokens (n, C) before the class attention, in parts.
    """

    size: tuple[int, int]
    token: Callable[[], np.ndarray]
    tiles: Callable[[], Iterator[np.ndarray]]


def image_tokens(
    embedder: Embedder, source: str, size: int | str, box: Box | None = None
) -> ImageTokens:
    """Compute the features of an image.

    Args:
        embedder: The network, with ``fit='longer'``.
        source: A path or URL.
        size: Length of the longer side in pixels, or 'native' for the size of the file. With
            'native', an image is streamed if it would not fit into memory, if pixels of it may have
            no data, or if its file format can only be read by windows.
        box: The part of the image to use, at the scale of the whole image.

    Raises:
        UserError: If the image cannot be read, or does not fit into memory.
    """
    may_stream = box is None and size == NATIVE
    if may_stream and _is_streamed(embedder, source):
        return _streamed(embedder, source)
    if needs_windows(source):
        raise UserError(f'{source} can only be read by windows: use --size native')
    image = embedder.read(source)
    longer = max(image.shape[:2])
    if box is not None:
        left, top, right, bottom = (max(0, round(n)) for n in box)
        image = image[top:bottom, left:right]
    scale = 1 if size == NATIVE else size / longer
    pixels = embedder.prepare(image, max(1, round(max(image.shape[:2]) * scale)))
    try:
        features = embedder.features(pixels[None])
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if not may_stream:
            raise UserError(f'{source} does not fit into memory: name a smaller --size') from None
        return _streamed(embedder, source)
    tokens = map_to_tokens(features.map)[0].numpy()
    token = features.token[0].numpy()
    return ImageTokens(image.shape[:2], lambda: token, lambda: iter([tokens]))


def _is_streamed(embedder: Embedder, source: str) -> bool:
    if needs_windows(source):
        return True
    # Pixels without data have to be left out, however large the file is.
    is_raster = suffix_of(source) in BY_WINDOWS and not is_url(source)
    if is_raster and Path(source).expanduser().is_file():
        opened = open_image(source, embedder.read)
        if opened.has_gaps or math.prod(opened.shape) > MAX_VALUES:
            return True
    room = free_memory()
    if embedder.device.type == 'cuda':
        room = min(room, torch.cuda.mem_get_info(embedder.device)[0])
    return math.prod(image_size(source) or (0,)) > room // (embedder.dim * BYTES_OF_PIXEL)


def _streamed(embedder: Embedder, source: str) -> ImageTokens:
    reader = embedder.reader
    if reader.bands is not None and reader.is_reversed:
        raise UserError(
            f'{source} is streamed, but {embedder.checkpoint} reverses the order of its bands '
            '(bgr_to_rgb), which only --size PIXELS does'
        )
    normalize = ImagePreprocessor(
        reader.normalize.mean.flatten().tolist(),
        reader.normalize.std.flatten().tolist(),
        bgr_to_rgb=not reader.is_reversed,
    )
    opened = open_image(source, embedder.read, 3 if reader.bands is None else None)
    image = NormalizedImage(opened, normalize, [], reader.bands)
    features = StreamedFeatures(embedder.model, image)

    def tiles() -> Iterator[np.ndarray]:
        for tokens in features.tokens():
            yield tokens.float().cpu().numpy()

    def token() -> np.ndarray:
        if embedder.has_token:
            return features.token().float().cpu().numpy()
        sums = [(tokens.sum(0, dtype=np.float64), len(tokens)) for tokens in tiles()]
        return (sum(s for s, _ in sums) / sum(n for _, n in sums)).astype(np.float32)

    opened.require_unchanged()
    return ImageTokens(image.size, token, tiles)
