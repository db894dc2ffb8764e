"""Folders of images and label images, for segmentors."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.in_process import call_tool
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from rasterio.transform import from_origin

from xcit_mm import UserError, load_model
from xcit_mm.base.environment import require_framework
from xcit_mm.config.load import load_config
from xcit_mm.data.drawings.shapes import draw_image, label_map
from xcit_mm.data.importers.color_table import read_colors
from xcit_mm.data.importers.write_masks import convert_masks
from xcit_mm.train import train

SIDE = 64
COLORS = np.array([(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)], np.uint8)
NAMES = ['background', 'circle', 'square', 'triangle']
TABLE = 'R G B name\n0 0 0 background\n#ff0000 circle\n0,255,0,square\ntriangle;0;0;255\n'
FEW_STEPS = {
    'train_cfg': dict(max_iters=2, val_interval=2),
    'default_hooks': dict(report=None, errors=None, pictures=None, stopping=None),
    'train_dataloader': dict(batch_size=2, num_workers=0, persistent_workers=False, timeout=0),
    'val_dataloader': dict(num_workers=0, persistent_workers=False, timeout=0),
    'log_level': 'WARNING',
}


def drawings(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images and their classes; each class is in one of the first ones."""
    rng = np.random.default_rng(0)
    drawn = [draw_image(rng, SIDE) for _ in range(number)]
    return [(image, label_map(shapes, SIDE) - 1) for image, shapes in drawn]


DRAWN = drawings(12)


