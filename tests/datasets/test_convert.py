"""Datasets in the layouts of VOC and YOLO, converted to COCO's."""

import json
import os
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.other_layouts import make_voc, make_yolo, read_coco, voc_object, write_xml
from helpers.planted import rotated
from PIL import Image

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.datasets.audit import check_dataset
from xcit_mm.datasets.decode import EXIF_ORIENTATION, decode
from xcit_mm.datasets.importers.contents import image_size, read_contents
from xcit_mm.datasets.importers.voc import VocDataset
from xcit_mm.datasets.importers.write_coco import OBJECTS, convert
from xcit_mm.datasets.importers.yolo import YoloDataset

BASE = ROOT / 'configs/faster_rcnn_xcit_n12_16_small.py'
MAKERS = {
    'voc': lambda shapes, root: VocDataset(make_voc(shapes, root)),
    'yolo': lambda shapes, root: YoloDataset(make_yolo(shapes, root)),
    'polygons': lambda shapes, root: YoloDataset(make_yolo(shapes, root, with_polygons=True)),
}


def read(root: Path, split: str) -> dict:
    return json.loads((root / f'{split}.json').read_text())


def file_names(root: Path, split: str) -> list[str]:
    return [image['file_name'] for image in read(root, split)['images']]


@pytest.mark.parametrize('name', MAKERS)
def test_a_run_accepts_the_config_and_objects_equal_the_original(shapes_root, tmp_path, name):
    root = tmp_path / name
    convert(MAKERS[name](shapes_root, tmp_path / 'source'), root, BASE, OBJECTS)
    for split in ('train', 'val'):
        content, original = read(root, split), read_coco(shapes_root, split)
        assert content['categories'] == original['categories']
        sizes = [(Path(i['file_name']).name, i['width'], i['height']) for i in content['images']]
        assert sizes == [(i['file_name'], i['width'], i['height']) for i in original['images']]
        first_id = original['images'][0]['id']
        for new, old in zip(content['annotations'], original['annotations'], strict=True):
            assert new['image_id'] - 1 == old['image_id'] - first_id
            assert (new['category_id'], new['iscrowd']) == (old['category_id'], 0)
            assert new['bbox'] == pytest.approx(old['bbox'], abs=0.011)
            if name == 'polygons':
                assert new['segmentation'][0] == pytest.approx(old['segmentation'][0], abs=1e-3)
                assert new['area'] == pytest.approx(old['area'], rel=1e-3)
            else:
                assert new['area'] == pytest.approx(old['bbox'][2] * old['bbox'][3], rel=1e-2)

    cfg = load_config(root / f'{name}.py')
    assert cfg.work_dir == f'work_dirs/{name}'
    assert cfg.model.roi_head.bbox_head.num_classes == 3
    assert (cfg.scale, cfg.max_iters, cfg.train_cfg.max_iters) == ((160, 160), 600, 600)
    report = check_dataset(cfg, workers=1)
    assert report.images == dict(train=24, val=4) and not report.findings + report.failures


@pytest.fixture
def yolo(tmp_path) -> Path:
    """Four images of 40x30 pixels with a pear each, in two splits."""
    root = tmp_path / 'fruit'
    for split in ('train', 'val'):
        for folder in ('images', 'labels'):
            (root / folder / split).mkdir(parents=True)
        for name in 'ab':
            Image.new('RGB', (40, 30)).save(root / f'images/{split}/{name}.png')
            (root / f'labels/{split}/{name}.txt').write_text('1 0.5 0.5 0.5 0.5\n')
    write_yaml(root, "{0: 'red apple', 1: pear}")
    return root


def write_yaml(root: Path, names: str, val: str = 'images/val') -> None:
    (root / 'data.yaml').write_text(f'train: images/train\nval: {val}\nnames: {names}\n')


