"""Each unusable label of VOC and YOLO is reported in one sentence."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from helpers.other_layouts import BASE, voc_object, write_xml, write_yaml

from xcit_mm import UserError
from xcit_mm.data.importers.voc import VocDataset
from xcit_mm.data.importers.write_coco import OBJECTS, convert
from xcit_mm.data.importers.yolo import YoloDataset

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
    images = json.loads((tmp_path / 'out/train.json').read_text())['images']
    assert [image['file_name'] for image in images] == ['images/train/b.png']


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
    assert output == ''  # a single problem is reported only once


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
