"""A dataset for detectors, with the objects of each image in a GeoJSON file. Needs mmdet."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS
from shapely.geometry import MultiPolygon, Polygon

from ...base.errors import UserError
from ...data.audit.annotations import require_few_pixels
from ...data.datasets.coco import CheckedCocoDataset, indexed
from ..files.image_source import ImageSource
from ..files.open_image import open_header
from ..labels.labeled_polygons import label_of, without_holes
from ..labels.read_features import in_pixels, read_features
from .scenes_dataset import images_of

OBJECTS = 'objects'  # the name of their folder in data_prefix
SUFFIX = '.geojson'


@DATASETS.register_module()
class GeoJSONDataset(CheckedCocoDataset):
    """Images with a GeoJSON file each: ``NAME.geojson`` holds the objects of ``NAME.tif``.

    Each feature is an object: a Polygon or MultiPolygon, with the name of its class as a property.
    ``tools/infer.py --stream`` writes such files. The coordinates are map coordinates, in the
    reference system of the image unless the file names another one, or pixels if the image has no
    georeference. The polygons are the mask of the object, and their bounds are its box. A polygon
    with holes is cut through the holes.
    An image without objects has a file without features.

    Args:
        data_prefix: ``img``, the folder of the images, and ``objects``, the folder of the GeoJSON
            files. Default: the folder of the images.
        img_suffix: The suffix of the images.
        class_property: The property with the name of the class.

    The other arguments, the checks and the reports are the same as in :class:`.CheckedCocoDataset`.

    Raises:
        UserError: If a file is missing or invalid, if its coordinates cannot be converted, or if a
            feature is not a polygon or has a class that the config lacks.
    """

    causes = MappingProxyType({})  # also degrees, which have no size in pixels
    not_inside = (
        'the coordinates may belong to another reference system: convert them to the system of the '
        'image with ogr2ogr -t_srs SYSTEM -lco RFC7946=NO'
    )

    def __init__(
        self,
        *args: Any,
        data_prefix: Mapping[str, str],
        img_suffix: str = '.tif',
        class_property: str = 'class',
        **kwargs: Any,
    ) -> None:
        self._img_suffix, self._class_property = img_suffix, class_property
        self._places: dict[int, tuple[str, int]] = {}
        super().__init__(*args, data_prefix={**data_prefix}, **kwargs)

    def load_data_list(self) -> list[dict]:
        # Messages name it, and mmdet passes it to COCOAPI.
        self.ann_file = str(Path(self.data_prefix.get(OBJECTS, self.data_prefix['img'])))
        return super().load_data_list()

    def COCOAPI(self, path: str) -> COCO:  # noqa: N802  mmdet calls it to read the file
        content: dict[str, list] = dict(images=[], annotations=[])
        content['categories'] = [dict(id=i, name=name) for i, name in enumerate(self.classes, 1)]
        folder = Path(self.data_prefix['img'])
        for number, image in enumerate(images_of(self, self._img_suffix), 1):
            name, source = image.relative_to(folder), open_header(image)
            height, width = source.shape[:2]
            size = dict(height=height, width=width)
            content['images'].append(dict(id=number, file_name=name.as_posix(), **size))
            file = (Path(path) / name).with_suffix(SUFFIX)
            for feature, (label, parts) in enumerate(self._objects(file, source), 1):
                annotation = dict(image_id=number, category_id=label + 1, iscrowd=0)
                annotation['id'] = len(content['annotations']) + 1
                self._places[annotation['id']] = str(file), feature
                content['annotations'].append(annotation | _outlined(parts))
        if self._encodes_masks:
            require_few_pixels(path, content['images'])
        return indexed(COCO(), content)

    @property
    def classes(self) -> Sequence[str]:
        return self.metainfo['classes']

    def _place(self, info: dict, annotation_id: int) -> tuple[str, int]:
        return self._places[annotation_id]

    def _objects(self, path: Path, image: ImageSource) -> Iterator[tuple[int, list[Polygon]]]:
        """Yield the label and the polygons, without holes and in pixels, of each feature."""
        if not path.exists():
            raise UserError(
                f'{path} with the objects of {image.name} is missing: write a file without '
                'features if the image has no objects'
            )
        features = in_pixels(read_features(path), image)
        pairs = zip(features.geometries, features.properties, strict=True)
        for number, (shape, properties) in enumerate(pairs, 1):
            place = f'{path}: feature {number}'
            label = label_of(properties, self._class_property, self.classes, place)
            yield label, [*without_holes(shape)]


def _outlined(parts: Sequence[Polygon]) -> dict[str, Any]:
    """Return the mask, the box and the area of an object in COCO's format."""
    left, top, right, bottom = MultiPolygon(parts).bounds
    return dict(
        segmentation=[np.array(part.exterior.coords[:-1]).ravel().tolist() for part in parts],
        bbox=[left, top, right - left, bottom - top],
        area=sum(part.area for part in parts),
    )
