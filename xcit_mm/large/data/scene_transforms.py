"""Transforms of whole images: files are opened, and windows are read when a model needs them.

They replace the transforms of mmdet and mmseg in the pipeline of a dataset::

    train_pipeline = [
        dict(type='OpenImage'),
        dict(type='OpenLabels'),  # for a detector: dict(type='LoadObjects', with_mask=True)
        dict(type='FlipAndTurn'),
        dict(type='DistortColors'),
        dict(type='PackScene'),
    ]

The files are open in the process that runs the pipeline, so ``num_workers`` must be 0.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.registry import TRANSFORMS
from mmengine.structures import BaseDataElement, InstanceData

from ...base.errors import UserError
from ...data.transforms.decode import NO_LABELS, OTHER_SIZE, BadImageError, LoadImage, Size
from ...data.transforms.multiband import LoadMultiband
from ..files.image_views import RGBImage
from ..files.open_image import open_image
from ..files.symmetries import Symmetry, TurnedImage
from ..labels.annotated_objects import AnnotatedObjects
from ..labels.label_windows import LabelWindows, open_labels
from .color_distortion import ColorDistortion, DistortedImage

# The metadata of a sample that hooks, metrics and the step read.
META_KEYS = (
    *('img_id', 'img_path', 'seg_map_path', 'ori_shape', 'img_shape', 'scale_factor'),
    *('flip', 'flip_direction', 'reduce_zero_label', 'bands'),
)

# mmdet's names for flips of rows and columns.
DIRECTIONS = {
    (False, False): None,
    (False, True): 'horizontal',
    (True, False): 'vertical',
    (True, True): 'diagonal',
}


@TRANSFORMS.register_module()
class OpenImage:
    """Open an image that is read by windows.

    Reads ``img_path`` and, if present, the annotated ``width`` and ``height``. Sets ``img``,
    an :class:`.ImageSource` of RGB or of bands, ``img_shape`` and ``ori_shape``, both (H, W),
    ``scale_factor``, and ``bands``, the loader of bands or None.

    Args:
        bands: Arguments of :class:`~xcit_mm.data.transforms.multiband.LoadMultiband` for images
            with other bands than RGB, such as ``dict(channels=13, rgb=(3, 2, 1))``.

    Raises:
        BadImageError: If the image is missing or damaged, or has another size than annotated.
        UserError: If the image cannot be opened, or its values do not fit.
    """

    def __init__(self, bands: Mapping[str, Any] | None = None) -> None:
        self.loader = LoadImage() if bands is None else LoadMultiband(**bands)
        self._bands = None if bands is None else self.loader

    def __call__(self, results: dict) -> dict:
        bands, path = self._bands, results['img_path']
        annotated = (results['width'], results['height']) if 'width' in results else None
        decoded = partial(self._decoded, annotated=annotated)
        source = open_image(path, decoded, 3 if bands is None else None)
        height, width = source.shape[:2]
        if annotated not in (None, (width, height)):
            size = '{}x{}'.format(*annotated)
            raise BadImageError(OTHER_SIZE, f'{width}x{height} pixels instead of {size}')
        if bands is None:
            source = RGBImage(source)
        shape = dict(img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0))
        return results | dict(img=source, bands=bands, flip=False, flip_direction=None) | shape

    def read_through(self, results: dict) -> None:
        """Read all of an open image, to find out whether it can be used."""
        source = results['img']
        for window in source.windows():
            pixels = source.read(window)
            if self._bands is not None:
                self._bands.bands(pixels, source.valid(window))

    def _decoded(self, path: str, annotated: Size | None) -> np.ndarray:
        pixels = self.loader.decode(self.loader.read(path), annotated, Path(path))
        return pixels[..., ::-1] if self._bands is None else pixels


@TRANSFORMS.register_module()
class OpenLabels:
    """Open the labels of an image for a segmentor.

    Reads ``seg_map_path``, ``reduce_zero_label`` and ``label_map`` of mmseg's datasets, or
    ``label_source`` of :class:`.Scenes`. Sets ``label_windows``, a :class:`.LabelWindows`, which
    ignores pixels where the image has no data.

    Args:
        may_be_empty: Whether scenes without labeled pixels are used, as in an evaluation.
            Otherwise, another scene replaces them.

    Raises:
        BadImageError: If the labels are missing or damaged, if their size differs from the image,
            or if no pixel has a label.
        UserError: If the values in the file are not labels.
    """

    def __init__(self, may_be_empty: bool = False) -> None:
        self.may_be_empty = may_be_empty

    def __call__(self, results: dict) -> dict:
        _require_unturned(results, self)
        labels = labels_of(results)
        if not labels.labeled and not self.may_be_empty:
            raise BadImageError(NO_LABELS, labels.name)
        return results | dict(label_windows=labels)


@TRANSFORMS.register_module()
class LoadObjects:
    """Load the annotated objects of an image for a detector.

    Reads ``instances`` of mmdet's datasets. Sets ``objects``, an :class:`.AnnotatedObjects`.

    Args:
        with_mask: Whether the model predicts masks.

    Raises:
        UserError: If the mask of an object that is not a crowd is given by run lengths.
    """

    def __init__(self, with_mask: bool = False) -> None:
        self.with_mask = with_mask

    def __call__(self, results: dict) -> dict:
        _require_unturned(results, self)
        size, file = results['img_shape'], results['img_path']
        objects = AnnotatedObjects.of_instances(results['instances'], size, self.with_mask, file)
        return results | dict(objects=objects)


@TRANSFORMS.register_module()
class FlipAndTurn:
    """Flip and turn an image as a whole, with its labels or objects, without a copy.

    With the default probabilities, each of the eight symmetries is equally likely. Quarter turns
    suit tiled files: see :class:`.TurnedImage`. It follows the transforms that load labels or
    objects.

    Args:
        horizontal: The probability that left and right are exchanged.
        vertical: The probability that top and bottom are exchanged.
        turn: The probability of a quarter turn.
    """

    def __init__(self, horizontal: float = 0.5, vertical: float = 0.5, turn: float = 0.5) -> None:
        self.probabilities = turn, vertical, horizontal

    def __call__(self, results: dict) -> dict:
        symmetry = Symmetry(*(np.random.random(3) < self.probabilities).tolist())
        if not any(symmetry):
            return results
        size = results['img'].shape[:2]
        changed = dict(
            img=TurnedImage(results['img'], symmetry),
            img_shape=symmetry.size(size),
            symmetry=symmetry,
            flip=symmetry.flips_rows or symmetry.flips_columns,
            flip_direction=DIRECTIONS[symmetry.flips_rows, symmetry.flips_columns],
        )
        if 'label_windows' in results:
            changed['label_windows'] = results['label_windows'].turned(symmetry)
        if 'objects' in results:
            changed['objects'] = results['objects'].turned(symmetry, size)
        return results | changed


@TRANSFORMS.register_module()
class DistortColors:
    """Change the brightness, contrast, saturation and hue of an image, each with probability 0.5.

    The arguments and the random numbers are the same as in mmseg's ``PhotoMetricDistortion``. The
    numbers are drawn once for the whole image, which is RGB, and applied to each window of it.
    """

    def __init__(
        self,
        brightness_delta: float = 32,
        contrast_range: tuple[float, float] = (0.5, 1.5),
        saturation_range: tuple[float, float] = (0.5, 1.5),
        hue_delta: int = 18,
    ) -> None:
        self.brightness_range = -brightness_delta, brightness_delta
        self.contrast_range, self.saturation_range = contrast_range, saturation_range
        self.hue_range = -hue_delta, hue_delta

    def __call__(self, results: dict) -> dict:
        return results | dict(img=DistortedImage(results['img'], self.draw()))

    def draw(self) -> ColorDistortion:
        """Draw a distortion, in the same order as mmseg."""
        brightness = _drawn(self.brightness_range)
        contrast_is_first = bool(np.random.randint(2))
        contrast = _drawn(self.contrast_range) if contrast_is_first else None
        saturation = _drawn(self.saturation_range)
        hue = int(np.random.randint(*self.hue_range)) if np.random.randint(2) else None
        if not contrast_is_first:
            contrast = _drawn(self.contrast_range)
        return ColorDistortion(brightness, contrast, contrast_is_first, saturation, hue)


@TRANSFORMS.register_module()
class PackScene:
    """Pack an image and its labels or objects as a sample of mmseg or mmdet.

    Returns ``inputs``, the :class:`.ImageSource`, and ``data_samples``. For a segmentor, this is a
    ``SegDataSample`` with ``label_windows``. For a detector, it is a ``DetDataSample`` with
    ``gt_instances`` and ``ignored_instances``, whose ``masks`` are ``PolygonMasks`` if the model
    predicts masks. Unless the image is turned, the sample also has ``instances``, which mmdet's
    metric reads if it has no annotation file.
    """

    def __call__(self, results: dict) -> dict[str, Any]:
        is_detection = 'objects' in results or 'instances' in results
        sample = _detection_sample(results) if is_detection else _segmentation_sample(results)
        sample.set_metainfo({key: results[key] for key in META_KEYS if key in results})
        return dict(inputs=results['img'], data_samples=sample)


def labels_of(results: dict) -> LabelWindows:
    """Open the labels of an open image that a dataset describes."""
    if 'label_source' in results:  # drawn from polygons
        return LabelWindows(results['label_source'], image=results['img'])
    rules = bool(results.get('reduce_zero_label')), results.get('label_map')
    return open_labels(results['seg_map_path'], results['img'], *rules)


def _segmentation_sample(results: dict) -> BaseDataElement:
    from mmseg.structures import SegDataSample

    sample = SegDataSample()
    if 'label_windows' in results:
        sample.label_windows = results['label_windows']
    return sample


def _detection_sample(results: dict) -> BaseDataElement:
    from mmdet.structures import DetDataSample

    sample, objects = DetDataSample(), results.get('objects')
    if objects is not None:
        size, are_ignored = results['img_shape'], objects.are_ignored
        sample.gt_instances = _instances(objects, size, ~are_ignored)
        sample.ignored_instances = _instances(objects, size, are_ignored)
    if 'symmetry' not in results:
        sample.instances = results['instances']
    return sample


def _instances(objects: AnnotatedObjects, size: tuple[int, int], which: np.ndarray) -> InstanceData:
    from mmdet.structures.mask import PolygonMasks

    instances = InstanceData(
        bboxes=torch.from_numpy(objects.boxes[which]),
        labels=torch.from_numpy(objects.labels[which]),
    )
    if objects.polygons is not None:
        polygons = [objects.polygons[i] for i in np.flatnonzero(which)]
        instances.masks = PolygonMasks(polygons, *size)
    return instances


def _require_unturned(results: dict, transform: Any) -> None:
    if 'symmetry' in results:
        raise UserError(
            f'{type(transform).__name__} comes after FlipAndTurn in the pipeline, so what it loads '
            'would not be turned: put FlipAndTurn after it'
        )


def _drawn(limits: tuple[float, float]) -> float | None:
    """Draw a number between limits with probability 0.5, or None."""
    return float(np.random.uniform(*limits)) if np.random.randint(2) else None
