"""A dataset for detectors, with the objects of each image in a GeoJSON file. Needs mmdet."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS
from shapely import GEOSException
from shapely.geometry import MultiPolygon, Polygon

from ..datasets.annotations import require_few_pixels
from ..datasets.coco import CheckedCocoDataset, indexed
from ..errors import UserError, one_line, reason
from ..files import read_regular
from ..scenes.labeled_polygons import label_of, without_holes
from ..scenes.open_image import image_size, open_image
from ..scenes.read_features import WGS84

OBJECTS = 'objects'  # the name of their folder in data_prefix
SUFFIX = '.geojson'


@DATASETS.register_module()
class GeoJSONDataset(CheckedCocoDataset):
    """Images with a GeoJSON file each: ``NAME.geojson`` holds the objects of ``NAME.tif``.

    Each feature is an object: a Polygon or MultiPolygon, with the name of its class as a property.
    ``tools/infer.py --stream`` writes such files. The coordinates are map coordinates in the
    reference system of the image, or pixels if the image has no georeference. The polygons are the
    mask of the object, and their bounds are its box. A polygon with holes is cut through the holes.
    An image without objects has a file without features.

    Args:
        data_prefix: ``img``, the folder of the images, and ``objects``, the folder of the GeoJSON
            files. Default: the folder of the images.
        img_suffix: The suffix of the images.
        class_property: The property with the name of the class.

    The other arguments, the checks and the reports are the same as in :class:`.CheckedCocoDataset`.

    Raises:
        UserError: If a file is missing or invalid, if its reference system is not the system of
            its image, or if a feature is not a polygon or has a class that the config lacks.
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
        self.remark = ''
        folder = Path(self.data_prefix['img'])
        images = sorted(folder.rglob(f'*{self._img_suffix}'))
        if not images:
            raise UserError(
                f'{folder} has no images *{self._img_suffix}: set their folder in data_prefix and '
                'their suffix in img_suffix'
            )
        classes = self.metainfo['classes']
        content: dict[str, list] = dict(
            images=[],
            annotations=[],
            categories=[dict(id=i, name=name) for i, name in enumerate(classes, 1)],
        )
        for number, image in enumerate(images, 1):
            name = image.relative_to(folder)
            size, to_pixels, crs = _place(image)
            described = dict(id=number, file_name=str(name), height=size[0], width=size[1])
            content['images'].append(described)
            features = _Features((Path(path) / name).with_suffix(SUFFIX), image, crs)
            objects = features.objects(self._class_property, classes, to_pixels)
            for feature, (label, parts) in enumerate(objects, 1):
                annotation = dict(image_id=number, category_id=label + 1, iscrowd=0)
                annotation['id'] = len(content['annotations']) + 1
                self._places[annotation['id']] = str(features.path), feature
                content['annotations'].append(annotation | _outlined(parts))
        if self._encodes_masks:
            require_few_pixels(path, content['images'])
        return indexed(COCO(), content)

    def _place(self, info: dict, annotation_id: int) -> tuple[str, int]:
        return self._places[annotation_id]


class _Features:
    """The features in the GeoJSON file of an image."""

    def __init__(self, path: Path, image: Path, crs: Any) -> None:
        self.path = path
        try:
            content = json.loads(read_regular(path).decode('utf-8-sig'))
            if not isinstance(content, dict) or not isinstance(content.get('features'), list):
                raise ValueError('it has no list of features')
        except FileNotFoundError:
            raise UserError(
                f'{path} with the objects of {image} is missing: write a file without features if '
                'the image has no objects'
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f'{path} is not a GeoJSON file ({reason(error)})') from None
        self._features = content['features']
        self._require_system(content.get('crs'), image, crs)

    def objects(
        self, class_property: str, classes: Sequence[str], to_pixels: Any
    ) -> Iterator[tuple[int, list[Polygon]]]:
        """Yield the label and the polygons, without holes and in pixels, of each feature."""
        for number, feature in enumerate(self._features, 1):
            place = f'{self.path}: feature {number}'
            properties = feature.get('properties') if isinstance(feature, dict) else None
            label = label_of(properties, class_property, classes, place)
            try:
                parts = _polygons(feature.get('geometry'), to_pixels)
            except (TypeError, ValueError, LookupError, GEOSException) as error:
                raise UserError(
                    f'{place} is not a Polygon or MultiPolygon with numbers as coordinates '
                    f'({reason(error)}): correct or remove it'
                ) from None
            yield label, parts

    def _require_system(self, member: Any, image: Path, crs: Any) -> None:
        """Compare the member ``crs`` of GDAL and :func:`.write_geojson` with the image."""
        try:
            name = None if member is None else member['properties']['name']
        except (TypeError, LookupError):
            name = ''  # of no system
        if name is None:
            return
        if crs is not None:
            from rasterio.crs import CRS
            from rasterio.errors import CRSError

            try:
                if CRS.from_user_input(WGS84.get(name, name)) == crs:
                    return
            except CRSError:
                pass
            system = crs.to_string()
            raise UserError(
                f'{self.path} has the reference system {one_line(str(name))!r}, but {image} has '
                f'{system}: write the file with ogr2ogr -t_srs {system} -lco RFC7946=NO'
            )
        raise UserError(
            f'{self.path} has the reference system {one_line(str(name))!r}, but {image} has none: '
            'remove crs from the file, or add the system to the image with gdal_edit.py -a_srs'
        )


def _place(image: Path) -> tuple[tuple[int, int], Any, Any]:
    """Return (H, W) of an image, its transform from map coordinates to pixels, and its system."""
    size = image_size(str(image))
    if size is None:
        raise UserError(f'{image} cannot be opened as an image: repair or remove it')
    georeference = open_image(image, lambda path: np.zeros(size)).georeference
    transform = georeference.get('transform')
    return size, None if transform is None else ~transform, georeference.get('crs')


def _polygons(geometry: dict, to_pixels: Any) -> list[Polygon]:
    """Return the polygons of a geometry in pixels, cut where they have holes."""
    kinds = dict(Polygon=lambda rings: [rings], MultiPolygon=list)
    polygons = []
    if geometry['type'] not in kinds:
        raise ValueError(f'it is a {one_line(str(geometry["type"]))}')
    for rings in kinds[geometry['type']](geometry['coordinates']):
        shell, *holes = (_ring(ring, to_pixels) for ring in rings)
        polygons += without_holes(Polygon(shell, holes))
    if not polygons:
        raise ValueError('it is empty')
    return polygons


def _ring(ring: list, to_pixels: Any) -> np.ndarray:
    points = np.array([point[:2] for point in ring], float)  # the third is a height
    if not np.isfinite(points).all():
        raise ValueError('a coordinate is not finite')
    if to_pixels is None:
        return points
    x, y = points.T
    a, b, c, d, e, f, *_ = to_pixels
    return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


def _outlined(parts: Sequence[Polygon]) -> dict[str, Any]:
    """Return the mask, the box and the area of an object in COCO's format."""
    left, top, right, bottom = MultiPolygon(parts).bounds
    return dict(
        segmentation=[np.array(part.exterior.coords[:-1]).ravel().tolist() for part in parts],
        bbox=[left, top, right - left, bottom - top],
        area=sum(part.area for part in parts),
    )
