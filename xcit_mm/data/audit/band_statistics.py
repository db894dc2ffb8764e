"""The mean and the standard deviation of each band over the images of a dataset."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from torch.utils.data import Dataset

from ...base.errors import UserError, printable
from ..transforms.decode import explained, image_loader
from ..transforms.multiband import LoadMultiband
from .read_data import opener, read_in_parallel, training_data


class Moments(NamedTuple):
    """The number of pixels, and the mean and the sum of squared deviations of each band."""

    count: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, pixels: np.ndarray) -> 'Moments':
        """Return the moments, in float64, of pixels (n, bands)."""
        if not len(pixels):
            return cls(0, np.zeros(pixels.shape[1]), np.zeros(pixels.shape[1]))
        means, squares = [], []
        for band in pixels.T:  # one by one, because float64 takes eight times the memory of uint8
            values = band.astype(np.float64)
            means.append(values.mean())
            values -= means[-1]
            squares.append(values @ values)
        return cls(len(pixels), np.array(means), np.array(squares))

    def __add__(self, other: 'Moments') -> 'Moments':  # Chan's formula
        count = self.count + other.count
        if not count:
            return self
        share, change = other.count / count, other.mean - self.mean
        squares = self.squares + other.squares + change**2 * share * self.count
        return Moments(count, self.mean + change * share, squares)


@dataclass
class BandStatistics:
    """The statistics of each band, in the order in which the preprocessor of the model gets them.

    Attributes:
        mean: The means.
        std: The standard deviations.
        pixels: The number of pixels with data.
        images: The number of images that were read.
        left_out: What is wrong with each image that was not read, or not completely.
    """

    mean: list[float]
    std: list[float]
    pixels: int
    images: int
    left_out: list[str]

    def text(self) -> str:
        """Return the lines for a config, and what was read."""
        mean, std = (', '.join(f'{n:.6g}' for n in numbers) for numbers in (self.mean, self.std))
        lines = [
            'model = dict(data_preprocessor=dict(',
            f'    mean=[{mean}],',
            f'    std=[{std}],',
            '))',
            f'Of {self.pixels} pixels with data in {self.images} images.',
        ]
        if self.left_out:
            lines.append(f'{len(self.left_out)} images are left out, such as {self.left_out[0]}')
        return '\n'.join(lines)


def band_statistics(cfg: Config, workers: int | None = None) -> BandStatistics:
    """Read all training images of an adapted config, large ones by windows.

    Only pixels with data count. Without ``workers``, one process per core reads. The result does
    not depend on their number.

    Raises:
        UserError: If the data is missing, if no image can be read, or if a process crashes.
    """
    total, images, left_out = None, set(), {}
    for dataset in training_data(cfg):
        for part in read_in_parallel(_Parts(dataset, _is_rgb(cfg)), workers, 'Reading train'):
            if isinstance(part.moments, str):
                left_out[part.file] = part.moments
            else:
                images.add(part.file)
                total = part.moments if total is None else total + part.moments
    listed = [printable(f'{file}: {why}') for file, why in left_out.items()]
    if total is None or not total.count:
        why = f'; the first: {listed[0]}' if listed else ''
        raise UserError(f'no image of the training data has pixels with data{why}')
    std = np.sqrt(total.squares / total.count)
    return BandStatistics(
        total.mean.tolist(), std.tolist(), total.count, len(images - {*left_out}), listed
    )


def _is_rgb(cfg: Config) -> bool:
    """Return whether the preprocessor gets RGB, which decides the order of the mean in a config."""
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or {}
    return bool(preprocessor.get('bgr_to_rgb') or preprocessor.get('rgb_to_bgr'))


@dataclass(frozen=True)  # PyTorch would turn the arrays in a tuple into tensors
class _Part:
    """The moments of an image or of a window of it, or why it cannot be read."""

    file: str
    moments: Moments | str


class _Parts(Dataset):
    """The images of a dataset, each as a whole or window by window if it is opened."""

    def __init__(self, dataset: Any, is_rgb: bool) -> None:
        self._dataset, self._is_rgb = dataset, is_rgb
        self._open, self._load, self._opened = opener(dataset), image_loader(dataset), (-1, None)
        self._parts: list[tuple[int, Any]] = []
        for index in range(len(dataset)):
            windows = self._windows(index) if self._open else [None]
            self._parts += [(index, window) for window in windows]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> _Part:
        index, window = self._parts[number]
        info = self._dataset.get_data_info(index)
        info.pop('seg_map_path', None)  # the labels may not be there yet
        try:
            pixels = self._pixels(info, index, window)
            has_colors = not isinstance(self._load, LoadMultiband)
            if has_colors and bool(self._open) != self._is_rgb:  # LoadImage returns BGR
                pixels = pixels[:, ::-1]
            return _Part(str(info['img_path']), Moments.of(pixels))
        except Exception as error:  # decoders raise many kinds
            return _Part(str(info['img_path']), explained(error))

    def _pixels(self, info: dict, index: int, window: Any) -> np.ndarray:
        """Return the pixels with data, (n, bands)."""
        if self._open is None:
            image = self._load(info)['img']
            return image.reshape(-1, image.shape[2])
        if self._opened[0] != index:
            self._opened = index, self._open(info)
        image, bands = self._opened[1]['img'], self._opened[1]['bands']
        pixels, is_valid = image.read(window), image.valid(window)
        pixels = pixels.reshape(-1, pixels.shape[2]) if is_valid is None else pixels[is_valid]
        return pixels if bands is None else bands.bands(pixels[None])[0]

    def _windows(self, index: int) -> list[Any]:
        try:
            return [*self._open(self._dataset.get_data_info(index))['img'].windows()]
        except Exception:  # reported when it is read
            return [None]
