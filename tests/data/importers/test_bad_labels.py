"""Labels and files that cannot be used are named, each in one sentence, and nothing is written."""

import base64
import io
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.labeling_tools import converted, cvat, drawn, labelme, labelstudio, region
from helpers.other_layouts import SCRATCH, voc_object, write_xml, write_yaml
from PIL import Image

from xcit_mm import UserError
from xcit_mm.data.importers.voc import VocDataset
from xcit_mm.data.importers.write_coco import convert
from xcit_mm.data.importers.yolo import YoloDataset

BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><a>&b;</a>'
OTHER_SIZE = b'<annotation><size><width>30</width><height>30</height></size></annotation>'
PEAR = voc_object('pear', [10, 5, 20, 15])
BAD_LINES = {
    '2 0.5 0.5 0.5 0.5': r'class 2 is not .* 1, the classes in data\.yaml; are .* counted from 1',
    'pear 0.5 0.5 0.5 0.5': "could not convert string to float: 'pear'",
    '1 nan 0.5 0.5 0.5': 'a coordinate is not a finite number',
    '1 0.5 0.5 0.5 0.5 0.9': '5 numbers after the class .*keypoints and scores are not supported',
    '1 0.5 0.5 -0.5 0.5': 'box of no size',
    '1 0.1 0.1 0.2 0.2 0.3 0.3': 'the outline encloses no area',
    '1 20 15 10 10': '20 looks like pixels: divide x and widths by the width',
    '1 1.5 0.5 0.5 0.5': 'box outside the image',
}
BAD_OBJECTS = {
    voc_object(' ', [10, 5, 20, 15]): 'the name is missing',
    voc_object('plum', [10, 5, 20, 15]): r'plum is not a class in classes\.txt',
    PEAR.replace('11', '99'): 'box of no size',
    voc_object('pear', [-0.8, -0.9, 0.5, 0.4]): 'no corner exceeds 1, .* relative: multiply',
    PEAR.replace('xmin', 'x'): 'TypeError: float',
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
    assert not (tmp_path / 'out').exists()
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
        ('images/train/a.png', fifo, 'Not a regular file'),
        ('list.txt', b'images/val/a.png\nmissing.png', 'no image'),
        ('Annotations/a.xml', BOMB.encode(), 'XML entities'),
        ('Annotations/a.xml', BOMB.encode('utf-16'), 'XML entities'),
        ('Annotations/a.xml', OTHER_SIZE, r'size \(30, 30\), but .*a\.png has \(40, 30\) pixels'),
        ('JPEGImages/a.bmp', b'', r'is a .*a\.bmp or .*a\.png\?'),
        ('ImageSets/Main/train.txt', b'a\nb\nc', 'no image c '),
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
        ('path: .\nnames: [a', r'data\.yaml: ParserError: while parsing a flow sequence'),
        ('names: [a, b, a]', 'not a list of unique texts'),
        ('names: [a]\ntrain: no', r'data\.yaml: train: no does not exist'),
        ('names: [a]', '4 images or labels cannot be used'),
    ],
)
def test_a_bad_yaml_is_one_sentence(yolo, tmp_path, text, message):
    (yolo / 'data.yaml').write_text(text)
    with pytest.raises(UserError, match=message):
        convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)


def test_a_yaml_runs_no_code(yolo, tmp_path):
    (yolo / 'data.yaml').write_text(f'names: [!!python/object/apply:os.mkdir [{tmp_path}/ran]]')
    with pytest.raises(UserError):
        YoloDataset(yolo)
    assert not (tmp_path / 'ran').exists()


def test_a_folder_that_cannot_be_converted_is_one_sentence(yolo, tmp_path):
    shutil.rmtree(yolo / 'labels')
    with pytest.raises(UserError, match=r'no image has an object .*labels/train/a\.txt'):
        convert(YoloDataset(yolo), tmp_path / 'out', SCRATCH)
    with pytest.raises(UserError, match=r'no data\.yaml or classes\.txt'):
        YoloDataset(tmp_path)
    with pytest.raises(UserError, match='has no folder Annotations'):
        VocDataset(tmp_path)
    with pytest.raises(UserError, match=r'gone/data\.yaml does not exist$'):
        YoloDataset(tmp_path / 'gone/data.yaml')


def bomb() -> str:
    """Return a small PNG file whose header asks for gigabytes."""
    stored = io.BytesIO()
    Image.new('L', (1, 1), 255).save(stored, 'PNG')
    data = bytearray(stored.getvalue())
    data[16:24] = struct.pack('>II', 60000, 60000)
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    return base64.b64encode(data).decode()


PARTS = [[-9, 5], [9, 5], [9, 9]], [[20, 5], [29, 5], [29, 99]]