@pytest.fixture
def voc(tmp_path) -> Path:
    """Two images of 40x30 pixels with a pear each, without lists."""
    root = tmp_path / 'VOC'
    for folder in ('Annotations', 'JPEGImages'):
        (root / folder).mkdir(parents=True)
    for name in 'ab':
        Image.new('RGB', (40, 30)).save(root / f'JPEGImages/{name}.png')
        write_xml(root, name, 40, 30, voc_object('pear', [10, 5, 20, 15]))
    return root


@pytest.fixture
def prepare(monkeypatch, capfd, tmp_path) -> Callable:
    """Call the tool, which writes to tmp_path/out."""

    def prepare(source: Path, *options: object) -> tuple[int, str, str]:
        layout = 'voc' if source.name == 'VOC' else 'yolo'
        arguments = (layout, source, '--root', tmp_path / 'out', *options)
        return call_tool(monkeypatch, capfd, 'prepare_data.py', *arguments)

    return prepare


def test_the_tool_reports_what_it_cut_dropped_and_wrote(prepare, yolo, tmp_path):
    (yolo / 'labels/train/b.txt').write_text('1 0.9 0.5 0.5 0.5\n\n1 0.9 0.5 0.5 0.5\n0 0 0 1 1\n')
    (yolo / 'labels/val/b.txt').unlink()
    code, _, error = prepare(yolo)
    assert code == 2 and '3 of 4 objects extend beyond their image' in error
    code, output, _ = prepare(yolo, '--skip-bad')
    assert code == 0
    assert output.splitlines() == [
        'train.json: 2 images, 3 objects: red apple 1, pear 2',
        'val.json: 2 images, 1 object: red apple 0, pear 1',
        'val: no objects of red apple, which are not measured, although train has some',
        'Objects that extend beyond the image, and are cut at its border: 3',
        'Duplicate objects dropped: 1',
        'Images without a label file, used as background: 1',
        f'Everything was written to {tmp_path}/out',
        'Read every image, then train:',
        f'    tools/check_dataset.py {tmp_path}/out/out.py',
        f'    tools/train.py {tmp_path}/out/out.py',
    ]
    boxes = [annotation['bbox'] for annotation in read(tmp_path / 'out', 'train')['annotations']]
    assert boxes == [[10, 7.5, 20, 15], [26, 7.5, 14, 15], [0, 0, 20, 15]]


def test_a_second_call_writes_only_what_changed_and_keeps_earlier_files(prepare, yolo, tmp_path):
    prepare(yolo)
    config = tmp_path / 'out/out.py'
    inode = config.stat().st_ino
    code, output, _ = prepare(yolo)
    assert code == 0 and 'Everything was already there' in output
    assert config.stat().st_ino == inode

    config.write_text('# mine\n')
    write_yaml(yolo, '[apple, pear]', val='')
    (tmp_path / 'out/test.json').mkdir()
    code, output, _ = prepare(yolo)
    (aside,) = (tmp_path / 'out').glob('earlier_*')
    assert code == 0 and f'Earlier files are now in {aside}' in output
    assert (aside / 'out.py').read_text() == '# mine\n'
    assert len(list(aside.iterdir())) == 4
    assert 'Images for validation, which the dataset has no split for: 1' in output
    assert load_config(config).classes == ('apple', 'pear')


def test_the_folders_of_the_config_and_of_the_images_can_be_moved(yolo, tmp_path):
    convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    config = shutil.move(tmp_path / 'out', tmp_path / 'moved') / 'out.py'
    moved = yolo.rename(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match=r'the images have moved: --cfg-options data_root=DIR'):
        check_dataset(load_config(config), workers=1)
    assert check_dataset(load_config(config, {'data_root': str(moved)}), workers=1).failures == []


def test_if_a_file_cannot_be_written_no_file_is_replaced(yolo, tmp_path):
    convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    (tmp_path / 'out/val.json').unlink()
    (tmp_path / 'out/val.json').mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in (tmp_path / 'out').iterdir()}
    write_yaml(yolo, '[apple, pear]')
    with pytest.raises(UserError, match=r'val\.json is a folder'):
        convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    after = {path: path.is_file() and path.read_bytes() for path in (tmp_path / 'out').iterdir()}
    assert after == before


