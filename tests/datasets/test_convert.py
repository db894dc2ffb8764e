"""Datasets of VOC and YOLO are what they were as COCO's, and what is wrong with them is named."""

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.other_layouts import make_voc, make_yolo, read_coco, voc_object, write_xml
from helpers.planted import rotated
from mmengine.config import Config
from mmengine.registry import DATASETS
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm import UserError, environment
from xcit_mm.datasets.check import check_dataset
from xcit_mm.datasets.convert import convert, image_size
from xcit_mm.datasets.images import decode
from xcit_mm.datasets.voc import VocDataset
from xcit_mm.datasets.yolo import YoloDataset
from xcit_mm.engine.config.load import load_config

BASE = ROOT / 'configs/faster_rcnn_xcit_n12_16_small.py'
MAKERS = {
    'voc': lambda shapes, root: VocDataset(make_voc(shapes, root)),
    'yolo': lambda shapes, root: YoloDataset(make_yolo(shapes, root)),
    'polygons': lambda shapes, root: YoloDataset(make_yolo(shapes, root, with_polygons=True)),
}


@pytest.fixture(scope='module')
def layouts(shapes_root, tmp_path_factory) -> dict[str, Path]:
    """The shapes in each layout, converted into the folder ``name`` beside ``name_there``."""
    root = tmp_path_factory.mktemp('layouts')
    for name, make in MAKERS.items():
        convert(make(shapes_root, root / f'{name}_there'), root / name, BASE, say=lambda line: None)
    return {name: root / name for name in MAKERS}


def written(root: Path, split: str) -> dict:
    return json.loads((root / f'{split}.json').read_text())


@pytest.mark.parametrize('split', ['train', 'val'])
@pytest.mark.parametrize('name', MAKERS)
def test_images_classes_and_objects_are_those_of_the_original(layouts, shapes_root, name, split):
    content, original = written(layouts[name], split), read_coco(shapes_root, split)
    assert content['categories'] == original['categories']
    sizes = [(Path(i['file_name']).name, i['width'], i['height']) for i in content['images']]
    assert sizes == [(i['file_name'], i['width'], i['height']) for i in original['images']]
    stems = {image['id']: Path(image['file_name']).stem for image in content['images']}
    assert len(content['annotations']) == len(original['annotations'])
    for new, old in zip(content['annotations'], original['annotations'], strict=True):
        assert int(stems[new['image_id']]) == old['image_id']
        assert (new['category_id'], new['iscrowd']) == (old['category_id'], 0)
        assert new['bbox'] == pytest.approx(old['bbox'], abs=0.011)
        if name == 'polygons':
            assert new['segmentation'][0] == pytest.approx(old['segmentation'][0], abs=1e-3)
            assert new['area'] == pytest.approx(old['area'], rel=1e-3)
        else:
            assert new['area'] == pytest.approx(old['bbox'][2] * old['bbox'][3], rel=1e-2)


@pytest.mark.parametrize('name', MAKERS)
def test_detections_have_the_same_average_precision(layouts, shapes_root, name):
    original = read_coco(shapes_root, 'train')
    ids = {image['file_name']: image['id'] for image in original['images']}
    content = written(layouts[name], 'train')
    ids = {ids[Path(image['file_name']).name]: image['id'] for image in content['images']}
    found = jittered(original)
    same = [detection | dict(image_id=ids[detection['image_id']]) for detection in found]
    precision = average_precision(original, found)
    assert 0.3 < precision[0] < 0.9
    assert average_precision(content, same) == pytest.approx(precision, abs=1e-9)


def jittered(content: dict) -> list[dict]:
    """Detections: objects that are moved, some of them of another class."""
    rng = random.Random(0)
    return [
        dict(
            image_id=annotation['image_id'],
            category_id=annotation['category_id'] if rng.random() < 0.9 else rng.randint(1, 3),
            bbox=[value + rng.uniform(-4, 4) for value in annotation['bbox']],
            score=rng.random(),
        )
        for annotation in content['annotations']
    ]


