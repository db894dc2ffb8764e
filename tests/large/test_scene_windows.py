"""Windows that are drawn from scenes: what they show, how often, and scenes that are refused."""

import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from helpers.tiff import write_tiff
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from rasterio.transform import Affine
from rasterio.warp import transform_geom
from shapely.geometry import mapping, shape

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.base.geometry import Window, whole
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import check_dataset
from xcit_mm.data.audit.band_statistics import band_statistics
from xcit_mm.data.datasets.samples import SampleRequest, TrainingSamples
from xcit_mm.data.transforms.decode import SampleError
from xcit_mm.large.data import drawn_windows, scene_transforms
from xcit_mm.large.data.read_window import ReadWindow
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.image_views import RGBImage
from xcit_mm.large.files.open_image import open_image

UTM = rasterio.CRS.from_epsg(32632)


MAP = dict(crs=UTM, transform=Affine(0.5, 0, 5e5, 0, -0.5, 5e6))

CLASSES = ('field', 'road', 'water')
METAINFO = dict(classes=CLASSES)
SIZES = {'a': (150, 211), 'b': (97, 64)}
SIDE = 48
SEGMENTOR = [dict(type='ReadWindow'), dict(type='PackSegInputs')]
LOAD_OBJECTS = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
DETECTOR = [dict(type='ReadWindow'), LOAD_OBJECTS, dict(type='PackDetInputs')]
BOXES = {
    'a': [(10, 20, 40, 50), (100, 30, 108, 39), (60, 90, 190, 140), (5, 100, 15, 110)],
    'b': [(3, 3, 20, 22), (30, 50, 60, 90)],
}
KINDS = {'a': [0, 1, 2, 0], 'b': [2, 0]}


def write_raster(path: Path, values: np.ndarray, **options) -> None:
    write_tiff(path, values, tiled=True, blockxsize=32, blockysize=32, **options)


def polygons(name: str) -> list[tuple[object, str]]:
    """The boxes of a scene with one corner cut off, and their classes."""
    shapes = []
    for left, top, right, bottom in BOXES[name]:
        corners = [(left, top), (right, top), (right, bottom), (left + 3, bottom), (left, top + 3)]
        shapes.append(shapely.Polygon(corners))
    return [(s, CLASSES[k]) for s, k in zip(shapes, KINDS[name], strict=True)]


def write_geojson(path: Path, features: list[tuple[object, str]]) -> None:
    listed = [
        dict(type='Feature', properties={'class': name}, geometry=mapping(s))
        for s, name in features
    ]
    path.write_text(json.dumps(dict(type='FeatureCollection', features=listed)))


@pytest.fixture
def root(tmp_path) -> Path:
    """Two scenes, with labels as images and as polygons; water is rare."""
    random = np.random.default_rng(0)
    for folder in ('images', 'labels', 'objects'):
        (tmp_path / folder).mkdir()
    for name, size in SIZES.items():
        write_raster(tmp_path / f'images/{name}.tif', random.integers(0, 256, (*size, 3), np.uint8))
        labels = random.choice([0, 1, 255], size, p=[0.7, 0.2, 0.1]).astype(np.uint8)
        if name == 'a':
            labels[140:143, 200:204] = 2
        write_raster(tmp_path / f'labels/{name}.tif', labels)
        write_geojson(tmp_path / f'objects/{name}.geojson', polygons(name))
    return tmp_path


def build(root: Path, scope: str = 'mmseg', labels: str = 'labels', **values):
    require_framework(scope)
    config = dict(
        type='SceneWindows',
        data_root=str(root),
        data_prefix=dict(img='images', labels=labels),
        metainfo=METAINFO,
        window=SIDE,
        pipeline=SEGMENTOR if scope == 'mmseg' else DETECTOR,
    )
    if labels == 'objects':
        config['label_suffix'] = '.geojson'
    if scope == 'mmdet':
        config['with_objects'] = True
    with DefaultScope.overwrite_default_scope(scope):
        return DATASETS.build(config | values)


def detector(root: Path, **values):
    return build(root, 'mmdet', 'objects', **values)


class Recorded:
    """The windows that a dataset draws, in order."""

    def __init__(self, monkeypatch) -> None:
        self.windows: list[tuple[str, Window]] = []
        original = ReadWindow.__call__

        def record(transform, results):
            self.windows.append((Path(results['img_path']).stem, results['window']))
            return original(transform, results)

        monkeypatch.setattr(ReadWindow, '__call__', record)


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[str, Window]]:
    return Recorded(monkeypatch).windows


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        return np.moveaxis(file.read(), 0, -1)


