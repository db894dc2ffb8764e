"""Labels for segmentors, read by windows."""

import io
import warnings
from collections.abc import Iterator, Mapping
from copy import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from ..datasets.decode import (
    LABELS_ELSEWHERE,
    LABELS_MISSING,
    LABELS_OF_OTHER_SIZE,
    LABELS_UNREADABLE,
    BadImageError,
    LoadImage,
)
from ..datasets.labels import LabelRule, of_color_image
from ..datasets.places import NOWHERE, place_of_file
from ..errors import UserError, reason
from .geometry import Window, tiles, whole
from .image_source import TRAINED, ImageSource, WindowError, tile_of
from .open_image import open_image
from .placed_rasters import laid_over
from .png_labels import PngLabels, png_size
from .rasters import LABELS
from .symmetries import Symmetry, TurnedImage

IGNORED = 255  # mmseg's label of a pixel without a class
MAX_LABEL = 2**16 - 1  # in a file
PNG = b'\x89PNG'


class LabelWindows:
    """The class of each pixel of an image, read by windows.

    Pixels where the image has no data are ignored, whatever their label is.

    Args:
        source: The labels as an image of one channel.
        reduce_zero_label: As in mmseg: 0 is ignored, and the first class is 1.
        label_map: The new number of each label, if the classes of the dataset differ from the
            classes of the file.
        image: The image, if some of its pixels may have no data.

    Attributes:
        name: The name of the labels in messages.
        shape: (H, W).
        counts: The number of pixels of each label, int64, counted when the labels are opened; at
            least the labels 0 to 255.
        ignore: The label of pixels without a class.
        max_rows: See :class:`.ImageSource`; for the labels and the image.

    Raises:
        UserError: If the file cannot be read, has several channels, or values that are no labels.
    """

    ignore = IGNORED

    def __init__(
        self,
        source: ImageSource,
        reduce_zero_label: bool = False,
        label_map: Mapping[int, int] | None = None,
        image: ImageSource | None = None,
    ) -> None:
        self.name = source.name
        if source.shape[2] != 1:
            raise UserError(of_color_image(self.name, source.shape))
        if source.dtype.kind not in 'bui':
            raise UserError(
                f'{self.name}: the labels have the type {source.dtype}: write the class number of '
                'each pixel as an integer instead'
            )
        self._source, self._reduces_zero = source, reduce_zero_label
        self._image = image if image is not None and image.has_gaps else None
        self._new_labels = _new_labels(source.dtype.itemsize, reduce_zero_label, label_map or {})
        self.counts = self._count()

    @property
    def shape(self) -> tuple[int, int]:
        return self._source.shape[:2]

    @property
    def max_rows(self) -> int | None:
        sources = [self._source] if self._image is None else [self._source, self._image]
        return min((s.max_rows for s in sources if s.max_rows is not None), default=None)

    @property
    def labeled(self) -> int:
        """The number of pixels that have a class."""
        return int(self.counts.sum() - self.counts[self.ignore])

    def read(self, window: Window) -> np.ndarray:
        """Return the classes of a window, (h, w) uint8, or uint16 if the file has more bits.

        Raises:
            UserError: If the window cannot be read.
        """
        labels = self._new_labels[self._in_file(window)]
        valid = self._valid(window)
        if valid is not None:
            labels[~valid] = self.ignore
        return labels

    def of_image(self, image: ImageSource | None) -> 'LabelWindows':
        """Return the labels with the same image opened another time, or without it if None.

        The counts stay, also those without the image.
        """
        labels = copy(self)
        labels._image = image if image is not None and image.has_gaps else None
        return labels

    def turned(self, symmetry: Symmetry) -> 'LabelWindows':
        """Return the labels of the flipped and turned image, without a copy."""
        turned = copy(self)
        turned._source = TurnedImage(self._source, symmetry)
        if self._image is not None:
            turned._image = TurnedImage(self._image, symmetry)
        return turned

    def windows(self) -> Iterator[Window]:
        """Yield windows that cover the labels; a file in strips is decoded once for all of them."""
        return tiles(whole(self.shape), tile_of(self.max_rows))

    def require_classes(self, rule: LabelRule) -> None:
        """Raise a UserError if a label is neither a class nor ignored by the loss."""
        wrong = rule.broken_by(np.flatnonzero(self.counts))
        if len(wrong):
            raise UserError(rule.refusal(int(wrong[0]), self.name, self._reduces_zero))

    def require_unchanged(self) -> None:
        """Raise a UserError if the file has changed since it was opened."""
        self._source.require_unchanged(TRAINED)

    def _count(self) -> np.ndarray:
        in_file, missing = np.zeros(len(self._new_labels), np.int64), 0
        for window in self.windows():
            labels, valid = self._in_file(window), self._valid(window)
            if valid is not None:
                missing += valid.size - np.count_nonzero(valid)
                labels = labels[valid]
            in_file += np.bincount(labels.ravel(), minlength=len(in_file))
        counts = np.zeros(max(self.ignore, int(self._new_labels.max())) + 1, np.int64)
        np.add.at(counts, self._new_labels, in_file)
        counts[self.ignore] += missing
        return counts

    def _valid(self, window: Window) -> np.ndarray | None:
        """Return which pixels have a label, even an ignored one, and data in the image."""
        sources = [self._source] if self._image is None else [self._source, self._image]
        masks = [mask for s in sources if (mask := s.valid(window)) is not None]
        return np.logical_and.reduce(masks) if masks else None

    def _in_file(self, window: Window) -> np.ndarray:
        labels = self._source.read(window)[..., 0]
        may_be_wrong = labels.dtype.kind == 'i' or labels.dtype.itemsize > 2
        for label in (labels.min(), labels.max()) if may_be_wrong else ():
            if not 0 <= label <= MAX_LABEL:
                raise UserError(
                    f'{self.name}: the label {label} is outside 0..{MAX_LABEL}: write the class '
                    'number of each pixel instead'
                )
        return labels.astype(np.intp)