def test_an_object_is_cut_if_one_of_its_parts_reaches_beyond_the_image(folder, capsys):
    labelme(folder, [drawn('polygon', *points, group_id=1) for points in PARTS])
    with pytest.raises(UserError, match='1 of 1 objects extend beyond their image'):
        converted('labelme', folder)
    shapes = [
        f'<polygon label="circle" group_id="1" points="{";".join(f"{x},{y}" for x, y in points)}"/>'
        for points in (*PARTS, [[-9, 5], [-7, 5], [-8, 9]])
    ]
    cvat(folder, ''.join(shapes[:2]))
    assert len(converted('cvat', folder, skip_bad=True)) == 1
    assert 'beyond the image, and are cut at its border: 1' in capsys.readouterr().out
    cvat(folder, ''.join(shapes))
    with pytest.raises(UserError, match='object 1: box outside the image'):
        converted('cvat', folder)


BAD_SHAPES = [
    (drawn('polygon', [1, 2], [3, 4]), 'the points are not at least three pairs of numbers'),
    (drawn('cube', [1, 2]), 'shapes of the type cube are not supported'),
    (drawn('mask', [1, 2], [3, 4], mask=bomb()), 'DecompressionBombError: '),
    ({**drawn('rectangle', [1, 2], [5, 9]), 'label': 'plum'}, r'plum is not a class in classes\.t'),
]
MASK = '<mask label="circle" left="{}" top="1" width="4" height="2" rle="{}"/>'
BAD_ELEMENTS = [
    ('<box label="circle" xtl="1" ytl="1" xbr="9"/>', "KeyError: 'ybr'"),
    (MASK.format(1, '3, 4'), 'cannot reshape'),
    (MASK.format(1, '8'), 'the mask has no pixel'),
    (MASK.format(-1, '0, 8'), 'is not within it'),
]
BAD_RESULTS = [
    (region('brush', format='rle', rle=[1, 2, 3]), 'the brush is cut off'),
    (dict(region('rectangle', x=1), image_rotation=90), 'the image was rotated in Label Studio'),
    (dict(type='rectanglelabels', value=dict(rectanglelabels=['a', 'b'])), 'too many values'),
]


@pytest.mark.parametrize(
    ('tool', 'write', 'cases'),
    [
        ('labelme', labelme, BAD_SHAPES),
        ('cvat', lambda folder, shapes: cvat(folder, ''.join(shapes)), BAD_ELEMENTS),
        ('labelstudio', labelstudio, BAD_RESULTS),
    ],
)
def test_every_bad_label_of_a_tool_is_named(folder, capsys, tool, write, cases):
    (folder / 'classes.txt').write_text('pear\ncircle\n')
    write(folder, [label for label, _ in cases])
    with pytest.raises(UserError, match=f'{len(cases)} images or labels cannot be used'):
        converted(tool, folder)
    lines = capsys.readouterr().out.splitlines()
    for number, (line, (_, message)) in enumerate(zip(lines, cases, strict=True), 1):
        assert re.search(rf' {number}: .*{message}', line), (line, message)


def rewritten(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ('tool', 'write', 'message'),
    [
        ('labelme', lambda folder: None, 'has no JSON file of LabelMe'),
        ('labelme', rewritten('a.json', '{'), r'a\.json: JSONDecodeError'),
        (
            'labelme',
            rewritten('a.json', '{"shapes": [], "imagePath": "c.png", "imageData": "eA=="}'),
            r'the image inside the file is not read: no image c\.png',
        ),
        ('cvat', lambda folder: None, r'no annotations\.xml there: unpack the export'),
        (
            'cvat',
            rewritten('annotations.xml', '<annotations><track/></annotations>'),
            'holds the tracks of a video: export the task from CVAT as "CVAT for images 1.1"',
        ),
        ('labelstudio', lambda folder: None, 'has 0 JSON files: name the export'),
        ('labelstudio', rewritten('e.json', '[{"image": "a"}]'), r'as JSON \(not as JSON-MIN\)'),
        (
            'labelstudio',
            rewritten(
                'e.json',
                '[{"id": 7, "data": {}, "annotations": [{"result": []}, {"result": []}]}]',
            ),
            'task 7: 2 annotations: delete all but one, or mark one as ground truth',
        ),
    ],
)
def test_a_bad_file_of_a_tool_is_one_sentence(folder, tool, write, message):
    write(folder)
    with pytest.raises(UserError, match=message):
        converted(tool, folder)


def test_an_image_that_is_annotated_twice_is_named(folder):
    labelme(folder, [drawn('rectangle', [1, 2], [5, 9])])
    (folder / 'c.json').write_text((folder / 'a.json').read_text())
    with pytest.raises(UserError, match=r'c\.json and .*a\.json: .*a\.png is annotated twice'):
        converted('labelme', folder)
    assert len(converted('labelme', folder, skip_bad=True)) == 1