@pytest.mark.parametrize('balanced', [False, True])
def test_a_sample_is_the_window_of_the_files(root, drawn, balanced):
    dataset = build(root, balanced=balanced, length=30, test_mode=True)
    assert len(dataset) == 30
    for index in range(30):
        sample = dataset[index]
        name, window = drawn[-1]
        image, labels = (read(root / folder / f'{name}.tif') for folder in ('images', 'labels'))
        assert window.size == (SIDE, SIDE)
        expected = image[tuple(window)][..., ::-1]  # as of LoadImage
        assert np.array_equal(sample['inputs'].permute(1, 2, 0), expected)
        found = sample['data_samples'].gt_sem_seg.data[0]
        assert np.array_equal(found, labels[tuple(window)][..., 0])
        assert sample['data_samples'].img_path == str(root / f'images/{name}.tif')
    assert {name for name, _ in drawn} == {'a', 'b'}


@pytest.mark.parametrize('balanced', [False, True])
def test_a_sample_has_the_objects_in_its_window(root, drawn, balanced):
    dataset = detector(root, balanced=balanced, length=40, min_visible=0.4)
    cut = 0
    for index in range(40):
        sample = dataset[index]['data_samples']
        name, window = drawn[-1]
        left, top = window.columns.start, window.rows.start
        outer = shapely.box(left, top, window.columns.stop, window.rows.stop)
        kept, ignored = [], []
        for polygon, kind in polygons(name):
            part = shapely.affinity.translate(polygon & outer, -left, -top)
            group = kept if part.area >= 0.4 * polygon.area else ignored
            group += [(part, CLASSES.index(kind))] if part.area else []
        for instances, expected in (
            (sample.gt_instances, kept),
            (sample.ignored_instances, ignored),
        ):
            assert instances.labels.tolist() == [label for _, label in expected]
            bounds = np.reshape([part.bounds for part, _ in expected], (-1, 4))
            assert np.allclose(instances.bboxes.tensor, bounds, atol=1e-4)
            assert isinstance(instances.masks, BitmapMasks)
            for mask, (part, _) in zip(instances.masks.masks, expected, strict=True):
                assert mask.sum() == pytest.approx(part.area, abs=part.length)
        cut += len(ignored)
    assert cut


def test_classes_are_drawn_equally_often_if_asked(root, drawn):
    shown = {}
    for balanced in (False, True):
        dataset, shows = build(root, balanced=balanced, test_mode=True), Counter()
        for index in range(200):
            labels = dataset[index]['data_samples'].gt_sem_seg.data
            shows.update(CLASSES[i] for i in labels.unique() if i < 3)
        shown[balanced] = shows['water']
    assert shown[False] < 40 < 55 < shown[True]  # of 200, of which a third shows it on purpose
    assert {name for name, _ in drawn} == {'a', 'b'}


@pytest.mark.parametrize(
    ('shown', 'size', 'expected'),
    [
        (None, 11, range(8)),
        (None, 4, range(1)),
        (slice(0, 1), 11, range(1)),
        (slice(5, 7), 11, range(3, 6)),
        (slice(10, 11), 11, range(7, 8)),
        (slice(2, 10), 11, range(3, 7)),  # larger than the window: its middle
    ],
)
def test_all_places_that_show_something_are_equally_likely(shown, size, expected):
    rng = np.random.default_rng(0)
    spans = [drawn_windows._placed(shown, 4, size, rng) for _ in range(800)]
    starts = Counter(span.start for span in spans)
    assert {span.stop - span.start for span in spans} == {4}
    assert sorted(starts) == [*expected]
    assert min(starts.values()) > 0.6 * 800 / len(expected)


@pytest.mark.parametrize('labels', ['labels', 'objects'])
def test_windows_follow_from_the_position_in_the_run(root, drawn, labels):
    scope = 'mmseg' if labels == 'labels' else 'mmdet'
    first = TrainingSamples(build(root, scope, labels, balanced=True))
    requests = [SampleRequest(i % 5, (0, 0, i, 3)) for i in range(12)]
    expected = [first[request][0]['inputs'] for request in requests]
    windows = drawn.copy()
    assert len({repr(w) for w in windows}) > 8  # equal indices show different windows
    second = pickle.loads(pickle.dumps(first))  # as for a data worker
    drawn.clear()
    for i in (7, 2, 11, 0):
        assert second[requests[i]][0]['inputs'].equal(expected[i])
    assert drawn == [windows[i] for i in (7, 2, 11, 0)]