def test_difficult_objects_are_ignored_in_training_and_evaluation(voc, tmp_path):
    difficult = voc_object('pear', [1, 1, 9, 9], more='<difficult>1</difficult>')
    part = '<part><name>leaf</name><bndbox><xmin>1</xmin></bndbox></part>'
    write_xml(voc, 'a', 40, 30, difficult + voc_object('nut', [0, 0, 9, 9], more=part))
    convert(VocDataset(voc), tmp_path / 'out', BASE, OBJECTS)
    (pear, nut) = read(tmp_path / 'out', 'train')['annotations']
    assert (pear['iscrowd'], nut['iscrowd'], nut['bbox']) == (1, 0, [0, 0, 9, 9])
    cfg = load_config(tmp_path / 'out/out.py')
    assert cfg.classes == ('nut', 'pear')
    assert {cfg.model.train_cfg[part].assigner.ignore_iof_thr for part in ('rpn', 'rcnn')} == {0.5}


def test_splits_of_several_years_are_joined(voc, tmp_path):
    for year in ('VOC2007', 'VOC2012'):
        lists = shutil.copytree(voc, tmp_path / 'devkit' / year) / 'ImageSets/Main'
        lists.mkdir(parents=True)
        for split, names in dict(train='a', val='b', trainval='a\nb', test='b').items():
            (lists / f'{split}.txt').write_text(names)
    convert(VocDataset(tmp_path / 'devkit'), tmp_path / 'out', BASE, OBJECTS)
    validated = ['VOC2007/JPEGImages/b.png', 'VOC2012/JPEGImages/b.png']
    assert file_names(tmp_path / 'out', 'val') == validated
    assert len(file_names(tmp_path / 'out', 'trainval')) == 4


# They cannot change the config.
NAMES = ['yes', '2', "{{ fileDirname }}'+quit()+'", '{{_base_.model}}"""\\', 'Äpfel, 2']


def test_splits_of_yolo_are_folders_lists_and_text_files(yolo, tmp_path):
    (yolo / 'lists').mkdir()
    lines = ['./../images/val/a.png', str(yolo / 'images/val/b.png'), 'images/train/a.png']
    (yolo / 'lists/val.txt').write_text('\n'.join(lines))
    (yolo / 'data.yaml').write_text(
        'path: /of/another/machine\ntrain: [../images/train, images/val]\nval: lists/val.txt\n'
        f'test: images\nnames: [yes, 2, {json.dumps(NAMES[2:])[1:]}\n'
    )
    convert(YoloDataset(yolo / 'data.yaml'), tmp_path / 'out', BASE, OBJECTS)
    everything = [f'images/{split}/{name}.png' for split in ('train', 'val') for name in 'ab']
    assert file_names(tmp_path / 'out', 'train') == everything
    assert file_names(tmp_path / 'out', 'val') == [*everything[2:], everything[0]]
    assert file_names(tmp_path / 'out', 'test') == everything
    cfg = load_config(tmp_path / 'out/out.py')
    assert list(cfg.classes) == NAMES
    assert check_dataset(cfg, workers=1).failures == []


def test_yolo_without_a_yaml_has_a_list_of_classes_and_folders(yolo, tmp_path):
    (yolo / 'data.yaml').unlink()
    (yolo / 'classes.txt').write_text('\ufeffred apple\r\npear\r\n')
    for expected in ([2, 2], [3, 1]):
        convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
        counts = [len(read(tmp_path / 'out', split)['annotations']) for split in ('train', 'val')]
        assert counts == expected
        for file in [*yolo.glob('images/*/*'), *yolo.glob('labels/*/*')]:  # beside each other
            file.rename(yolo / f'{file.parent.name}_{file.name}')
        for folder in ('images', 'labels'):
            shutil.rmtree(yolo / folder, ignore_errors=True)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_image_sizes_follow_exif_as_in_training(tmp_path, kind):
    for orientation in (1, 3, 6):
        data = rotated(np.zeros((30, 40, 3), np.uint8), orientation, kind)
        (tmp_path / 'image').write_bytes(data)
        for annotated in (None, (40, 30), (30, 40)):
            expected = decode(data, annotated).shape[1::-1]
            assert image_size(tmp_path / 'image', annotated) == expected