def average_precision(content: dict, detections: list[dict]) -> list[float]:
    """AP, AP50, AP75 and the average recalls of all sizes."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        for annotation in truth.anns.values():  # loadRes changes nothing of it
            annotation.setdefault('segmentation', [])
        evaluation = COCOeval(truth, truth.loadRes([dict(d) for d in detections]), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [*evaluation.stats[:3], *evaluation.stats[6:9]]


def test_integers_of_voc_are_off_by_less_than_a_pixel(shapes_root, tmp_path):
    convert(VocDataset(make_voc(shapes_root, tmp_path / 'voc', round)), tmp_path / 'out', BASE)
    new = written(tmp_path / 'out', 'train')['annotations']
    old = read_coco(shapes_root, 'train')['annotations']
    for a, b in zip(new, old, strict=True):
        (x, y, w, h), (u, v, r, s) = a['bbox'], b['bbox']
        assert (x, y, x + w, y + h) == pytest.approx((u, v, u + r, v + s), abs=0.51)


@pytest.mark.parametrize('name', MAKERS)
def test_the_config_reads_it_and_a_run_would_not_stop(layouts, name):
    cfg = load_config(layouts[name] / f'{name}.py')
    assert cfg.work_dir == f'work_dirs/{name}'
    assert cfg.model.roi_head.bbox_head.num_classes == 3
    assert (cfg.scale, cfg.max_iters, cfg.train_cfg.max_iters) == ((160, 160), 450, 450)
    report = check_dataset(cfg, workers=1)
    assert report.images == dict(train=24, val=4) and not report.findings + report.failures


def test_the_config_outlives_a_move_of_its_folder_and_of_the_images(layouts, shapes_root, tmp_path):
    source = make_yolo(shapes_root, tmp_path / 'there')
    convert(YoloDataset(source), tmp_path / 'out', BASE)
    shutil.move(tmp_path / 'out', tmp_path / 'moved')
    assert check_dataset(load_config(tmp_path / 'moved/out.py'), workers=1).failures == []
    source.rename(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match=r'the images have moved: --cfg-options data_root=DIR'):
        check_dataset(load_config(tmp_path / 'moved/out.py'), workers=1)
    options = {'data_root': str(tmp_path / 'elsewhere')}
    assert check_dataset(load_config(tmp_path / 'moved/out.py', options), workers=1).failures == []


def picture(path: Path, width: int = 40, height: int = 30, data: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if data is None:
        Image.new('RGB', (width, height)).save(path)
    else:
        path.write_bytes(data)
    return path


@pytest.fixture
def yolo(tmp_path) -> Path:
    """Four images of 40x30 pixels with a pear each, in two splits."""
    root = tmp_path / 'fruit'
    for split in ('train', 'val'):
        (root / 'labels' / split).mkdir(parents=True)
        for name in 'ab':
            picture(root / f'images/{split}/{name}.png')
            (root / f'labels/{split}/{name}.txt').write_text('1 0.5 0.5 0.5 0.5\n')
    write_yaml(root, "{0: 'red apple', 1: pear}")
    return root


def write_yaml(root: Path, names: str, more: str = '', val: str = 'images/val') -> None:
    text = f'train: images/train\nval: {val}\nnames: {names}\n{more}'
    (root / 'data.yaml').write_text(text)


@pytest.fixture
def voc(tmp_path) -> Path:
    """Two images of 40x30 pixels with a pear each, without lists."""
    root = tmp_path / 'VOC'
    (root / 'Annotations').mkdir(parents=True)
    for name in 'ab':
        picture(root / f'JPEGImages/{name}.png')
        write_xml(root, name, 40, 30, voc_object('pear', [10, 5, 20, 15]))
    return root


@pytest.fixture
def prepared(monkeypatch, capfd, tmp_path) -> Callable:
    """Call the tool, which writes to tmp_path/out."""

    def prepare(source: Path, *options: object) -> tuple[int, str, str]:
        layout = 'voc' if source.name == 'VOC' else 'yolo'
        arguments = (layout, source, '--root', tmp_path / 'out', *options)
        return call_tool(monkeypatch, capfd, 'prepare_data.py', *arguments)

    return prepare


def test_the_tool_says_what_it_made_and_what_comes_next(prepared, yolo, tmp_path):
    (yolo / 'labels/train/a.txt').write_text('')
    (yolo / 'labels/train/b.txt').write_text('1 0.9 0.5 0.5 0.5\n\n1 0.9 0.5 0.5 0.5\n0 0 0 1 1\n')
    (yolo / 'labels/val/b.txt').unlink()
    code, _, err = prepared(yolo)
    assert code == 2 and '3 of 3 objects reach beyond their image' in err  # as corners would
    code, out, _ = prepared(yolo, '--skip-bad')
    assert code == 0
    assert out.splitlines() == [
        f'{tmp_path}/out/train.json: 2 images (1 without objects), 2 objects: red apple 1, pear 1',
        f'{tmp_path}/out/val.json: 2 images (1 without objects), 1 objects: red apple 0, pear 1',
        '3 objects reach beyond their image, and are cut there',
        '1 objects are written twice, taken once',
        '1 images have no label file, and are background',
        "classes = ('red apple', 'pear')",
        'Train:',
        f'    tools/train.py {tmp_path}/out/out.py',
    ]
    boxes = [annotation['bbox'] for annotation in written(tmp_path / 'out', 'train')['annotations']]
    assert boxes == [[26, 7.5, 14, 15], [0, 0, 20, 15]]


def test_a_second_call_writes_nothing_and_another_one_keeps_what_was_there(
    prepared, yolo, tmp_path
):
    prepared(yolo)
    inode = (tmp_path / 'out/out.py').stat().st_ino
    code, out, _ = prepared(yolo)
    assert code == 0 and 'All of it was there already. Train:' in out
    assert (tmp_path / 'out/out.py').stat().st_ino == inode

    with (tmp_path / 'out/out.py').open('a') as file:
        file.write('# mine\n')
    write_yaml(yolo, '[apple, pear]', val='')
    (tmp_path / 'out/test.json').mkdir()
    code, out, _ = prepared(yolo)
    (aside,) = (tmp_path / 'out').glob('earlier_*')
    assert code == 0 and f'What an earlier call left there is in {aside}' in out
    assert (aside / 'out.py').read_text().endswith('# mine\n')
    assert {path.name for path in aside.iterdir()} == {
        'out.py',
        'test.json',
        'train.json',
        'val.json',
    }
    assert '1 of the images of train are the split to validate on' in out
    assert Config.fromfile(tmp_path / 'out/out.py').classes == ('apple', 'pear')


def test_where_one_file_cannot_be_written_none_is_replaced(yolo, tmp_path):
    convert(YoloDataset(yolo), tmp_path / 'out', BASE)
    before = {path: path.read_bytes() for path in (tmp_path / 'out').iterdir()}
    lines = (f'0 0.5 0.5 0.{i} 0.{i}\n' for i in range(101, 200))
    (yolo / 'labels/train/a.txt').write_text(''.join(lines))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))  # enough for the config
    try:
        with pytest.raises(OSError, match='File too large'):
            convert(YoloDataset(yolo), tmp_path / 'out', BASE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in (tmp_path / 'out').iterdir()} == before


def test_difficult_objects_are_ignored_by_training_and_evaluation(prepared, voc, tmp_path):
    difficult = voc_object('pear', [1, 1, 9, 9], more='<difficult>1</difficult>')
    part = '<part><name>leaf</name><bndbox><xmin>1</xmin></bndbox></part>'
    write_xml(voc, 'a', 40, 30, difficult + voc_object('nut', [0, 0, 9, 9], more=part))
    assert prepared(voc)[0] == 0
    (other, nut) = written(tmp_path / 'out', 'train')['annotations']
    assert (other['iscrowd'], nut['iscrowd'], nut['bbox']) == (1, 0, [0, 0, 9, 9])
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.classes == ('nut', 'pear')
    assert {cfg.model.train_cfg[part].assigner.ignore_iof_thr for part in ('rpn', 'rcnn')} == {0.5}


def test_splits_of_several_years_are_joined(tmp_path, voc, prepared):
    for year in ('VOC2007', 'VOC2012'):
        lists = shutil.copytree(voc, tmp_path / 'devkit' / year) / 'ImageSets/Main'
        lists.mkdir(parents=True)
        for split, names in dict(train='a', val='b', trainval='a\nb', test='b').items():
            (lists / f'{split}.txt').write_text(names)
    convert(VocDataset(tmp_path / 'devkit'), tmp_path / 'out', BASE)
    counts = {
        split: [image['file_name'] for image in written(tmp_path / 'out', split)['images']]
        for split in ('train', 'val', 'trainval', 'test')
    }
    assert [len(names) for names in counts.values()] == [2, 2, 4, 2]
    assert counts['val'] == ['VOC2007/JPEGImages/b.png', 'VOC2012/JPEGImages/b.png']


def test_splits_of_yolo_are_folders_lists_of_them_and_texts(yolo, tmp_path):
    (yolo / 'lists').mkdir()
    lines = ['./../images/val/a.png', str(yolo / 'images/val/b.png'), 'images/train/a.png']
    (yolo / 'lists/val.txt').write_text('\n'.join(lines))
    (yolo / 'data.yaml').write_text(
        'path: /of/another/machine\ntrain: [../images/train, images/val]\nval: lists/val.txt\n'
        'test: images\nnames: [yes, 2]\n'
    )
    convert(YoloDataset(yolo / 'data.yaml'), tmp_path / 'out', BASE)
    names = {
        split: [image['file_name'] for image in written(tmp_path / 'out', split)['images']]
        for split in ('train', 'val', 'test')
    }
    everything = [f'images/{split}/{name}.png' for split in ('train', 'val') for name in 'ab']
    assert names == dict(train=everything, val=[*everything[2:], everything[0]], test=everything)
    assert Config.fromfile(tmp_path / 'out/out.py').classes == ('yes', '2')


@pytest.mark.parametrize('is_flat', [True, False])
def test_without_a_yaml_there_are_classes_and_folders(yolo, tmp_path, is_flat):
    (yolo / 'data.yaml').unlink()
    (yolo / 'classes.txt').write_text('\ufeffred apple\r\npear\r\n')
    if is_flat:  # images and labels beside each other
        for file in [*yolo.glob('images/*/*'), *yolo.glob('labels/*/*')]:
            file.rename(yolo / f'{file.parent.name}_{file.name}')
        for folder in ('images', 'labels'):
            shutil.rmtree(yolo / folder)
    convert(YoloDataset(yolo), tmp_path / 'out', BASE)
    counts = [len(written(tmp_path / 'out', split)['annotations']) for split in ('train', 'val')]
    assert counts == ([3, 1] if is_flat else [2, 2])


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('orientation', [1, 3, 6])
def test_sizes_are_those_that_the_loader_finds(tmp_path, kind, orientation):
    path = tmp_path / 'image'
    data = rotated(np.zeros((30, 40, 3), np.uint8), orientation, kind)
    path.write_bytes(data)
    for annotated in (None, (40, 30), (30, 40)):
        assert image_size(path, annotated) == decode(data, annotated).shape[1::-1]


def test_names_that_would_change_a_config_are_texts_in_it(yolo, tmp_path):
    names = ["{{ fileDirname }}'+quit()+'", '{{_base_.model}}"""\\', 'Äpfel, 2']
    write_yaml(yolo, json.dumps(names))
    (yolo / 'labels/train/a.txt').write_text('2 0.5 0.5 0.5 0.5')
    convert(YoloDataset(yolo), tmp_path / 'out', BASE)
    cfg = load_config(tmp_path / 'out/out.py')
    assert list(cfg.classes) == names
    assert check_dataset(cfg, workers=1).failures == []