def test_polygons_become_labels(root, drawn):
    dataset = build(root, labels='objects', background='field')
    for index in range(20):
        labels = dataset[index]['data_samples'].gt_sem_seg.data[0].numpy()
        name, window = drawn[-1]
        expected = np.zeros(SIZES[name], np.uint8)
        for polygon, kind in sorted(polygons(name), key=lambda p: CLASSES.index(p[1])):
            rows, columns = np.indices(expected.shape)
            inside = shapely.contains_xy(polygon, columns + 0.5, rows + 0.5)
            expected[inside] = CLASSES.index(kind)
        assert np.array_equal(labels, expected[tuple(window)])
    assert dataset.scenes()[0]['label_windows'].labeled == 150 * 211
    without = build(root, labels='objects').scenes()[0]['label_windows']
    assert 0 < without.labeled < 150 * 211


def coco(root: Path, **first) -> str:
    """Write the objects in COCO's format, and return the name of the file."""
    images, annotations = [], []
    for number, (name, (height, width)) in enumerate(SIZES.items(), 1):
        images.append(dict(id=number, file_name=f'{name}.tif', height=height, width=width))
        for polygon, kind in polygons(name):
            left, top, right, bottom = polygon.bounds
            ring = shapely.get_coordinates(polygon)[:-1].ravel().tolist()
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=number,
                    category_id=CLASSES.index(kind) + 7,
                    segmentation=[ring],
                    bbox=[left, top, right - left, bottom - top],
                    area=polygon.area,
                    iscrowd=0,
                )
            )
    annotations[0] |= first
    categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, 7)]
    content = dict(images=images, annotations=annotations, categories=categories)
    (root / 'objects.json').write_text(json.dumps(content))
    return 'objects.json'


def test_a_coco_file_has_the_same_objects_and_labels(root):
    for scope in ('mmdet', 'mmseg'):
        first = build(root, scope, 'objects', length=6, test_mode=True)
        second = build(root, scope, ann_file=coco(root), length=6, test_mode=True)
        for index in range(6):
            a, b = (dataset[index] for dataset in (first, second))
            assert a['inputs'].equal(b['inputs'])
            if scope == 'mmseg':
                pair = (s['data_samples'].gt_sem_seg.data for s in (a, b))
            else:
                pair = (s['data_samples'].gt_instances.bboxes.tensor for s in (a, b))
            assert np.array_equal(*pair)


def test_crowds_are_ignored(root):
    runs = dict(size=[150, 211], counts=[0, 150 * 211])
    dataset = build(root, 'mmdet', ann_file=coco(root, iscrowd=1, segmentation=runs))
    assert dataset.data_list[0]['polygons'].are_ignored.tolist() == [True, False, False, False]
    with pytest.raises(UserError, match=r'annotation 1: its mask is given by run lengths, which'):
        build(root, 'mmdet', ann_file=coco(root, segmentation=runs))


@pytest.mark.parametrize('scope', ['mmseg', 'mmdet'])
def test_scenes_that_are_smaller_are_padded(root, drawn, scope):
    fill = (9.4, 20.0, 255.0)
    pipeline = SEGMENTOR if scope == 'mmseg' else DETECTOR
    pipeline = [dict(type='ReadWindow', fill=fill), *pipeline[1:]]
    labels = 'labels' if scope == 'mmseg' else 'objects'
    dataset = build(root, scope, labels, window=(120, 80), pipeline=pipeline)
    for index in range(30):
        sample = dataset[index]
        name, window = drawn[-1]
        assert sample['inputs'].shape[1:] == (120, 80)
        if name == 'a':
            assert window.size == (120, 80)
            continue
        assert window == whole(SIZES['b'])
        padding = np.ones((120, 80), bool)
        padding[:97, :64] = False
        assert {*map(tuple, sample['inputs'].permute(1, 2, 0)[padding].tolist())} == {(255, 20, 9)}
        if scope == 'mmseg':
            assert (sample['data_samples'].gt_sem_seg.data[0][padding] == 255).all()
        else:
            assert len(sample['data_samples'].gt_instances) == 2


class WithGaps(Array):
    """An image without data in its left part."""

    has_gaps, columns = True, 100

    def valid(self, window: Window) -> np.ndarray | None:
        columns = np.arange(window.columns.start, window.columns.stop)
        return np.broadcast_to(columns >= self.columns, window.size)