LABELS = [
    '1 0.5 0.5 0.5 0.5\n0 0.2 0.2 0.1 0.1\n',
    '\ufeff1 0.5 0.5 0.5 0.5\r\n0 0.2 0.2 0.1 0.1\r\n',
    '1 0.5 0.5 0.5 0.5\r0 0.2 0.2 0.1 0.1\r',
    ' 1.0\t5e-1\t0.5\t0.5\t0.5 \n\n \t\n0\t0.2 0.2 0.1 0.1',
]


@pytest.mark.parametrize('text', LABELS)
def test_labels_of_yolo_are_read_in_any_form_of_text(yolo, tmp_path, text):
    (yolo / 'labels/train/a.txt').write_bytes(text.encode())
    (yolo / 'labels/train/b.txt').write_text('')  # no objects
    convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    pear, apple = read(tmp_path / 'out', 'train')['annotations']
    assert (pear['category_id'], pear['bbox']) == (2, [10, 7.5, 20, 15])
    assert (apple['category_id'], apple['bbox']) == (1, [6, 4.5, 4, 3])


def test_an_outline_that_crosses_itself_has_an_area(yolo, tmp_path):
    (yolo / 'labels/train/a.txt').write_text('1 0.1 0.1 0.9 0.9 0.9 0.1 0.1 0.9')
    convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    assert read(tmp_path / 'out', 'train')['annotations'][0]['area'] == 32 * 24 / 2


def test_oriented_boxes_of_yolo_are_outlines_and_are_counted(prepare, yolo, tmp_path):
    for name in 'ab':
        (yolo / f'labels/train/{name}.txt').write_text('1 0.5 0.2 0.8 0.5 0.5 0.8 0.2 0.5')
    code, output, _ = prepare(yolo)
    assert code == 0
    (line,) = (line for line in output.splitlines() if 'oriented boxes' in line)
    assert line.startswith('Outlines of four corners, as YOLO writes oriented boxes (OBB); detect')
    assert line.endswith(': 2')
    box, _ = read(tmp_path / 'out', 'train')['annotations']
    assert box['bbox'] == [8, 6, 24, 18] and box['area'] == 24 * 18 / 2
    assert box['segmentation'] == [[20, 6, 32, 15, 20, 24, 8, 15]]


@pytest.mark.parametrize(
    ('box', 'expected'),
    [
        ([0, 0, 40, 30], [0, 0, 40, 30]),
        ([-1, -1, 40, 30], [0, 0, 39, 29]),  # counted from 0
        (['9.5', ' 4.25\n', '21.25', '15.75'], None),
        ([9, 9, 1, 1], [9, 9, 1, 1]),  # one pixel
    ],
)
def test_boxes_of_voc_are_read(voc, tmp_path, box, expected):
    xml = voc_object('pear', [float(n) for n in box], more='<difficult>True</difficult>')
    xml += voc_object('pear', [2, 2, 8, 8])  # which can be learned
    path = write_xml(voc, 'a', '40.0', '30.0', xml)
    path.rename(path.with_suffix('.XML'))
    convert(VocDataset(voc), tmp_path / 'out', BASE, OBJECTS)
    annotation, _ = read(tmp_path / 'out', 'train')['annotations']
    assert annotation['bbox'] == (expected or [9.5, 4.25, 21.25, 15.75])
    assert annotation['iscrowd'] == 1


BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><a>&b;</a>'
DEFAULTS = '<!DOCTYPE a [<!ATTLIST b c CDATA "aaaa">]><a><b/><b/></a>'
OTHER_SIZE = b'<annotation><size><width>30</width><height>30</height></size></annotation>'
PEAR = voc_object('pear', [10, 5, 20, 15])
BAD_LINES = {
    '2 0.5 0.5 0.5 0.5': r'class 2 is not .* 1, the classes in data\.yaml; are .* counted from 1',
    '3 0.5 0.5 0.5 0.5': r'class 3 is not between 0 and 1, the classes in data\.yaml$',
    'pear 0.5 0.5 0.5 0.5': 'not finite numbers: pear',
    '1 0.5 1e999 0.5 0.5': 'not finite numbers: 1 0.5 1e999',
    '1 0,5 0,5 0,5 0,5': 'not finite numbers: 1 0,5',
    '1 0.5 0.5 0.5 0.5 0.9': '5 numbers after the class .*keypoints and scores are not supported',
    '1 0.1 0.1 0.5 0.5 0.9 0.9 0.1': '7 numbers after the class',
    '1 0.5 0.5 -0.5 0.5': 'box of no size',
    '1 0.1 0.1 0.5 0.1 0.9 0.1': 'box of no size',
    '1 0.1 0.1 0.2 0.2 0.3 0.3': 'the outline encloses no area',
    '1 20 15 10 10': '20 looks like pixels: divide x and widths by the width',
    '1 4 4 20 4 20 20': '20 looks like pixels',
    '1 1.5 0.5 0.5 0.5': 'box outside the image',
}
BAD_OBJECTS = {
    voc_object(' ', [10, 5, 20, 15]): 'the name is missing',
    voc_object('plum', [10, 5, 20, 15]): r'plum is not a class in classes\.txt',
    '<object><name>pear</name></object>': 'not finite numbers: None',
    PEAR.replace('11', 'inf'): 'not finite numbers: inf',
    PEAR.replace('11', '99'): 'box of no size',
    voc_object(
        'pear', [-0.8, -0.9, 0.5, 0.4]
    ): 'no corner exceeds 1, .* relative: multiply them by',
    voc_object('pear', [100, 5, 20, 15]): 'box outside the image',
    PEAR.replace('11', '1,1'): 'not finite numbers: 1,1',
    PEAR.replace('xmin', 'x'): 'not finite numbers: None',
}


