"""A dataset of large images with labels as images or polygons, for segmentors and detectors."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from shapely.geometry import Polygon, box

from ...base.errors import ArgumentError, UserError, printable
from ...base.finder import LeftOut, find_files
from ...base.geometry import whole
from ...data.audit import annotations as problems
from ...data.audit.annotations import find_problem, read_annotations, usable_mask
from ...data.datasets.labels import IGNORED
from ..files.image_source import ImageSource
from ..files.open_image import image_size, open_header
from ..labels.labeled_polygons import LabeledPolygons, label_of, read_polygons, repaired
from ..labels.placed_rasters import laid_over
from ..labels.polygon_labels import PolygonLabels

LABELS = 'labels'  # the name of their folder in data_prefix
LIST = '.txt'  # the suffix of a file that lists images
FEATURES = ('.geojson', '.json', '.gpkg')  # suffixes of files of polygons


@DATASETS.register_module()
class Scenes(BaseDataset):
    """Whole images of any size, with their labels or objects, which are read by windows.

    The pipeline starts with ``OpenImage``. An image ``NAME.tif`` has a file ``NAME`` +
    ``label_suffix`` in the folder of the labels:

    - an image of labels (TIFF, PNG or ``.npy``) for segmentors. If both have a place on the map,
      the labels are placed by it, and otherwise pixel by pixel,
    - polygons (``.geojson``, ``.json`` or ``.gpkg``) in map coordinates if the image has a
      georeference, and in pixels otherwise, for segmentors and detectors.

    With an ``ann_file``, the polygons are the objects of that COCO file, which also lists the
    images. If it is a text file (``.txt``), each of its lines is the path of an image in their
    folder, and the labels are in files as above.

    Args:
        data_prefix: ``img``, the folder of the images, and ``labels``, the folder of the files with
            their labels. Default: the folder of the images.
        img_suffix: The end of the names of the images.
        label_suffix: The end of the names of the files with labels.
        class_property: The property of a polygon with the name of its class.
        with_objects: Whether each polygon is an object for a detector. Otherwise, polygons are
            areas of the classes for a segmentor. Where areas overlap, the last of their classes
            wins.
        background: For a segmentor, the class of pixels in no polygon. Default: they are ignored.
        reduce_zero_label: As in mmseg, for images of labels.

    The other arguments are the arguments of mmengine's ``BaseDataset``.

    Raises:
        UserError: If an image or its labels are missing or invalid, or if polygons have other
            classes or are all outside the image.
    """

    def __init__(
        self,
        *args: Any,
        data_prefix: Mapping[str, str],
        img_suffix: str = '.tif',
        label_suffix: str = '.tif',
        class_property: str = 'class',
        with_objects: bool = False,
        background: str | None = None,
        reduce_zero_label: bool = False,
        **kwargs: Any,
    ) -> None:
        self._suffixes, self._class_property = (img_suffix, label_suffix), class_property
        self._with_objects, self._background = with_objects, background
        self._reduces_zero = reduce_zero_label
        super().__init__(*args, data_prefix={**data_prefix}, serialize_data=False, **kwargs)

    @property
    def _has_objects_file(self) -> bool:
        return bool(self.ann_file) and not self.ann_file.endswith(LIST)

    @property
    def classes(self) -> Sequence[str]:
        return self._metainfo.get('classes') or ()

    def filter_data(self) -> list[dict]:
        """Leave out images without objects if ``filter_cfg`` says so, as mmdet's datasets do."""
        leaves_out = self._with_objects and (self.filter_cfg or {}).get('filter_empty_gt')
        if self.test_mode or not leaves_out:
            return self.data_list
        return [info for info in self.data_list if len(info['polygons'].shapes)]

    def load_data_list(self) -> list[dict]:
        images = self._listed_in_file() if self._has_objects_file else self._listed_in_folder()
        return [self._described(*image) for image in images]

    def get_data_info(self, idx: int) -> dict:
        """Return what is known about a scene, with its objects for a detector."""
        self.full_init()
        info = {**self.data_list[idx], 'sample_idx': idx % len(self.data_list)}
        if self._with_objects:
            window = whole((info['height'], info['width']))
            info['instances'] = info['polygons'].objects(window, min_visible=0)
        return info

    def scenes(self) -> 'Scenes':
        """Return the scenes as a dataset, which this dataset is."""
        return self

    def _listed_in_folder(self) -> Iterator[tuple[Path, int, Path | LabeledPolygons]]:
        folder, (img_suffix, label_suffix) = Path(self.data_prefix['img']), self._suffixes
        of_labels = Path(self.data_prefix.get(LABELS, folder))
        # NAME_labels.tif is not an image.
        other = label_suffix if of_labels == folder and label_suffix != img_suffix else None
        paths = self._listed_by_path() if self.ann_file else images_of(self, img_suffix, other)
        for number, path in enumerate(paths):
            name = path.relative_to(folder)
            end = path.suffix if self.ann_file else img_suffix
            labels = of_labels / name.with_name(name.name[: -len(end)] + label_suffix)
            if not labels.is_file():
                raise UserError(
                    f'{labels} with the labels of {path} is missing: write it, or set labels in '
                    'data_prefix and label_suffix'
                )
            yield path, number, labels

    def _listed_by_path(self) -> list[Path]:
        lines = Path(self.ann_file).read_text(encoding='utf-8').splitlines()
        return [Path(self.data_prefix['img'], line.strip()) for line in lines if line.strip()]

    def _listed_in_file(self) -> Iterator[tuple[Path, int, LabeledPolygons]]:
        content, self.remark = read_annotations(self.ann_file, encodes_masks=False)
        _log(self.remark)
        names = {category['id']: dict(name=category['name']) for category in content['categories']}
        place = f'{self.ann_file}: a category'
        labels = {id_: label_of(n, 'name', self.classes, place) for id_, n in names.items()}
        of_image: dict[int, list[dict]] = {image['id']: [] for image in content['images']}
        for annotation in content.get('annotations', []):
            of_image.get(annotation['image_id'], []).append(annotation)
        kinds: Counter[str] = Counter()
        for image in content['images']:
            polygons = []
            for annotation in of_image[image['id']]:
                kind = find_problem(annotation, image, labels, False, in_evaluation=False)
                kinds.update([kind] if kind else [])
                if kind is None or problems.CONSEQUENCES[kind][0] != problems.DROPPED:
                    shape, is_ignored = self._annotated(annotation, image)
                    polygons.append((shape, labels[annotation['category_id']], is_ignored))
            path = Path(self.data_prefix['img'], image['file_name'])
            size = image['height'], image['width']
            _require_size(size, self.ann_file, open_header(path))
            yield path, image['id'], LabeledPolygons.within(size, polygons)
        if kinds:
            listed = [f'{n} x {k} ({problems.CONSEQUENCES[k][0]})' for k, n in kinds.items()]
            message = printable(f'{self.ann_file}: {", ".join(listed)}')
            print_log(message, 'current', logging.WARNING)

    def _annotated(self, annotation: dict, image: dict) -> tuple[Any, bool]:
        """Return the polygon of an annotation, and whether it is ignored."""
        place = f'{self.ann_file}: annotation {annotation["id"]}'
        x, y, width, height = annotation['bbox']
        of_box = box(x, y, x + width, y + height)
        mask, is_crowd = annotation.get('segmentation'), annotation.get('iscrowd') not in (None, 0)
        if is_crowd or not mask:
            return of_box, is_crowd
        if isinstance(mask, dict):
            raise UserError(
                f'{place}: its mask is given by run lengths, which would be decoded for the whole '
                'image: write polygons instead'
            )
        rings = usable_mask(mask, image)
        if not rings:
            return of_box, True
        parts = [repaired(Polygon(list(zip(r[::2], r[1::2], strict=True))), place) for r in rings]
        return reduce(or_, parts), False

    def _described(self, path: Path, id_: int, labels: Path | LabeledPolygons) -> dict:
        image = open_header(path)
        info = listed(path, id_, image) | dict(label_map=None, reduce_zero_label=False)
        file = Path(self.ann_file) if self._has_objects_file else labels
        if isinstance(labels, Path) and labels.suffix.lower() in FEATURES:
            labels = read_polygons(labels, image, self.classes, self._class_property)
        if isinstance(labels, Path):
            if self._with_objects:
                raise ArgumentError(
                    f'{type(self).__name__}: {labels} is an image of labels, but a detector needs '
                    f'polygons: set label_suffix to {", ".join(FEATURES)}, or an ann_file'
                )
            if image_size(str(labels)) is not None:  # otherwise, the decoder says what is wrong
                placed = laid_over(open_header(labels, are_labels=True), image)
                _require_size(placed.shape[:2], str(labels), image)
            return info | dict(seg_map_path=str(labels), reduce_zero_label=self._reduces_zero)
        if self._with_objects:
            return info | dict(polygons=labels)
        outside = IGNORED if self._background is None else self.classes.index(self._background)
        source = PolygonLabels(file, image.shape[:2], labels, outside, IGNORED)
        return info | dict(seg_map_path=str(file), label_source=source)