def test_pictures_have_a_colour_for_each_of_many_classes(yolo, tmp_path):
    write_yaml(yolo, json.dumps([f'class {i}' for i in range(100)]))
    convert(YoloDataset(yolo), tmp_path / 'out', BASE)
    cfg = load_config(tmp_path / 'out/out.py')
    environment.require('mmdet.datasets')
    dataset = DATASETS.build({**cfg.val_dataloader.dataset, 'lazy_init': True, '_scope_': 'mmdet'})
    from mmdet.visualization.palette import get_palette

    assert len(dataset.metainfo['classes']) == 100
    assert len(get_palette(dataset.metainfo['palette'], 100)) == 100


BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><a>&b;</a>'
A_PEAR = voc_object('pear', [10, 5, 20, 15])
BAD_YOLO_LINES = {
    '2 0.5 0.5 0.5 0.5': r'the class 2 is not in 0\.\.1, those of data\.yaml',
    '-1 0.5 0.5 0.5 0.5': r'the class -1 is not in',
    '0.5 0.5 0.5 0.5 0.5': r'the class 0\.5 is not in',
    'pear 0.5 0.5 0.5 0.5': 'pear is not a finite number',
    '1 0.5 nan 0.5 0.5': 'nan is not a finite number',
    '1 0.5 0.5 1e999 0.5': '1e999 is not a finite number',
    '1 0.5 0.5 0.5': '3 numbers behind the class',
    '1 0.5 0.5 0.5 0.5 0.9': '5 numbers behind the class',
    '1 0.1 0.1 0.5 0.5 0.9 0.9 0.1': '7 numbers behind the class',
    '1': '0 numbers behind the class',
    '1 0.5 0.5 0 0.5': 'box of no size',
    '1 0.5 0.5 -0.5 0.5': 'box of no size',
    '1 0.1 0.1 0.5 0.1 0.9 0.1': 'box of no size',
    '1 20 15 10 10': 'box outside the image',
    '1 -0.5 0.5 0.5 0.5': 'box outside the image',
}
BAD_VOC_OBJECTS = {
    voc_object(' ', [10, 5, 20, 15]): 'the object has no name',
    '<object><name>pear</name></object>': 'None is not a finite number',
    A_PEAR.replace('11', 'inf'): 'inf is not a finite number',
    A_PEAR.replace('11', 'x'): 'x is not a finite number',
    A_PEAR.replace('11', '99'): 'box of no size',
    voc_object('pear', [50, 5, 20, 15]): 'box outside the image',
}


