"""Objects in GeoJSON files, such as predictions of large images write them, as training data."""

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from mmdet.structures.mask import PolygonMasks
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import InstanceData
from PIL import Image
from rasterio.crs import CRS
from rasterio.transform import from_origin

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.base.geometry import Window
from xcit_mm.predict.large.large_predictions import LargeDetections
from xcit_mm.predict.write import geojson
from xcit_mm.predict.write.vector_layers import object_layer
from xcit_mm.train.metrics.coco_metric import CocoAPMetric

CLASSES = ('circle', 'square')
SIZE = 45, 64
MAP = dict(crs=CRS.from_epsg(32633), transform=from_origin(500_000, 5_200_000, 0.5, 0.5))
LOCAL = dict(transform=from_origin(10, 20, 2, 2))  # without a reference system
PIPELINE = [
    dict(type='OpenImage'),
    dict(type='LoadObjects', with_mask=True),
    dict(type='PackScene'),
]
BOXES = np.array([[20, 4, 31, 15], [2.5, 3, 9, 40]], np.float32)


def objects(masks: list | None) -> LargeDetections:
    return LargeDetections(
        image=np.zeros((*SIZE, 3), np.uint8),
        boxes=BOXES,
        scores=np.array([0.9, 0.8]),
        labels=np.array([1, 0]),
        masks=masks,
        classes=CLASSES,
        palette=((0, 0, 0),) * 2,
        size=SIZE,
        georeference={},
        workspace=None,
    )


def write_geojson(path: Path, found: LargeDetections, georeference: dict) -> None:
    geojson.write_geojson(path, object_layer(found, georeference))


def write_image(path: Path, georeference: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = dict(height=45, width=64, count=3, dtype='uint8', **georeference)
    with rasterio.open(path, 'w', 'GTiff', **options):
        pass


def config(root: Path, **arguments) -> dict:
    return dict(
        type='GeoJSONDataset',
        data_root=str(root),
        data_prefix=dict(img='images', objects='objects'),
        metainfo=dict(classes=CLASSES),
        pipeline=PIPELINE,
        **arguments,
    )


def registered(dataset: dict):
    require_framework('mmdet')
    with DefaultScope.overwrite_default_scope('mmdet'):
        return DATASETS.build(dataset)


def build(root: Path, **arguments):
    return registered(config(root, **arguments))


@pytest.fixture
def root(tmp_path) -> Path:
    """Two images, of which the first has the objects above."""
    for name in 'ab':
        write_image(tmp_path / f'images/{name}.tif', {})
    (tmp_path / 'objects').mkdir()
    write_geojson(tmp_path / 'objects/a.geojson', objects(None), {})
    empty = dict(type='FeatureCollection', features=[])
    (tmp_path / 'objects/b.geojson').write_text(json.dumps(empty))
    return tmp_path


@pytest.mark.parametrize('georeference', [{}, MAP, LOCAL], ids=['pixels', 'map', 'local'])
def test_predictions_are_read_back(georeference, root):
    write_image(root / 'images/a.tif', georeference)
    write_geojson(root / 'objects/a.geojson', objects(None), georeference)
    dataset = build(root, test_mode=True)
    assert len(dataset) == 2
    sample = dataset[0]['data_samples']
    assert np.allclose(sample.gt_instances.bboxes, BOXES, atol=1e-4)
    assert sample.gt_instances.labels.tolist() == [1, 0]
    assert sample.img_path == str(root / 'images/a.tif') and sample.img_shape == SIZE
    assert len(dataset[1]['data_samples'].gt_instances) == 0
    training = build(root, filter_cfg=dict(filter_empty_gt=True))
    assert len(training) == 1


@pytest.mark.parametrize('georeference', [{}, MAP], ids=['pixels', 'map'])
def test_masks_with_holes_and_several_parts_are_read_back(georeference, root):
    ring = np.ones((11, 11), bool)
    ring[3:8, 2:5] = ring[2:6, 7:9] = False
    parts = np.zeros((37, 7), bool)
    parts[:5, :4] = parts[9:20] = parts[30:, 2:] = True
    masks = [
        (Window(slice(4, 15), slice(20, 31)), ring),
        (Window(slice(3, 40), slice(2, 9)), parts),
    ]
    write_image(root / 'images/a.tif', georeference)
    write_geojson(root / 'objects/a.geojson', objects(masks), georeference)
    dataset = build(root)
    found = dataset[0]['data_samples'].gt_instances
    assert isinstance(found.masks, PolygonMasks)
    assert np.allclose(found.bboxes, [[20, 4, 31, 15], [2, 3, 9, 40]], atol=1e-4)
    assert found.masks.areas == pytest.approx([ring.sum(), parts.sum()], abs=1e-3)
    drawn = PolygonMasks([[8 * p for p in m] for m in found.masks.masks], 8 * 45, 8 * 64)
    for (window, mask), large in zip(masks, drawn.to_ndarray(), strict=True):
        expected = np.zeros(SIZE, bool)
        expected[tuple(window)] = mask
        middles = large[4::8, 4::8].astype(bool)
        assert np.array_equal(middles, expected)


def test_other_images_and_names(tmp_path):
    """Images in folders, without a georeference, next to their objects."""
    (tmp_path / 'one').mkdir()
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'one/a.PNG')
    feature = dict(
        type='Feature',
        properties=dict(kind='square'),
        geometry=dict(type='Polygon', coordinates=[[[1, 2, 5], [30, 2, 5], [30, 9, 5], [1, 2, 5]]]),
    )
    (tmp_path / 'one/a.geojson').write_text(json.dumps(dict(features=[feature])))
    arguments = dict(img_suffix='.PNG', class_property='kind')
    dataset = registered(config(tmp_path, **arguments) | dict(data_prefix=dict(img='')))
    assert dataset[0]['data_samples'].gt_instances.bboxes.tolist() == [[1, 2, 30, 9]]


