"""Images that are normalized for a backbone, window by window."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import sent
from ...base.errors import UserError
from ...base.geometry import Span, Window
from ...data.transforms.decode import BadImageError
from ...data.transforms.multiband import LoadMultiband
from .image_source import ImageSource
from .image_views import RGBImage
from .validity import ALL, Cells, cells_of, no_data


class NormalizedImage:
    """An image (channels, H, W), normalized as by the preprocessor of a model, read by windows.

    Pixels without data become 0, as the mean of the training images does, or what the ``nan`` of
    ``bands`` becomes.

    Args:
        source: The image.
        preprocessor: The ``data_preprocessor`` of the model.
        transforms: The test pipeline of the model after the loader.
        bands: The loader of the config, if it loads channels other than RGB.

    Attributes:
        size: (H, W) of the image.
        shape: (channels, H, W), with the padding of the preprocessor.
        max_rows: See :class:`.ImageSource`.
        is_bgr: Whether the model gets the channels of an RGB image in the order BGR.
        notes: Sentences that describe how the values are changed.

    Raises:
        UserError: If the values or channels do not fit the model, or if its pipeline or
            preprocessor does more than normalize and pad.
    """

    def __init__(
        self,
        source: ImageSource,
        preprocessor: nn.Module,
        transforms: Sequence[Callable],
        bands: LoadMultiband | None,
    ) -> None:
        require_only_normalization(preprocessor, transforms)
        self.source, self.bands, self.max_rows = source, bands, source.max_rows
        self._rgb = RGBImage(source) if bands is None else None
        self.notes = [] if self._rgb is None else self._rgb.notes
        height, width, channels = source.shape
        if bands is not None and channels != bands.channels:
            raise UserError(
                f'{source.name} has {channels} bands, but the model needs {bands.channels}'
            )
        swaps = getattr(preprocessor, '_channel_conversion', None)
        swaps = getattr(preprocessor, 'channel_conversion', False) if swaps is None else swaps
        swaps = swaps or getattr(preprocessor, 'bgr_to_rgb', False)  # of an ImagePreprocessor
        self.is_bgr = bands is None and not swaps  # the loader of the config returns BGR
        self._mean = self._std = None
        if getattr(preprocessor, '_enable_normalize', True):
            self._mean, self._std = preprocessor.mean.cpu().numpy(), preprocessor.std.cpu().numpy()
        # mmseg's older preprocessor has another name for it than mmengine's.
        self._padding = getattr(preprocessor, 'pad_val', getattr(preprocessor, 'pad_value', 0.0))
        self.size = height, width
        self.shape = 3 if bands is None else channels, *padded_size(preprocessor, self.size)

    def pixels(self, window: Window) -> np.ndarray:
        """Return a window as RGB (h, w, 3) uint8, or as bands (h, w, channels) float32.

        Pixels without data have the mean of the preprocessor, or the ``nan`` of ``bands``.
        """
        return self._filled(window)[0]

    def valid(self, window: Window) -> np.ndarray | None:
        """Return which pixels of a window have data, (h, w) bool; None if all of them have."""
        return self.source.valid(window)

    def cells(self, side: int) -> Cells | None:
        """Return which squares of ``side`` pixels have data; None if all pixels have.

        The padding counts as data.

        Raises:
            UserError: If no pixel has data.
        """
        if not self.source.has_gaps:
            return None
        states = cells_of(self.valid, self.size, side, self.max_rows)
        if not states.any():
            raise no_data(self.source.name)
        if (states == ALL).all():
            return None
        padded = np.full([-(-n // side) for n in self.shape[1:]], ALL, np.uint8)
        padded[tuple(slice(0, n) for n in states.shape)] = states
        return Cells(padded)

    def _filled(self, window: Window) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the pixels of a window, and which of them have data; see :meth:`pixels`."""
        pixels = self._rgb.read(window) if self.bands is None else self.source.read(window)
        valid = self.valid(window)  # after the pixels, of which some files know it then
        if self.bands is not None:
            try:
                pixels = self.bands.bands(pixels, valid)
            except BadImageError as error:
                raise UserError(f'{self.source.name}: {error}') from None
        if valid is not None:
            fill = self._mean_pixel if self._fill is None else np.array([self._fill])
            pixels = np.where(valid[..., None], pixels, fill.astype(pixels.dtype))
        return pixels, valid

    @property
    def _fill(self) -> float | None:
        """The value that NaN had in training; None if pixels without data get the mean."""
        return None if self.bands is None else self.bands.nan

    @property
    def _mean_pixel(self) -> np.ndarray:
        if self._mean is None:
            return np.zeros(1)
        mean = self._mean.flatten()
        if self.bands is not None:
            return mean
        return (mean[::-1] if self.is_bgr else mean).round().clip(0, 255)

    def unnormalized(self, window: Window) -> list[Tensor]:
        """Return what :meth:`normalize` needs of a window: its pixels, and which have data.

        As uint8, they have a quarter of the bytes of the normalized window.
        """
        inside = window.clipped(self.size)
        if 0 in inside.size:  # only padding
            return [torch.empty(*inside.size, self.shape[0], dtype=torch.uint8)]
        pixels, valid = self._filled(inside)
        parts = [pixels] if valid is None or self._fill is not None else [pixels, valid]
        return [_as_tensor(part) for part in parts]

    def normalize(self, window: Window, pixels: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalize a window of :meth:`unnormalized` on any device, bit for bit as if indexed."""
        values = pixels.permute(2, 0, 1)
        values = (values.flip(0) if self.is_bgr else values).to(torch.float32, copy=True)
        if self._mean is not None:
            mean, std = (
                sent(torch.from_numpy(of_channels), values.device)
                for of_channels in (self._mean, self._std)
            )
            values = values.sub_(mean).div_(std)
        if valid is not None:
            values *= valid
        height, width = window.clipped(self.size).size
        beyond = window.size[1] - width, window.size[0] - height  # right and below
        if not any(beyond):
            return values
        return F.pad(values, (0, beyond[0], 0, beyond[1]), value=self._padding)

    def __getitem__(self, index: tuple[slice, Span, Span]) -> Tensor:
        channels, *spans = index
        window = Window(*spans)
        inside = window.clipped(self.size)
        # Not PyTorch: a thread that reads ahead would start CPU threads of its own.
        image = np.full((self.shape[0], *window.size), self._padding, np.float32)
        if all(inside.size):
            pixels, valid = self._filled(inside)
            if self.is_bgr:
                pixels = pixels[..., ::-1]
            values = pixels.transpose(2, 0, 1).astype(np.float32, order='C')
            if self._mean is not None:
                values -= self._mean
                values /= self._std
            if valid is not None and self._fill is None:
                values *= valid
            image[(slice(None), *inside.within(window))] = values
        return torch.from_numpy(image[channels])


def _as_tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor, in the order of its values in memory."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy(order='K')  # a copy in another order takes longer than reading
    return torch.from_numpy(array)


def padded_size(preprocessor: nn.Module, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size (H, W) to which a preprocessor pads an image in evaluation."""
    divisor = getattr(preprocessor, 'pad_size_divisor', 1)
    if hasattr(preprocessor, 'size_divisor'):  # mmseg's, which only training uses
        padding = preprocessor.test_cfg or {}
        if padding.get('size') is not None:
            return tuple(map(max, size, padding['size']))
        divisor = padding.get('size_divisor') or 1
    return tuple(-(-n // divisor) * divisor for n in size)


def require_only_normalization(preprocessor: nn.Module, transforms: Sequence[Callable]) -> None:
    kind = type(preprocessor).__name__
    if kind not in ('DetDataPreprocessor', 'SegDataPreProcessor', 'ImagePreprocessor'):
        raise UserError(
            f'a model with a {kind} cannot be used for large images: its effect is not known'
        )
    for name in (type(transform).__name__ for transform in transforms):
        if 'Resize' not in name and not name.startswith(('Pack', 'Load')):
            raise UserError(
                f'a model whose test pipeline has a {name} cannot be used for large images: it '
                'would need the whole image'
            )