def test_every_bad_line_of_yolo_is_named_and_nothing_is_written(prepared, yolo, tmp_path):
    file = yolo / 'labels/train/a.txt'
    file.write_text('1 0.5 0.5 0.5 0.5\n' + '\n'.join(BAD_YOLO_LINES))
    code, out, err = prepared(yolo)
    assert_named(out, {f'{file}:{i}': m for i, m in enumerate(BAD_YOLO_LINES.values(), 2)})
    assert code == 2 and f'{len(BAD_YOLO_LINES)} labels or images cannot be used' in err
    assert not list((tmp_path / 'out').iterdir())

    code, out, _ = prepared(yolo, '--skip-bad')
    assert code == 0 and '2 images (0 without objects), 2 objects' in out
    assert (
        f'{len(BAD_YOLO_LINES)} labels or images cannot be used: these images are left out' in out
    )


def test_every_bad_object_of_voc_is_named_and_nothing_is_written(prepared, voc, tmp_path):
    file = write_xml(voc, 'a', 40, 30, A_PEAR + '\n'.join(map(str.strip, BAD_VOC_OBJECTS)))
    code, out, err = prepared(voc)
    assert_named(out, {f'{file}:{i}': m for i, m in enumerate(BAD_VOC_OBJECTS.values(), 4)})
    assert code == 2 and f'{len(BAD_VOC_OBJECTS)} labels or images cannot be used' in err
    assert not list((tmp_path / 'out').iterdir())