@pytest.fixture
def gaps(root, monkeypatch) -> Path:
    """The first scene alone, with NaN where it has no data."""
    for folder in ('images', 'labels', 'objects'):
        next((root / folder).glob('b.*')).unlink()

    def opened(path, *args):
        values = read(root / 'images/a.tif').astype(np.float32)
        values[:, : WithGaps.columns] = np.nan
        return WithGaps(values, str(path))

    monkeypatch.setattr(scene_transforms, 'open_image', opened)
    return root


BANDS = dict(type='ReadWindow', bands=dict(channels=3), fill=(1.5, -2.0, 3.0))


@pytest.mark.parametrize('balanced', [False, True])
def test_windows_have_enough_data_and_the_rest_is_filled_and_ignored(gaps, drawn, balanced):
    dataset = build(gaps, pipeline=[BANDS, SEGMENTOR[1]], balanced=balanced, min_valid=0.75)
    shares = set()
    for index in range(40):
        sample = dataset[index]
        window = drawn[-1][1]
        is_valid = np.arange(window.columns.start, window.columns.stop) >= WithGaps.columns
        assert is_valid.mean() >= 0.75
        shares.add(is_valid.mean())
        expected = read(gaps / 'images/a.tif')[tuple(window)].astype(np.float32)
        expected[:, ~is_valid] = BANDS['fill']
        assert np.array_equal(sample['inputs'].permute(1, 2, 0), expected)
        labels = sample['data_samples'].gt_sem_seg.data[0]
        assert (labels[:, ~is_valid] == 255).all()
        assert (labels[:, is_valid] != 255).any()
    assert len(shares) > 1


def test_objects_without_data_are_ignored(gaps, monkeypatch, drawn):
    objects = [*polygons('a'), (shapely.box(70, 10, 90, 140), 'water')]
    write_geojson(gaps / 'objects/a.geojson', objects)
    dataset = detector(gaps, pipeline=[BANDS, *DETECTOR[1:]], min_visible=0, min_valid=0.2)
    ignored = 0
    for index in range(60):
        sample = dataset[index]['data_samples']
        left = drawn[-1][1].columns.start
        assert (sample.gt_instances.bboxes.tensor[:, 2] + left > WithGaps.columns).all()
        assert (sample.ignored_instances.bboxes.tensor[:, 2] + left <= WithGaps.columns).all()
        ignored += len(sample.ignored_instances)
    assert ignored
    monkeypatch.setattr(WithGaps, 'columns', 211)
    with pytest.raises(SampleError) as refused:
        detector(gaps, pipeline=[BANDS, *DETECTOR[1:]])[0]
    assert str(refused.value.cause) == drawn_windows.NO_DATA
    assert refused.value.file == str(gaps / 'images/a.tif')


def test_only_pixels_with_data_count_in_the_statistics(gaps, tmp_path):
    dataset = dict(type='SceneWindows', data_root=str(gaps), pipeline=[BANDS], window=SIDE)
    dataset |= dict(data_prefix=dict(img='images', labels='labels'), metainfo=METAINFO)
    file = tmp_path / 'config.py'
    file.write_text(f"default_scope = 'mmseg'\ntrain_dataloader = dict(dataset={dataset!r})")
    found = band_statistics(load_config(file), workers=1)
    pixels = read(gaps / 'images/a.tif')[:, WithGaps.columns :].reshape(-1, 3).astype(float)
    assert found.pixels == len(pixels)
    assert np.allclose(found.mean, pixels.mean(axis=0), rtol=1e-12)
    assert np.allclose(found.std, pixels.std(axis=0), rtol=1e-12)


def relabeled(value: int):
    return lambda root: write_raster(root / 'labels/a.tif', np.full(SIZES['a'], value, np.uint8))


def turned(root: Path) -> None:
    write_raster(root / 'labels/a.tif', np.zeros((211, 150), np.uint8))


