"""Pipelines of whole images, in the datasets of mmseg and mmdet and with their bad samples."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
from mmdet.datasets.transforms import LoadAnnotations, RandomFlip
from mmdet.structures.mask import PolygonMasks
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.base.geometry import Window, whole
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import NO_CLASS, check_dataset
from xcit_mm.data.datasets.samples import SampleRequest, Samples, TrainingSamples
from xcit_mm.data.transforms.decode import (
    LABELS_OF_OTHER_SIZE,
    NO_LABELS,
    BadImageError,
    LoadImage,
    image_loader,
)
from xcit_mm.data.transforms.multiband import NOT_FINITE, LoadMultiband
from xcit_mm.large.data.scene_transforms import DIRECTIONS, OpenImage
from xcit_mm.large.files.symmetries import Symmetry
from xcit_mm.predict.model import _test_pipeline

SIZE = 45, 64
CLASSES = ('background', 'circle', 'square', 'triangle')
OPEN, LABELS, PACK = dict(type='OpenImage'), dict(type='OpenLabels'), dict(type='PackScene')
TRAINING = [OPEN, LABELS, dict(type='FlipAndTurn'), dict(type='DistortColors'), PACK]
WINDOW = Window(slice(2, 31), slice(5, 44))


def build(scope: str, config: dict):
    require_framework(scope)
    with DefaultScope.overwrite_default_scope(scope):
        return DATASETS.build(config)


@pytest.fixture
def scenes(tmp_path) -> Path:
    """Four images with labels 1 to 4, and 0 and 255 for pixels without a class."""
    random = np.random.default_rng(0)
    for folder in ('images', 'labels'):
        (tmp_path / folder).mkdir()
    for name in 'abcd':
        image, labels = (random.integers(0, n, (*SIZE, 3), np.uint8) for n in (256, 5))
        tifffile.imwrite(tmp_path / f'images/{name}.tif', image, tile=(16, 16))
        tifffile.imwrite(tmp_path / f'labels/{name}.tif', labels[..., 0], tile=(16, 16))
    return tmp_path


def segmentation(root: Path, pipeline: list[dict], **arguments) -> dict:
    return dict(
        type='BaseSegDataset',
        data_root=str(root),
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        img_suffix='.tif',
        seg_map_suffix='.tif',
        reduce_zero_label=True,
        metainfo=dict(classes=CLASSES),
        pipeline=pipeline,
        **arguments,
    )


def config_of(root: Path, pipeline: list[dict]):
    """A config of a segmentor whose training and validation read the scenes."""
    cfg = load_config('configs/sem_fpn_xcit_n12_16_shapes.py')
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset = segmentation(root, pipeline)
    return cfg


def test_a_scene_of_a_segmentor(scenes):
    dataset = build('mmseg', segmentation(scenes, [OPEN, LABELS, PACK], test_mode=True))
    batch = pseudo_collate([dataset[0]])
    (source,), (sample,) = batch['inputs'], batch['data_samples']
    image, labels = (tifffile.imread(scenes / folder / 'a.tif') for folder in ('images', 'labels'))
    assert np.array_equal(source.read(WINDOW), image[tuple(WINDOW)])
    expected = (labels - np.uint8(1))[tuple(WINDOW)]
    assert np.array_equal(sample.label_windows.read(WINDOW), expected)
    assert sample.label_windows.counts[:4].tolist() == np.bincount(labels.ravel())[1:].tolist()
    assert sample.ori_shape == sample.img_shape == SIZE and sample.scale_factor == (1, 1)
    assert sample.img_path == str(scenes / 'images/a.tif')
    assert sample.seg_map_path == str(scenes / 'labels/a.tif')
    assert sample.reduce_zero_label and not sample.flip and sample.bands is None
    assert set(sample.to_dict()) >= {'label_windows', 'img_path'}  # as mmengine's metrics get it
    assert sample.cpu().label_windows is sample.label_windows


def test_a_sample_follows_from_its_position(scenes):
    samples = TrainingSamples(build('mmseg', segmentation(scenes, TRAINING)))
    seen = set()
    for position in range(30):
        request = SampleRequest(position % 4, (0, 0, position, 0))
        sample, again = (samples[request][0] for _ in range(2))
        assert sample['inputs'].content() == again['inputs'].content()
        data, size = sample['data_samples'], sample['inputs'].shape[:2]
        assert data.img_shape == data.label_windows.shape == size and data.ori_shape == SIZE
        seen.add((size, data.flip_direction))
        sent = pickle.loads(pickle.dumps(sample))  # as by a process that loads data
        assert np.array_equal(sent['inputs'].read(WINDOW), sample['inputs'].read(WINDOW))
        labels = [s['data_samples'].label_windows.read(WINDOW) for s in (sample, sent)]
        assert np.array_equal(*labels)
    assert len(seen) == 8


def test_labels_turn_with_the_image(scenes):
    for name in 'abcd':  # images that equal their labels
        labels = tifffile.imread(scenes / f'labels/{name}.tif')
        tifffile.imwrite(scenes / f'images/{name}.tif', labels[..., None].repeat(3, axis=-1))
    dataset = build('mmseg', segmentation(scenes, [OPEN, LABELS, dict(type='FlipAndTurn'), PACK]))
    np.random.seed(0)
    for _ in range(12):
        sample = dataset[0]
        read = sample['inputs'].read(WINDOW)[..., 0] - np.uint8(1)  # 0 becomes 255
        assert np.array_equal(sample['data_samples'].label_windows.read(WINDOW), read)


def test_labels_that_would_not_turn_are_refused(scenes):
    pipeline = [OPEN, dict(type='FlipAndTurn', horizontal=1), LABELS, PACK]
    with pytest.raises(UserError, match='OpenLabels comes after FlipAndTurn'):
        build('mmseg', segmentation(scenes, pipeline))[0]


def spoil(root: Path) -> None:
    """Make three of four scenes unusable."""
    tifffile.imwrite(root / 'labels/a.tif', np.zeros(SIZE, np.uint8))
    tifffile.imwrite(root / 'labels/b.tif', np.ones((45, 60), np.uint8))
    (root / 'images/c.tif').write_bytes((root / 'images/c.tif').read_bytes()[:200])


def test_bad_scenes_are_replaced_and_named(scenes):
    spoil(scenes)
    dataset = build('mmseg', segmentation(scenes, TRAINING))
    samples, bad = TrainingSamples(dataset), {}
    for index in range(4):
        sample, problems = samples[SampleRequest(index, (0, 0, index, 0))]
        assert sample['data_samples'].img_path.endswith('d.tif')
        bad |= dict(problems)
    a, b, c = (bad[str(scenes / f'images/{name}.tif')] for name in 'abc')
    assert a == f'{NO_LABELS}: {scenes}/labels/a.tif'
    assert LABELS_OF_OTHER_SIZE in b and 'b.tif has 64x45 pixels, but' in b and '60x45' in b
    assert 'images/c.tif cannot be opened' in c
    evaluated = [dict(type='OpenLabels', may_be_empty=True) if t is LABELS else t for t in TRAINING]
    sample, problems = Samples(build('mmseg', segmentation(scenes, evaluated)))[0]
    assert sample['data_samples'].label_windows.labeled == 0 and problems == []


def test_the_check_of_a_dataset_reads_scenes(scenes):
    cfg = config_of(scenes, [OPEN, LABELS, PACK])
    report = check_dataset(cfg, ['train'], workers=1)
    assert report.findings == report.failures == [] and report.images == dict(train=4)
    spoil(scenes)
    labels = np.full(SIZE, 1, np.uint8)
    labels[0, 0] = 9
    tifffile.imwrite(scenes / 'labels/d.tif', labels)
    path = scenes / 'images/c.tif'  # its header is whole
    tifffile.imwrite(path, np.random.default_rng(0).integers(0, 9, (*SIZE, 3), np.uint8))
    path.write_bytes(path.read_bytes()[:-400])
    findings = {Path(f.file).stem: f for f in check_dataset(cfg, ['train'], workers=1).findings}
    assert findings['a'].kind == NO_LABELS and findings['a'].consequence == 'skipped'
    assert findings['b'].kind == LABELS_OF_OTHER_SIZE
    assert 'c.tif: rows 0 to 45 and columns 0 to 64 cannot be read' in findings['c'].detail
    assert findings['c'].consequence == 'stops the run'
    assert findings['d'].kind == NO_CLASS and findings['d'].detail.endswith('labels/d.tif has 9')


def test_other_formats_are_opened_as_by_their_loaders(tmp_path, image):
    Image.fromarray(image).save(tmp_path / 'a.png')
    opened = OpenImage()(dict(img_path=str(tmp_path / 'a.png')))['img']
    assert np.array_equal(opened.read(whole(image.shape[:2])), image)
    with pytest.raises(BadImageError, match=r'annotated size: 160x130 pixels instead of 160x131'):
        OpenImage()(dict(img_path=str(tmp_path / 'a.png'), width=160, height=131))


BANDS = dict(type='OpenImage', bands=dict(channels=5, rgb=(4, 2, 0)))


def test_images_of_other_bands(tmp_path):
    bands = np.random.default_rng(0).random((*SIZE, 5), np.float32)
    path = tmp_path / 'a.tif'
    tifffile.imwrite(path, bands, planarconfig='contig', photometric='minisblack')
    results = OpenImage(bands=BANDS['bands'])(dict(img_path=str(path)))
    assert np.array_equal(results['img'].read(WINDOW), bands[tuple(WINDOW)])
    assert isinstance(results['bands'], LoadMultiband) and results['bands'].rgb == (4, 2, 0)
    with pytest.raises(UserError, match=r'a\.tif has values of type float32, but the model needs'):
        OpenImage()(dict(img_path=str(path)))
    bands[30, 40] = np.inf
    tifffile.imwrite(path, bands, planarconfig='contig', photometric='minisblack')
    with pytest.raises(BadImageError, match=NOT_FINITE):
        loader = OpenImage(bands=BANDS['bands'])
        loader.read_through(loader(dict(img_path=str(path))))


RUNS = dict(size=[*SIZE], counts=[100, 50, 45 * 64 - 150])


@pytest.fixture
def detection(scenes) -> dict:
    """An image of three objects, the last of which is a crowd and reaches beyond the image."""
    polygons = [[10.5, 3, 30, 4, 20, 22.25]], [[40, 30, 50, 30, 50, 41], [2, 2, 9, 2, 5, 8]]
    boxes = [10.5, 3, 19.5, 19.25], [2, 2, 48, 39], [0, 0, 66, 20]
    annotations = [
        dict(id=i, image_id=1, category_id=1 + i % 2, bbox=[*box], segmentation=mask)
        for i, (box, mask) in enumerate(zip(boxes, [*polygons, RUNS], strict=True), 1)
    ]
    annotations[-1]['iscrowd'] = 1
    categories = [dict(id=i, name=name) for i, name in enumerate(('circle', 'square'), 1)]
    images = [dict(id=1, file_name='a.tif', height=45, width=64)]
    content = dict(images=images, annotations=annotations, categories=categories)
    (scenes / 'objects.json').write_text(json.dumps(content))
    return dict(
        type='CheckedCocoDataset',
        data_root=str(scenes),
        ann_file='objects.json',
        data_prefix=dict(img='images'),
        metainfo=dict(classes=('circle', 'square')),
        pipeline=[OPEN, dict(type='LoadObjects', with_mask=True), PACK],
    )


def test_a_scene_of_a_detector(detection):
    dataset = build('mmdet', detection)
    batch = pseudo_collate([dataset[0]])
    (sample,) = batch['data_samples']
    found, ignored = sample.gt_instances, sample.ignored_instances
    assert found.bboxes.tolist() == [[10.5, 3, 30, 22.25], [2, 2, 50, 41]]
    assert found.labels.tolist() == [1, 0] and found.labels.dtype.is_floating_point is False
    assert [len(parts) for parts in found.masks.masks] == [1, 2]
    assert (found.masks.height, found.masks.width) == SIZE
    assert ignored.bboxes.tolist() == [[0, 0, 64, 20]] and len(ignored.masks) == 1
    assert sample.img_id == 1 and sample.img_shape == SIZE and len(sample.instances) == 3


@pytest.mark.parametrize(
    ('flips', 'direction'),
    [
        (dict(horizontal=1, vertical=0), 'horizontal'),
        (dict(horizontal=0, vertical=1), 'vertical'),
        (dict(horizontal=1, vertical=1), 'diagonal'),
    ],
)
def test_objects_flip_as_by_mmdet(detection, flips, direction):
    flip = dict(type='FlipAndTurn', turn=0, **flips)
    dataset = build('mmdet', detection | dict(pipeline=[*detection['pipeline'][:2], flip, PACK]))
    sample = dataset[0]['data_samples']
    reference = dataset.get_data_info(0) | dict(img=np.zeros((*SIZE, 3)), img_shape=SIZE)
    reference['ori_shape'] = SIZE
    load = LoadAnnotations(with_mask=True, poly2mask=False)
    reference = RandomFlip(prob=1.0, direction=direction)(load(reference))
    assert sample.flip and sample.flip_direction == direction and 'instances' not in sample
    assert sample.gt_instances.bboxes.tolist() == reference['gt_bboxes'].tensor[:2].tolist()
    expected = [[p.tolist() for p in parts] for parts in reference['gt_masks'].masks[:2]]
    assert [[p.tolist() for p in parts] for parts in sample.gt_instances.masks.masks] == expected


def test_masks_turn_with_the_image(detection):
    pipeline = [*detection['pipeline'][:2], dict(type='FlipAndTurn', turn=1), PACK]
    dataset = build('mmdet', detection | dict(pipeline=pipeline))
    original = build('mmdet', detection)[0]['data_samples'].gt_instances
    masks = original.masks.to_ndarray().astype(bool)
    np.random.seed(0)
    for _ in range(6):
        sample = dataset[0]['data_samples']
        assert isinstance(sample.gt_instances.masks, PolygonMasks)
        assert sample.img_shape == SIZE[::-1]
        (flips,) = (k for k, name in DIRECTIONS.items() if name == sample.flip_direction)
        turned = sample.gt_instances.masks.to_ndarray().astype(bool)
        for mask, before in zip(turned, masks, strict=True):
            expected = Symmetry(True, *flips).array(before)
            # Masks of polygons are not symmetric at their edges.
            assert (mask & expected).sum() > 0.8 * (mask | expected).sum()


def test_run_lengths_of_an_object_are_refused(detection):
    path = Path(detection['data_root'], 'objects.json')
    content = json.loads(path.read_text())
    content['annotations'][1]['segmentation'] = RUNS
    path.write_text(json.dumps(content))
    _, (problem,) = Samples(build('mmdet', detection))[0]
    assert 'a.tif: the mask of object 2 of 3 is given by run lengths' in problem.reason
    without = [OPEN, dict(type='LoadObjects'), PACK]
    sample = build('mmdet', detection | dict(pipeline=without))[0]['data_samples']
    assert len(sample.gt_instances) == 2 and 'masks' not in sample.gt_instances


def test_a_model_of_scenes_predicts_images_in_memory(scenes, image):
    cfg = config_of(scenes, [OPEN, LABELS, PACK])
    require_framework('mmseg')
    with DefaultScope.overwrite_default_scope('mmseg'):
        pipeline = _test_pipeline(cfg, full_size=False)
    results = dict(img=image, img_path='', img_id=0)
    assert np.array_equal(pipeline(results)['inputs'].permute(1, 2, 0), image)


def test_the_loader_of_pictures_is_that_of_the_scenes(scenes):
    dataset = build('mmseg', segmentation(scenes, [BANDS, PACK]))
    assert image_loader(dataset).channels == 5
    dataset = build('mmseg', segmentation(scenes, TRAINING))
    assert type(image_loader(dataset)) is LoadImage