def large(folder: Path, with_mask: bool, pipeline: list[str], **arguments) -> dict:
    """The config of an image of 30,000 x 30,000 pixels, of which no pixel is stored."""
    polygon = [19_000, 18_000, 19_900, 18_000, 19_900, 18_800]
    box = [19_000, 18_000, 900, 800]
    annotation = dict(id=1, image_id=1, category_id=1, bbox=box, area=9, iscrowd=0)
    content = dict(
        images=[dict(id=1, file_name='a.tif', width=30_000, height=30_000)],
        annotations=[annotation | dict(segmentation=[polygon])],
        categories=[dict(id=1, name='circle')],
    )
    (folder / 'a.json').write_text(json.dumps(content))
    options = dict(height=30_000, width=30_000, count=3, dtype='uint8')
    options |= dict(tiled=True, blockxsize=512, blockysize=512, sparse_ok=True)
    rasterio.open(folder / 'a.tif', 'w', 'GTiff', **options).close()
    return dict(
        type='CheckedCocoDataset',
        ann_file=str(folder / 'a.json'),
        data_prefix=dict(img=str(folder)),
        metainfo=dict(classes=('circle',)),
        pipeline=[
            dict(type=kind, **(dict(with_mask=with_mask) if kind in LOADERS else {}))
            for kind in pipeline
        ],
        **arguments,
    )


LOADERS = 'LoadObjects', 'mmdet.LoadAnnotations'
SCENES = ['OpenImage', 'LoadObjects', 'PackScene']


@pytest.mark.parametrize(
    ('with_mask', 'test_mode'), [(True, False), (False, True)], ids=['training', 'evaluation']
)
def test_large_tiff_images_pass_the_checks_of_coco_files(with_mask, test_mode, tmp_path):
    dataset = registered(large(tmp_path, with_mask, SCENES, test_mode=test_mode))
    assert len(dataset) == 1 and dataset.problems == []
    sample = dataset[0]
    assert sample['inputs'].shape == (30_000, 30_000, 3)
    found = sample['data_samples'].gt_instances
    assert found.bboxes.tolist() == [[19_000, 18_000, 19_900, 18_800]]
    assert ('masks' in found) == with_mask


@pytest.mark.parametrize(
    ('pipeline', 'test_mode'), [(SCENES, True), (['LoadImage', 'mmdet.LoadAnnotations'], False)]
)
def test_images_too_large_for_the_masks_of_pycocotools_are_refused(pipeline, test_mode, tmp_path):
    with pytest.raises(UserError, match=r'a\.tif has 30000x30000 pixels, but pycocotools encodes'):
        registered(large(tmp_path, True, pipeline, test_mode=test_mode))


def test_the_metric_refuses_masks_that_pycocotools_cannot_encode():
    """2**29 pixels, of images without an annotation file."""
    metric = CocoAPMetric(metric='segm')
    sample = dict(img_path='a.tif', ori_shape=(2**15, 2**14), pred_instances=dict(masks=[]))
    with pytest.raises(UserError, match=r'^a\.tif has 16384x32768 pixels, but pycocotools encodes'):
        metric.process({}, [sample])


def test_an_evaluation_needs_no_annotation_file(root):
    """mmdet's metric takes the objects from the samples."""
    windows = [Window.around(box, SIZE) for box in BOXES]
    masks = [(window, np.ones(window.size, bool)) for window in windows]
    write_geojson(root / 'objects/a.geojson', objects(masks), {})
    dataset = registered(config(root, test_mode=True))
    metric = CocoAPMetric(metric=['bbox', 'segm'])
    metric.dataset_meta = dataset.metainfo
    for sample in (dataset[i]['data_samples'] for i in range(2)):
        found = sample.gt_instances
        masks = torch.from_numpy(found.masks.to_ndarray())
        scores = torch.ones(len(found))
        sample.pred_instances = InstanceData(
            bboxes=found.bboxes, labels=found.labels, scores=scores, masks=masks
        )
        metric.process({}, [sample.to_dict()])
    figures = metric.evaluate(size=2)
    assert figures['coco/bbox_mAP'] == figures['coco/segm_mAP'] == 1