REFUSED = {
    'size': (
        turned,
        {},
        r'labels/a\.tif is for 150x211 pixels, but .*images/a\.tif has 211x150: write',
    ),
    'class': (relabeled(3), {}, r'labels/a\.tif: the label 3 is outside 0\.\.2, the 3 classes'),
    'missing': (
        lambda root: (root / 'labels/b.tif').unlink(),
        {},
        r'labels/b\.tif with the labels of .*images/b\.tif is missing: write it, or set labels in',
    ),
    'rare class': (
        relabeled(0),
        dict(balanced=True),
        'balanced=True, but no scene in .*images has the class water: write balanced=False, or',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_scenes_that_cannot_be_used_are_refused_before_the_first_step(root, case):
    spoil, values, message = REFUSED[case]
    spoil(root)
    with pytest.raises(UserError, match=message):
        build(root, **values)


def test_a_detector_needs_objects_and_a_coco_file_the_size_of_its_images(root):
    for name in SIZES:
        write_geojson(root / f'objects/{name}.geojson', [])
    with pytest.raises(UserError, match=r'none of the 2 scenes in .*images has an object'):
        detector(root)
    file = coco(root)
    content = json.loads((root / file).read_text())
    content['images'][1]['width'] = 65
    (root / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r'objects\.json is for 65x97 pixels, but .* has 64x97'):
        build(root, 'mmdet', ann_file=file)


def test_a_geopackage_in_another_reference_system_has_the_same_objects(root, drawn):
    expected = detector(root, length=5, test_mode=True)
    samples = [expected[i] for i in range(5)]
    for name, size in SIZES.items():
        write_raster(root / f'images/{name}.tif', np.zeros((*size, 3), np.uint8), **MAP)
        moved = []
        for polygon, _ in polygons(name):
            on_map = shapely.transform(polygon, lambda p: p * (0.5, -0.5) + (5e5, 5e6))
            moved.append(shape(transform_geom(UTM, 'EPSG:4326', mapping(on_map))))
        pyogrio.raw.write(
            root / f'objects/{name}.gpkg',
            np.array([shapely.to_wkb(s) for s in moved], object),
            [np.array([kind for _, kind in polygons(name)], object)],
            ['class'],
            geometry_type='Polygon',
            crs='EPSG:4326',
            driver='GPKG',
        )
    dataset = detector(root, label_suffix='.gpkg', length=5, test_mode=True)
    for index, sample in enumerate(samples):
        found, wanted = dataset[index]['data_samples'], sample['data_samples']
        assert found.gt_instances.labels.equal(wanted.gt_instances.labels)
        pair = (s.gt_instances.bboxes.tensor for s in (found, wanted))
        assert np.allclose(*pair, atol=1e-2)


def test_16_bits_have_the_values_of_a_prediction(root, drawn):
    for name, size in SIZES.items():
        values = np.random.default_rng(1).integers(0, 2**16, (*size, 3), np.uint16)
        write_raster(root / f'images/{name}.tif', values)
    sample = build(root)[3]
    name, window = drawn[-1]
    expected = RGBImage(open_image(root / f'images/{name}.tif', None)).read(window)
    assert np.array_equal(sample['inputs'].permute(1, 2, 0), expected[..., ::-1])


@pytest.mark.parametrize('suffix', ['.png', '.npy'])
def test_labels_are_read_from_other_formats(root, suffix, drawn):
    for name in SIZES:
        labels = read(root / f'labels/{name}.tif')[..., 0]
        if suffix == '.png':
            Image.fromarray(labels).save(root / f'labels/{name}.png')
        else:
            np.save(root / f'labels/{name}.npy', labels)
    expected, dataset = (
        build(root, test_mode=True),
        build(root, test_mode=True, label_suffix=suffix),
    )
    for index in range(8):
        pair = (d[index]['data_samples'].gt_sem_seg.data for d in (expected, dataset))
        assert np.array_equal(*pair)


def test_the_check_of_a_dataset_reads_the_scenes(root, tmp_path):
    scenes = dict(
        data_root=str(root),
        data_prefix=dict(img='images', labels='labels'),
        metainfo=METAINFO,
    )
    loader = dict(dataset=dict(type='SceneWindows', window=SIDE, pipeline=SEGMENTOR, **scenes))
    file = tmp_path / 'config.py'
    text = [
        f'train_dataloader = {loader!r}',
        "default_scope = 'mmseg'",
        'max_bad_share = 0.01',
        'model = dict(decode_head=dict(num_classes=3))',
    ]
    file.write_text('\n'.join(text))
    report = check_dataset(load_config(file), ('train',), workers=1)
    assert report.images == {'train': 2} and report.failures == []
    data = (root / 'images/a.tif').read_bytes()
    (root / 'images/a.tif').write_bytes(data[: len(data) // 2])
    report = check_dataset(load_config(file), ('train',), workers=1)
    assert [finding.file for finding in report.findings] == [str(root / 'images/a.tif')]
    assert report.failures