def test_every_bad_label_is_named_and_nothing_is_written(prepare, yolo, voc, tmp_path):
    (voc / 'classes.txt').write_text('pear\n')
    xml = write_xml(voc, 'a', 40, 30, ''.join(BAD_OBJECTS))
    text = yolo / 'labels/train/a.txt'
    text.write_text('\n'.join(BAD_LINES))
    for root, place, labels in (
        (voc, f'{xml}: object ', BAD_OBJECTS),
        (yolo, f'{text}:', BAD_LINES),
    ):
        code, output, error = prepare(root)
        assert code == 2 and f'{len(labels)} images or labels cannot be used' in error
        for i, (line, message) in enumerate(zip(output.splitlines(), labels.values(), strict=True)):
            assert re.match(f'{place}{i + 1}: .*{message}', line)
    assert not list((tmp_path / 'out').iterdir())
    code, output, _ = prepare(yolo, '--skip-bad')
    assert code == 0 and f'Problems; the images are left out: {len(BAD_LINES)}' in output
    assert file_names(tmp_path / 'out', 'train') == ['images/train/b.png']


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('images/train/a.png', fifo, 'size of the image .*Not a regular file'),
        ('labels/train/a.txt', fifo, 'Not a regular file'),
        ('labels/train/a.txt', b'\xff', 'not a text in UTF-8'),
        ('list.txt', b'images/val/a.png\nmissing.png', 'no image'),
        ('Annotations/a.xml', BOMB.encode(), 'XML entities'),
        ('Annotations/a.xml', BOMB.encode('utf-16'), 'XML entities'),
        ('Annotations/a.xml', DEFAULTS.encode(), 'declared attributes are refused'),
        ('Annotations/a.xml', b'<annotation>', 'invalid XML .*line 1'),
        ('Annotations/a.xml', b'<foo/>', 'the root element is <foo>'),
        ('Annotations/a.xml', OTHER_SIZE, r'size \(30, 30\), but .*a\.png has \(40, 30\) pixels'),
        ('Annotations/a.xml', OTHER_SIZE.replace(b'30', b'-30'), r'size \(-30, -30\), but'),
        ('Annotations/a.xml', OTHER_SIZE.replace(b'30', b'wide'), 'size: not finite numbers'),
        (
            'Annotations/a.xml',
            b'<?xml version="1.0" encoding="gbk"?><a/>',
            'invalid XML .multi-byte',
        ),
        ('Annotations/a.xml', fifo, 'Not a regular file'),
        ('JPEGImages/a.png', fifo, 'size of the image .*Not a regular file'),
        ('JPEGImages/a.bmp', b'', r'is a .*a\.bmp or .*a\.png\?'),
        ('ImageSets/Main/train.txt', b'a\nb\nc', 'no image c in'),
        ('ImageSets/Main/train.txt', b'a\nb\n../JPEGImages/a', 'no image ../JPEGImages/a in'),
    ],
)
def test_a_bad_file_is_named(prepare, voc, yolo, name, content, message):
    root = yolo if name.startswith(('images', 'labels', 'list')) else voc
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == 'list.txt':
        write_yaml(root, '[apple, pear]', val=name)
    content(path) if callable(content) else path.write_bytes(content)
    code, output, error = prepare(root)
    assert code == 2 and '1 images or labels cannot be used' in error
    named = path.with_name('a.xml') if name.endswith('bmp') else path
    assert re.search(f'{named.name}.*: .*{message}', error), error
    assert output == ''  # a single problem is said once


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('path: .\nnames: [a', 'invalid YAML (while parsing a flow sequence'),
        ('[' * 1000, 'invalid YAML'),
        ('names: [!!python/name:os.system x]', 'remove the tag tag:yaml.org,2002:python/name:os.s'),
        ('names: [a, !foo bar]', 'remove the tag !foo, which is not a plain value'),
        ('!!set {names, train}', 'remove the tag tag:yaml.org,2002:set'),
        ('[a]', 'not a dataset with boxes or polygons'),
        ('names: [a]\nkpt_shape: [17, 3]', 'keypoints, as in kpt_shape, are not supported'),
        ('names: [a, [b]]', 'the class names are not a list'),
        ('names: {1: a, 2: b}', 'numbered from 0'),
        ('names: [a, b, a]', 'not a list of unique texts'),
        ('names: [a]\ntrain: no', 'train: no does not exist'),
        ('names: [a]\ntrain: {b: c}', 'train a path or a list of paths'),
        ('names: [a]\nval: [[images]]', 'val a path or a list of paths'),
        ('names: [a]\npath: [.]\ntrain: images/train', 'path must be a folder'),
        ('names: [a]', 'too few images to train on'),
    ],
)
def test_a_bad_yaml_is_one_sentence(yolo, tmp_path, text, message):
    (yolo / 'data.yaml').write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)


def test_a_folder_that_cannot_be_converted_is_one_sentence(yolo, tmp_path):
    shutil.rmtree(yolo / 'labels')
    with pytest.raises(UserError, match=r'no image has an object .*labels/train/a\.txt'):
        convert(YoloDataset(yolo), tmp_path / 'out', BASE, OBJECTS)
    with pytest.raises(UserError, match=r'no data\.yaml or classes\.txt'):
        YoloDataset(tmp_path)
    with pytest.raises(UserError, match='has no folder Annotations'):
        VocDataset(tmp_path)
    with pytest.raises(UserError, match=r'gone/data\.yaml does not exist$'):
        YoloDataset(tmp_path / 'gone/data.yaml')


def remark(contents, text: str) -> int:
    return sum(number for line, number in contents.remarks.items() if text in line)