def assert_named(out: str, expected: dict[str, str]) -> None:
    """Each place in a line of its own with what is wrong there, and no other."""
    lines = out.splitlines()
    assert len(lines) == len(expected)
    for line, (place, message) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f'{place}: ')
        assert re.search(message, line)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def large(path: Path) -> None:
    with path.open('wb') as file:
        file.truncate(2**26 + 1)


@pytest.mark.parametrize(
    ('name', 'change', 'message'),
    [
        ('images/train/a.png', fifo, r'a\.png: it is missing, or not a regular file'),
        ('images/train/a.png', lambda p: p.write_bytes(b'x'), r'a\.png: the size of the image'),
        ('labels/train/a.txt', fifo, r'a\.txt: it is missing, or not a regular file'),
        ('labels/train/a.txt', large, r'a\.txt: it has more than 64 MiB'),
        ('labels/train/a.txt', lambda p: p.write_bytes(b'\xff'), r'a\.txt: it is not a text'),
        (
            'images/train',
            lambda p: write_yaml(p.parents[1], '[a, b]', val='x.txt')
            or (p.parents[1] / 'x.txt').write_text(f'images/val/a.png\n{"long" * 99}.png'),
            r'x\.txt:2: there is no image',
        ),
    ],
)  # fmt: skip
def test_a_bad_file_of_yolo_is_named(prepared, yolo, tmp_path, name, change, message):
    change(yolo / name)
    code, out, err = prepared(yolo)
    assert code == 2 and re.search(message, out), out
    assert re.search(f'1 labels or images cannot be used, the first of them .*{message}', err)
    code, out, _ = prepared(yolo, '--skip-bad')
    assert code == 0 and 'train.json: ' in out


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (BOMB, ':1: it declares an entity'),
        (BOMB.encode('utf-16'), ':1: it declares an entity'),
        ('<annotation>', ':1: it is no XML'),
        ('<foo/>', 'it is a <foo>, not the <annotation> of an image'),
        ('', ':1: it is no XML'),
        ('<?xml version="1.0" encoding="gbk"?><annotation/>', 'it is no XML'),
        ('<annotation><size><width>30</width><height>30</height></size></annotation>',
         r'its size is 30x30 pixels, but .*a\.png has 40x30'),
        ('<annotation><size><width>x</width></size></annotation>', 'size: x is not a finite'),
    ],
)  # fmt: skip
def test_a_bad_file_of_voc_is_named(prepared, voc, content, message):
    path = voc / 'Annotations/a.xml'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, _ = prepared(voc)
    assert code == 2 and re.search(f'{path}.*{message}', out), out