@DATASETS.register_module()
class GeoJSONDataset(Scenes):
    """Images with a GeoJSON file each: ``NAME.geojson`` holds the objects of ``NAME.tif``.

    These are :class:`Scenes` of a detector. ``tools/infer.py --stream`` writes such files.

    Args:
        data_prefix: ``img``, the folder of the images, and ``objects``, the folder of the GeoJSON
            files. Default: the folder of the images.
    """

    def __init__(self, *args: Any, data_prefix: Mapping[str, str], **kwargs: Any) -> None:
        folders = {LABELS if key == 'objects' else key: data_prefix[key] for key in data_prefix}
        options = dict(label_suffix='.geojson', with_objects=True) | kwargs
        super().__init__(*args, data_prefix=folders, **options)


def images_of(dataset: BaseDataset, suffix: str, other: str | None = None) -> list[Path]:
    """Return the images of a dataset with a suffix, without those that end with another one.

    The ``remark`` of the dataset says what is left out.
    """
    folder, left = Path(dataset.data_prefix['img']), LeftOut()
    images = sorted(find_files(folder, [suffix], left))
    images = [path for path in images if other is None or not path.name.endswith(other)]
    dataset.remark = left.sentence(folder)
    _log(dataset.remark)
    if not images:
        raise UserError(
            f'{folder} has no images *{suffix}: set their folder in data_prefix and their suffix '
            'in img_suffix'
        )
    return images


def _log(remark: str) -> None:
    if remark:
        print_log(printable(remark), 'current')


def listed(path: Path, id_: int, image: ImageSource) -> dict:
    """Return what a dataset lists of an image."""
    height, width = image.shape[:2]
    return dict(img_path=str(path), img_id=id_, height=height, width=width)


def _require_size(size: tuple[int, int], labels: str, image: ImageSource) -> None:
    """Refuse labels of another size (H, W) than their image."""
    if size != image.shape[:2]:
        (height, width), (rows, columns) = size, image.shape[:2]
        raise UserError(
            f'{labels} is for {width}x{height} pixels, but {image.name} has {columns}x{rows}: '
            'write the labels in the size of the image'
        )