def save(values: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def save_tiff(values: np.ndarray, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = np.moveaxis(np.atleast_3d(values), -1, 0)
    shape = dict(zip(('count', 'height', 'width'), bands.shape, strict=True), dtype=bands.dtype)
    place = dict(crs='EPSG:32632', transform=from_origin(5e5, 5e6, 0.5, 0.5))
    with rasterio.open(path, 'w', driver='GTiff', **shape, **place, **options) as file:
        file.write(bands)


@pytest.fixture
def images(tmp_path) -> Path:
    for number, (image, _) in enumerate(DRAWN):
        save(image, tmp_path / f'images/{number:02}.png')
    return tmp_path / 'images'


@pytest.fixture
def labeled(tmp_path) -> Callable[..., Path]:
    """Save the label images that a function makes of the classes."""

    def labeled(of_classes: Callable = np.asarray, end: str = '.png') -> Path:
        for number, (_, classes) in enumerate(DRAWN):
            save(of_classes(classes), tmp_path / f'labels/{number:02}{end}')
        return tmp_path / 'labels'

    return labeled


def converted(images: Path, labels: Path, **options: object) -> Path:
    """Return the config that is written for folders, in a folder next to them."""
    root = images.parent / 'own'
    convert_masks(images, labels, root, start='scratch', **options)
    return root / 'own.py'


def read(config: Path, split: str) -> tuple[list[str], list[np.ndarray], Mapping]:
    """Return the names of the images of a split, their classes as a run reads them, and more."""
    cfg = load_config(config)
    require_framework('mmseg')
    init_default_scope('mmseg')
    dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
    load = dataset.pipeline.transforms[:2] if split == 'train' else dataset.pipeline.transforms[:3]
    names, labels = [], []
    for index in range(len(dataset)):
        sample = dataset.get_data_info(index)
        names.append(Path(sample['img_path']).name)
        for transform in load:
            sample = transform(sample)
        labels.append(sample['gt_seg_map'])
    return names, labels, cfg


def test_numbers_of_classes_are_used_where_they_are(images, labeled, capsys):
    config = converted(images, labeled(end='_mask.png'), names=NAMES)
    names, labels, cfg = read(config, 'train')
    assert names == [f'{n:02}.png' for n in range(12) if n != 9]  # the tenth is held out
    assert all((a == DRAWN[int(n[:2])][1]).all() for n, a in zip(names, labels, strict=True))
    assert read(config, 'val')[0] == ['09.png'] and read(config, 'test')[0] == ['09.png']
    assert cfg.train_dataloader.dataset.reduce_zero_label is False
    assert cfg.train_pipeline[1].reduce_zero_label is False  # nothing is inherited
    assert [*cfg.classes] == NAMES and cfg.model.decode_head.num_classes == 4
    assert {p.name for p in config.parent.iterdir()} == {'own.py', 'train.txt', 'val.txt'}
    assert 'own' not in (config.parent / 'train.txt').read_text()  # and it can be moved
    printed = capsys.readouterr().out
    assert 'train.txt: 11 images: background 7' in printed and 'tools/train.py' in printed


def numbered(*values: int) -> list[str]:
    return [f'class_{value}' for value in values]


def mask(classes: np.ndarray) -> np.ndarray:
    return (classes > 0) * np.uint8(255)


def without_last(classes: np.ndarray) -> np.ndarray:
    return np.where(classes == 3, 255, classes).astype(np.uint8)


def reduced(classes: np.ndarray) -> np.ndarray:
    return np.where(classes, classes - 1, 255)


# What is made of the classes, the options, the classes that a run reads, and their names.
VALUES = {
    'mask': (mask, {}, lambda c: c > 0, numbered(0, 1)),
    'one bit': (lambda c: c > 0, {}, lambda c: c > 0, numbered(0, 1)),
    'steps': (lambda c: np.uint8([0, 50, 100, 150])[c], {}, np.asarray, numbered(0, 50, 100, 150)),
    'levels to 255': (lambda c: c * np.uint8(85), {}, np.asarray, numbered(0, 85, 170, 255)),
    'wide': (lambda c: np.uint16([7, 300, 2000, 9000])[c], {'names': NAMES}, np.asarray, NAMES),
    '16 bits': (np.uint16, {}, np.asarray, numbered(0, 1, 2, 3)),
    'RGB': (lambda c: np.stack([c] * 3, -1), {}, np.asarray, numbered(0, 1, 2, 3)),
    'ignored': (without_last, {'names': NAMES[:3]}, without_last, NAMES[:3]),
    'reduced': (np.asarray, {'reduces_zero': True}, reduced, numbered(1, 2, 3)),
    'reduced steps': (lambda c: c * 2, {'reduces_zero': True}, reduced, numbered(2, 4, 6)),
}


@pytest.mark.parametrize('kind', VALUES)
def test_values_become_classes(images, labeled, kind):
    of_classes, options, expected, names = VALUES[kind]
    config = converted(images, labeled(of_classes), **options)
    listed, labels, cfg = read(config, 'train')
    for name, label in zip(listed, labels, strict=True):
        np.testing.assert_array_equal(label, expected(DRAWN[int(name[:2])][1]))
    assert [*cfg.classes] == names
    reduces = cfg.train_dataloader.dataset.reduce_zero_label
    loads = cfg.train_pipeline[1], cfg.test_pipeline[2]
    assert type(reduces) is bool and all(t.reduce_zero_label is reduces for t in loads)


@pytest.mark.parametrize('has_palette', [False, True])
def test_colors_become_the_classes_of_a_table(images, labeled, tmp_path, has_palette):
    def of_classes(classes: np.ndarray) -> np.ndarray:
        return COLORS[np.where(classes == 3, 0, classes)]

    labels = labeled(of_classes)
    if has_palette:  # whose numbers are in another order
        for path in labels.iterdir():
            Image.open(path).quantize(3).save(path)
    table = tmp_path / 'colors.csv'
    table.write_text(TABLE)
    config = converted(images, labels, colors=table)
    names, read_labels, cfg = read(config, 'train')
    for name, label in zip(names, read_labels, strict=True):
        classes = DRAWN[int(name[:2])][1]
        np.testing.assert_array_equal(label, np.where(classes == 3, 0, classes))
    assert [*cfg.classes] == NAMES and [*map(tuple, cfg.metainfo.palette)] == [*map(tuple, COLORS)]
    assert cfg.train_dataloader.dataset.reduce_zero_label is False


def test_a_table_can_ignore_a_color_and_join_others(tmp_path):
    table = tmp_path / 'colors.txt'
    table.write_text(
        '# of our tool\n0 0 0 __ignore__\n1 2 3 dark green\n#010204 road\n9 9 9 road\n'
    )
    colors = read_colors(table)
    assert colors == {0: '__ignore__', 0x010203: 'dark green', 0x010204: 'road', 0x090909: 'road'}
    table.write_text('0 0 0 road\n0 0 300 sea\n')
    with pytest.raises(UserError, match=r"colors\.txt:2: '0 0 300 sea' is not a color"):
        read_colors(table)


def test_folders_of_splits_are_used_on_either_side(tmp_path):
    for number, (image, classes) in enumerate(DRAWN):
        split = 'training' if number % 2 else 'validation'
        save(image, tmp_path / f'images/{split}/north/{number}.JPG')
        save(classes, tmp_path / f'labels/north/{number}-labels.png')
    config = converted(tmp_path / 'images', tmp_path / 'labels')
    assert (config.parent / 'val.txt').read_text().splitlines() == [
        f'validation/north/{number}' for number in (0, 10, 2, 4, 6, 8)
    ]
    assert len(read(config, 'train')[1]) == 6


def test_a_second_call_sets_the_first_aside(images, labeled, capsys):
    config = converted(images, labeled(mask))
    converted(images, images.parent / 'labels')
    assert 'Everything was already there' in capsys.readouterr().out
    converted(images, labeled(), names=NAMES)
    assert not any((config.parent / 'class_labels').glob('*.png'))
    (aside,) = config.parent.glob('earlier_*')
    assert len([*aside.rglob('*.png')]) == 12


def jpeg(classes: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray((classes > 0) * np.uint8(255)).save(file, 'JPEG')
    return np.asarray(Image.open(file))


def one_pixel_of_another_color(classes: np.ndarray) -> np.ndarray:
    colors = COLORS[classes]
    colors[0, 0] = 1, 2, 3
    return colors


# What is made of the classes, the end of the names, the options, and what the error says.
BAD = {
    'more values': (
        np.asarray,
        '.png',
        {'names': NAMES[:2]},
        'the value 2 is not a class: the labels have the 4 values 0, 1, 2, 3, but --classes nam',
    ),
    'zero': (np.asarray, '.png', {'names': NAMES[:3]}, 'pass --reduce-zero-label'),
    'single': (np.zeros_like, '.png', {'names': NAMES}, r'a single class \(0; 255 is ignored\)'),
    'soft': (jpeg, '.png', {}, r'a mask with soft edges, .*: set values below 128 to 0'),
    'JPEG': (mask, '.jpg', {}, 'a JPEG file, whose compression changes the numbers'),
    'objects': (lambda c: c * np.uint16(500), '.png', {}, 'the value 1500 is not a number of a c'),
    'colors': (
        lambda c: COLORS[c],
        '.png',
        {},
        'all 12 label images have colors instead of numbers: .*--colors FILE',
    ),
    'other color': (
        one_pixel_of_another_color,
        '.png',
        {'colors': TABLE},
        r'00\.png has 1 color that .*colors\.csv lacks, such as 1 2 3 \(1 pixels\): add all',
    ),
    'JPEG of colors': (lambda c: COLORS[c], '.jpg', {'colors': TABLE}, 'compression changes col'),
    'other class': (
        lambda c: COLORS[c],
        '.png',
        {'colors': TABLE, 'names': ['sea', *NAMES]},
        r'the class sea is not in .*colors\.csv',
    ),
    'size': (lambda c: c[:32], '.png', {}, r'12 images or labels .*64x32 pixels, but .* has 64x64'),
    'names': (np.asarray, '_of_b.png', {}, r'none of the 12 labels in .* matches an image'),
}


@pytest.mark.parametrize('kind', BAD)
def test_bad_labels_are_a_sentence_and_nothing_is_written(images, labeled, tmp_path, capsys, kind):
    of_classes, end, options, message = BAD[kind]
    if 'colors' in options:
        (tmp_path / 'colors.csv').write_text(options['colors'])
        options = options | dict(colors=tmp_path / 'colors.csv')
    labels = labeled(of_classes, end)
    with pytest.raises(UserError, match=message):
        converted(images, labels, **options)
    if kind == 'colors':
        assert '255 0 0 NAME' in capsys.readouterr().out.splitlines()
    assert not any((tmp_path / 'own').glob('*'))


def test_pairs_that_cannot_be_used_are_named_or_left_out(images, labeled, monkeypatch, capfd):
    labels = labeled()
    save(DRAWN[0][1], labels / 'alone.png')
    (labels / '03.png').write_bytes(b'')
    save(COLORS[DRAWN[4][1]], labels / '04.png')
    arguments = ('prepare_data.py', 'masks', images, labels, '--root', images.parent / 'own')
    arguments = (*arguments, '--start', 'scratch', '--classes', ','.join(NAMES))
    code, printed, error = call_tool(monkeypatch, capfd, *arguments)
    assert code == 2 and '3 images or labels cannot be used, such as' in error
    assert 'alone.png: no image in' in printed and '03.png' in printed
    assert '04.png: its classes are colors' in printed
    assert not (images.parent / 'own').exists()
    code, printed, _ = call_tool(monkeypatch, capfd, *arguments, '--skip-bad')
    assert code == 0 and 'the images or labels are left out: 3' in printed
    assert not {'03', '04'} & {*read(images.parent / 'own/own.py', 'train')[0]}


def test_one_image_is_too_few_and_a_missing_class_is_named(tmp_path, capsys):
    folders = tmp_path / 'images', tmp_path / 'labels'
    save(DRAWN[0][0], folders[0] / 'a.png')
    save(DRAWN[0][1], folders[1] / 'a.png')
    with pytest.raises(UserError, match=r'a\.png is the only image with a label'):
        converted(*folders)
    save(DRAWN[1][0], folders[0] / 'b.png')
    save(DRAWN[1][1], folders[1] / 'b.png')
    converted(*folders, names=[*NAMES, 'hexagon'])
    assert 'hexagon, which cannot be learned' in capsys.readouterr().out


def test_other_bands_get_their_statistics(tmp_path):
    values = []
    for number, (image, classes) in enumerate(DRAWN[:4]):
        bands = np.concatenate([image, image[..., :2]], -1).astype(np.uint16) * 9
        save_tiff(bands, tmp_path / f'images/{number}.tif')
        save_tiff(classes, tmp_path / f'labels/{number}.tif')
        values.append(bands.reshape(-1, 5))
    with pytest.raises(UserError, match=r'--start ade20k has weights for 3 bands, .* have 5'):
        convert_masks(tmp_path / 'images', tmp_path / 'labels', tmp_path / 'own', start='ade20k')
    config = converted(tmp_path / 'images', tmp_path / 'labels')
    cfg = load_config(config)
    preprocessor = cfg.model.data_preprocessor
    assert preprocessor.mean == pytest.approx(np.concatenate(values[:3]).mean(0), rel=1e-4)
    assert preprocessor.std == pytest.approx(np.concatenate(values[:3]).std(0), rel=1e-4)
    assert cfg.model.backbone.in_channels == 5 and cfg.train_pipeline[0].channels == 5
    assert {p.name for p in config.parent.iterdir()} == {'own.py', 'train.txt', 'val.txt'}
    save(DRAWN[4][0], tmp_path / 'images/4.png')
    save(DRAWN[4][1], tmp_path / 'labels/4.png')
    with pytest.raises(UserError, match=r'has 5 bands of uint16, but .*4\.png has no bands'):
        converted(tmp_path / 'images', tmp_path / 'labels')
    (tmp_path / 'images/4.png').unlink()
    save_tiff(bands.astype(np.uint8), tmp_path / 'images/4.tif')
    with pytest.raises(UserError, match=r'of uint16, but .*4\.tif has 5 of uint8'):
        converted(tmp_path / 'images', tmp_path / 'labels')


def run(config: Path, work_dir: Path) -> Path:
    """Train two steps, and return the checkpoint."""
    train(str(config), str(work_dir), options={**FEW_STEPS, 'param_scheduler': []})
    return work_dir / 'iter_2.pth'


def test_a_written_config_trains_and_predicts(images, labeled, tmp_path):
    config = converted(images, labeled(mask), names=['no', 'yes'])
    model = load_model(str(config), str(run(config, tmp_path / 'run')), device='cpu')
    predicted = model.predict(DRAWN[0][0])
    assert model.classes == ('no', 'yes') and {*np.unique(predicted.labels)} <= {0, 1}


def test_windows_of_large_images_are_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr('xcit_mm.data.importers.read_masks.MAX_SIDE', 100)
    for number in range(3):
        pair = [np.concatenate(parts) for parts in zip(*DRAWN[:2], strict=True)]
        save_tiff(pair[0], tmp_path / f'images/{number}.tif', photometric='RGB')
        save_tiff((pair[1] > 0) * np.uint8(255), tmp_path / f'labels/{number}_gt.tif')
    config = converted(tmp_path / 'images', tmp_path / 'labels')
    cfg = load_config(config)
    assert cfg.train_dataloader.dataset.type == 'SceneWindows'
    assert cfg.val_dataloader.dataset.type == 'Scenes' and cfg.stream.train is False
    with rasterio.open(config.parent / 'class_labels/0.tif') as file:
        assert file.crs == 'EPSG:32632' and {*np.unique(file.read(1))} == {0, 1}
    model = load_model(str(config), str(run(config, tmp_path / 'run')), device='cpu')
    labels = model.predict_large(str(tmp_path / 'images/0.tif')).labels
    assert labels.shape == (128, 64) and {*np.unique(labels)} <= {0, 1}