def test_what_a_list_of_voc_names_has_to_be_there(prepared, voc):
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_text('a\nc\n')
    (lists / 'val.txt').write_text('b\n')
    (voc / 'Annotations/b.xml').unlink()
    picture(voc / 'JPEGImages/a.jpg')
    code, out, _ = prepared(voc)
    assert code == 2
    assert_named(
        out,
        {
            f'{voc}/JPEGImages/a.png': 'a.jpg has the same name, and so the same labels',
            f'{lists}/train.txt:2': f'there is no image c in {voc}/JPEGImages',
            f'{voc}/Annotations/b.xml': 'it is missing, or not a regular file',
        },
    )


def test_a_class_that_is_not_in_the_list_is_named(prepared, voc):
    (voc / 'classes.txt').write_text('apple\n')
    code, out, _ = prepared(voc)
    assert code == 2 and out.count('pear is not one of the classes in classes.txt') == 2


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('path: .\nnames: [a', ':2: it is no YAML'),
        ('[' * 5000, 'it is no YAML'),
        ('[a]', 'it does not describe a dataset'),
        ('train: images\nval: images', 'the names of the classes are not a list of texts'),
        ('names: [a, [b]]', 'the names of the classes are not a list of texts'),
        ('names: {1: a, 2: b}', 'the names are not numbered from 0 to 1'),
        ('names: [a, b, a]', '2 classes have the name a'),
        ('names: [a]\nnc: 2', 'nc is not 1, the number of its names'),
        ('names: [a]\ntrain: {a: b}', 'train is neither a path nor a list of paths'),
        ('names: [a]\ntrain: no', 'train is no, which is missing'),
        ('names: [a]\nkpt_shape: [17, 3]', 'keypoints are not read'),
        ('names: [a]', 'there are no images to train on'),
        ('names: [a, b]\ntrain: images/train/a.png.txt', 'is missing'),
    ],
)  # fmt: skip
def test_a_bad_yaml_is_one_sentence(prepared, yolo, text, message):
    (yolo / 'data.yaml').write_text(text)
    code, out, err = prepared(yolo)
    assert (code, out) == (2, '') and message in err and err.count('\n') <= 2, err


def without_labels(root: Path) -> None:
    shutil.rmtree(root / 'labels')


def with_one_image(root: Path) -> None:
    for name in ('train/b', 'val/a', 'val/b'):
        (root / f'images/{name}.png').unlink()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (shutil.rmtree, 'there is no such folder'),
        (lambda p: (p / 'data.yaml').unlink(), 'has neither a data.yaml nor a classes.txt'),
        (lambda p: [(p / f'{n}.yaml').write_text('') for n in 'ab'] and (p / 'data.yaml').unlink(),
         'has a.yaml, b.yaml: name the one that describes the dataset'),
        (without_labels, 'no object in any of the 4 images (those of the first one were looked'),
        (with_one_image, 'one image is too few to train and to validate'),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_yolo_dataset_is_one_sentence(prepared, yolo, change, message):
    change(yolo)
    code, _, err = prepared(yolo)
    assert code == 2 and message in err, err


def test_a_folder_that_is_no_voc_dataset_is_one_sentence(prepared, voc, tmp_path):
    shutil.rmtree(voc / 'Annotations')
    assert 'has no Annotations, with an XML file for each image' in prepared(voc)[2]
    assert 'there is no such folder' in prepared(tmp_path / 'no' / 'VOC')[2]


def test_a_folder_that_a_config_cannot_be_in_is_refused(prepared, yolo, tmp_path):
    code, _, err = prepared(yolo, '--root', tmp_path / 'a"b')
    assert code == 2 and 'a config cannot be in a folder with one of' in err
