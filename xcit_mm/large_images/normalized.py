"""Turn the values of a file into the input of a backbone, window by window."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.decode import BadImageError
from ..errors import UserError
from .geometry import Window, length, overlap
from .window_files import ImageSource

if TYPE_CHECKING:
    from ..inference.model import Model

MAX_8_BITS = 255


class NormalisedImage:
    """An image (channels, H, W), normalised as by the preprocessor of a model, read by windows.

    Attributes:
        source: The image.
        size: (H, W) of the image.
        shape: (channels, H, W), with the padding of the preprocessor.
        max_rows: See :class:`.ImageSource`.
        bands: The loader of the config, if it loads channels other than RGB.
        is_bgr: Whether the model gets the channels of an RGB image in the order BGR.
        notes: Sentences that describe how the values are changed.

    Raises:
        UserError: If the values or channels do not fit the model, or if its pipeline or
            preprocessor does more than normalise and pad.
    """

    def __init__(self, source: ImageSource, model: 'Model') -> None:
        preprocessor = model.module.data_preprocessor
        self.source, self.bands, self.max_rows = source, model.bands, source.max_rows
        self.notes: list[str] = []
        _require_plain(model, preprocessor)
        height, width, channels = source.shape
        self._scale = 1.0
        if self.bands is None:
            self._check_values(source)
            if channels == 2:
                raise UserError(f'{source.name} has 2 channels, but the model needs 3: convert it')
            if channels > 3:
                self.notes.append(f'{source.name}: the first 3 of its {channels} channels are used')
        elif channels != self.bands.channels:
            raise UserError(
                f'{source.name} has {channels} bands, but the model needs {self.bands.channels}'
            )
        swaps = getattr(preprocessor, '_channel_conversion', None)
        swaps = getattr(preprocessor, 'channel_conversion', False) if swaps is None else swaps
        self.is_bgr = self.bands is None and not swaps  # the loader of the config returns BGR
        self._mean = self._std = None
        if preprocessor._enable_normalize:
            self._mean, self._std = preprocessor.mean.cpu(), preprocessor.std.cpu()
        divisor, self._padding = 1, 0.0
        if hasattr(preprocessor, 'pad_size_divisor') and not hasattr(preprocessor, 'size'):  # mmdet
            divisor, self._padding = preprocessor.pad_size_divisor, preprocessor.pad_value
        self.size = height, width
        self.shape = (
            3 if self.bands is None else channels,
            -(-height // divisor) * divisor,
            -(-width // divisor) * divisor,
        )

    def _check_values(self, source: ImageSource) -> None:
        if source.dtype == np.uint8 and source.max_value == MAX_8_BITS:
            return
        if source.dtype.newbyteorder('=') not in (np.uint8, np.uint16):
            raise UserError(
                f'{source.name} has values of type {source.dtype}, but the model needs uint8 or '
                'uint16: convert the image'
            )
        self._scale = MAX_8_BITS / source.max_value
        self.notes.append(
            f'{source.name}: its values from 0 to {source.max_value} are scaled to 0 to '
            f'{MAX_8_BITS}, the range of the training images'
        )

    def pixels(self, window: Window) -> np.ndarray:
        """Return a window as RGB (h, w, 3) uint8, or as bands (h, w, channels) float32."""
        pixels = self.source.read(window)
        if self.bands is not None:
            try:
                return self.bands.bands(pixels)
            except BadImageError as error:
                raise UserError(f'{self.source.name}: {error}') from None
        pixels = pixels[..., :3] if pixels.shape[2] >= 3 else pixels.repeat(3, axis=2)
        if self._scale != 1:
            pixels = (pixels * np.float32(self._scale)).round().clip(0, 255).astype(np.uint8)
        return pixels

    def __getitem__(self, window: tuple[slice, slice, slice]) -> Tensor:
        channels, *spans = window
        inside = Window(
            *(overlap(span, slice(0, n)) for span, n in zip(spans, self.size, strict=True))
        )
        image = torch.full(
            (self.shape[0], *map(length, spans)), float(self._padding), dtype=torch.float32
        )
        if all(inside.size):
            pixels = self.pixels(inside)
            if self.is_bgr:
                pixels = pixels[..., ::-1]
            values = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float()
            if self._mean is not None:
                values = (values - self._mean) / self._std
            image[(slice(None), *inside.within(Window(*spans)))] = values
        return image[channels]


def _require_plain(model: 'Model', preprocessor: nn.Module) -> None:
    kind = type(preprocessor).__name__
    if kind not in ('DetDataPreprocessor', 'SegDataPreProcessor'):
        raise UserError(
            f'a model with a {kind} cannot predict large images: its effect is not known'
        )
    if getattr(preprocessor, 'test_cfg', None):
        raise UserError(
            'a model whose data_preprocessor has a test_cfg cannot predict large images: remove '
            'the test_cfg'
        )
    for transform in model.pipeline.transforms[1:]:
        name = type(transform).__name__
        if 'Resize' not in name and not name.startswith(('Pack', 'Load')):
            raise UserError(
                f'a model whose test pipeline has a {name} cannot predict large images: it would '
                'need the whole image'
            )