def open_labels(
    path: str,
    image: ImageSource,
    reduce_zero_label: bool = False,
    label_map: Mapping[int, int] | None = None,
) -> LabelWindows:
    """Open the labels of an image: a TIFF, PNG or NumPy file by windows, others decoded as a whole.

    Without rasterio, PNG files are decoded as a whole as well. For the arguments after the image,
    see :class:`LabelWindows`.

    If both have a place on the map, each pixel of the image has the label at its place. Pixels
    beyond the labels have no label.

    Raises:
        BadImageError: If the labels are missing or damaged, have another size than the image, or
            lie elsewhere on the map.
        UserError: See :class:`LabelWindows`.
    """
    rules = reduce_zero_label, label_map, image
    if _has_windows(path) and (size := png_size(Path(path))) is not None:
        if place_of_file(Path(path)) == NOWHERE:
            _require_size(size, path, image)  # before GDAL opens the file
        return _png_labels(path, *rules)
    source = open_image(path, partial(_decoded, image=image), are_labels=True)
    return LabelWindows(_laid_over(source, image), *rules)


def _laid_over(labels: ImageSource, image: ImageSource) -> ImageSource:
    try:
        labels = laid_over(labels, image)
    except UserError as error:
        raise BadImageError(LABELS_ELSEWHERE, str(error)) from None
    _require_size(labels.shape[:2], labels.name, image)
    return labels


def _has_windows(path: str) -> bool:
    return Path(path).suffix.lower() in LABELS and find_spec('rasterio') is not None


def _png_labels(
    path: str, reduce_zero_label: bool, label_map: Any, image: ImageSource
) -> LabelWindows:
    """Open and count the labels of a PNG file, and report damage as for other label files."""
    try:
        labels = _laid_over(PngLabels(Path(path)), image)
        return LabelWindows(labels, reduce_zero_label, label_map, image)
    except BadImageError:
        raise
    except WindowError as error:
        raise BadImageError(LABELS_UNREADABLE, str(error)) from None
    except UserError:
        raise
    except Exception as error:  # rasterio raises many kinds when it opens a file
        raise BadImageError(LABELS_UNREADABLE, f'{Path(path)} ({reason(error)})') from None


def _decoded(path: str, image: ImageSource) -> np.ndarray:
    """Decode a file whose format has no windows, if its header has the size of the image."""
    data = LoadImage().read(path, LABELS_MISSING)
    # Not with Image.open: it refuses more than 179 million pixels, which a small file may claim.
    opened = PngImageFile if data.startswith(PNG) else Image.open
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            with opened(io.BytesIO(data)) as labels:
                _require_size(labels.size[::-1], path, image)
                return np.asarray(labels)
        except BadImageError:
            raise
        except Exception as error:  # the decoders of Pillow raise many kinds
            detail = '' if isinstance(error, UnidentifiedImageError) else f' ({reason(error)})'
            raise BadImageError(LABELS_UNREADABLE, f'{Path(path)}{detail}') from None


def _require_size(size: tuple[int, int], path: str, image: ImageSource) -> None:
    if size != image.shape[:2]:
        (height, width), (rows, columns) = size, image.shape[:2]
        detail = f'{image.name} has {columns}x{rows} pixels, but {path} has {width}x{height}'
        raise BadImageError(LABELS_OF_OTHER_SIZE, detail)


def _new_labels(itemsize: int, reduce_zero_label: bool, label_map: Mapping[int, int]) -> np.ndarray:
    """Return the class of each label of a file, by the rules of mmseg's ``LoadAnnotations``."""
    labels = np.arange(MAX_LABEL + 1 if itemsize > 1 else 256)
    if reduce_zero_label:
        labels = np.where(np.isin(labels, (0, IGNORED)), IGNORED, labels - 1)
    mapped = labels.copy()
    for old, new in label_map.items():
        mapped[labels == old] = new
    return mapped.astype(np.uint16 if itemsize > 1 else np.uint8)