def test_names_of_splits_in_the_yaml_are_understood_or_named(yolo):
    (yolo / 'more').mkdir()
    (yolo / 'data.yaml').write_text(
        'path: .\nTrain: images/train\nvalid: images/val\nholdout: more\nnames: [apple, pear]\n'
    )
    dataset = YoloDataset(yolo)
    assert {split: len(images) for split, images in dataset.splits.items()} == dict(train=2, val=2)
    assert remark(dataset, 'the key holdout of data.yaml') == 1


def test_what_yolo_leaves_out_is_counted_by_its_reason(yolo):
    train = yolo / 'images/train'
    for folder in ('__MACOSX', '.ipynb_checkpoints'):
        (train / folder).mkdir()
        shutil.copy(train / 'a.png', train / folder)
    (train / 'photo.heic').touch()
    (train / 'up').symlink_to(yolo / 'images')
    Image.new('RGB', (40, 30)).save(train / 'b.jpg')
    (yolo / 'labels/train/gone.txt').write_text('1 0.5 0.5 0.5 0.5\n')
    (yolo / 'labels/train/notes.txt').write_text('by hand\n')
    contents = read_contents(YoloDataset(yolo))
    assert len(contents.images) == 5
    assert remark(contents, 'Label files that several images share') == 1
    assert remark(contents, 'Label files without an image') == 1
    assert remark(contents, 'Hidden files and folders') == 2
    assert remark(contents, 'Files of other types (.heic)') == 1
    (yolo / 'list.txt').write_text('images/train/a.png')
    write_yaml(yolo, '[apple, pear]', val='list.txt')
    (yolo / 'data.yaml').write_text('train: list.txt\nval: images/val\nnames: [apple, pear]\n')
    assert remark(read_contents(YoloDataset(yolo)), 'Images without a label or not listed') == 2


def test_labels_and_images_of_another_spelling_meet(yolo, voc):
    for path in (yolo / 'images/train/a.png', yolo / 'labels/train/a.txt'):
        form = 'NFC' if path.suffix == '.png' else 'NFD'
        path.rename(path.with_stem(unicodedata.normalize(form, 'é')))
    assert len(read_contents(YoloDataset(yolo)).images[yolo / 'images/train/é.png'][1]) == 1
    for path in (voc / 'JPEGImages/a.png', voc / 'Annotations/a.xml'):
        path.rename(path.with_stem('a%20b' if path.suffix == '.png' else 'A b'))
    assert [len(objects) for _, objects in read_contents(VocDataset(voc)).images.values()] == [1, 1]


def test_folders_of_voc_may_have_folders_inside(voc):
    for folder in ('JPEGImages', 'Annotations'):
        (voc / folder / 'cam1').mkdir()
        (file,) = (voc / folder).glob('b.*')
        file.rename(voc / folder / f'cam1/a{file.suffix}')  # beside another a
    contents = read_contents(VocDataset(voc))
    assert [len(objects) for _, objects in contents.images.values()] == [1, 1]
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'Validation.txt').write_text('cam1/a\n')
    (lists / 'pear_train.txt').write_text('a  1\ncam1/a -1\n')
    (lists / 'mine.txt').write_text('a\n')
    dataset = VocDataset(voc)
    assert dataset.splits == {'val': [voc / 'JPEGImages/cam1/a.png']}
    assert remark(dataset, 'Lists that are not called train') == 1
    assert remark(dataset, 'XML files without an image or not listed') == 1
    assert remark(read_contents(dataset), 'Images without a label or not listed') == 0


@pytest.mark.parametrize('suffix', ['png', 'bmp', 'pgm'])
def test_images_are_as_large_as_the_decoder_allows(suffix, tmp_path, monkeypatch):
    image, exif = tmp_path / f'a.{suffix}', Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    Image.new('L', (90, 70)).save(image, exif=exif)
    size = (70, 90) if suffix == 'png' else (90, 70)  # the others have no EXIF
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    assert image_size(image) == size == decode(image.read_bytes()).shape[1::-1]
