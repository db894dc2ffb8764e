"""Each unusable label of LabelMe, CVAT and Label Studio is reported in one sentence."""

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.annotated import SIZE
from helpers.labeling_tools import DATASETS, converted, cvat, drawn, labelme, labelstudio, region
from PIL import Image

from xcit_mm import UserError
from xcit_mm.data.audit import annotations


def png(*size: int) -> str:
    stored = io.BytesIO()
    Image.new('L', size, 255).save(stored, 'PNG')
    return base64.b64encode(stored.getvalue()).decode()


def bomb() -> str:
    """Return a small PNG file whose header asks for gigabytes."""
    data = bytearray(base64.b64decode(png(1, 1)))
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


def test_a_mask_with_too_many_pixels_is_one_bad_label(folder, monkeypatch):
    monkeypatch.setattr(annotations, 'MAX_PIXELS', SIZE[0] * SIZE[1])
    labelme(folder, [drawn('mask', [1, 2], [3, 4], mask=png(3, 3))])
    with pytest.raises(UserError, match=r'1 images or labels cannot be used, .*: cut the image'):
        converted('labelme', folder)


BAD_SHAPES = [
    (drawn('rectangle', [1, 2]), 'the points are not a list of 2 pairs of numbers'),
    (drawn('polygon', [1, 2], [3, 4]), 'the points are not a list of at least three pairs'),
    (drawn('polygon', [1, 2], [3, 4], [5]), 'the points are not a list'),
    (drawn('polygon', [1, 2], [3, 4], [5, None]), 'not finite numbers: 1 2 3 4 5 None'),
    (drawn('polygon', [1, 2], [3, 4], [5, 10**400]), 'not finite numbers'),
    (drawn('rectangle', [1, 2], [1, 9]), 'box of no size'),
    (drawn('rectangle', [100, 2], [110, 9]), 'box outside the image'),
    (drawn('circle', [9, 9], [9, 9]), 'box of no size'),
    (drawn('cube', [1, 2]), 'shapes of the type cube are not supported'),
    (drawn('mask', [1, 2], [3, 4]), 'the mask cannot be read'),
    (drawn('mask', [1, 2], [3, 4], mask='!'), 'the mask cannot be read'),
    (drawn('mask', [1, 2], [3, 4], mask=png(9, 9)), r'\(9, 9\) pixels instead of \(3, 3\)'),
    (drawn('mask', [1, 2], [3, 4], mask=bomb()), 'cannot be read .DecompressionBombError: '),
    (drawn('mask', [50, 2], [70, 4], mask=png(21, 3)), '21x3 pixels from 50,2 is not within'),
    (drawn('mask', [9, 9], [3, 3], mask=png(1, 1)), '-5x-5 pixels from 9,9 is not within'),
    ({**drawn('rectangle', [1, 2], [5, 9]), 'label': ' '}, 'the name is missing'),
    ({**drawn('rectangle', [1, 2], [5, 9]), 'label': 'plum'}, r'plum is not a class in classes\.t'),
]
BAD_ELEMENTS = [
    (
        '<box label="plum" xtl="1" ytl="1" xbr="9" ybr="9"/>',
        r'plum is not a class in annotations\.',
    ),
    ('<box label="circle" xtl="1" ytl="1" xbr="9"/>', 'not finite numbers: 1 1 9 None'),
    ('<box xtl="1" ytl="1" xbr="9" ybr="9"/>', 'the name is missing'),
    ('<box label="circle" rotation="x" xtl="1" ytl="1" xbr="9" ybr="9"/>', 'not finite numbers: x'),
    ('<polygon label="circle" points="1,2;3,4"/>', 'the points are not a list of at least three'),
    ('<polygon label="circle"/>', 'the points are not a list of at least three'),
    ('<cuboid label="circle"/>', 'a cuboid is not supported'),
    (
        '<mask label="circle" left="1" top="1" width="4" height="2" rle="3, 4"/>',
        'the run lengths of the mask are not of 4x2 pixels',
    ),
    (
        '<mask label="circle" left="1" top="1" width="4" height="2" rle="9, -1"/>',
        'the run lengths of the mask are not of 4x2 pixels',
    ),
    (
        '<mask label="circle" left="1" top="1" width="4" height="2" rle="8"/>',
        'the mask has no pixel',
    ),
    (
        '<mask label="circle" left="58" top="1" width="4" height="2" rle="0, 8"/>',
        '4x2 pixels from 58,1 is not within the image',
    ),
    ('<mask label="circle" left="1" top="1" width="4" height="2"/>', 'not finite numbers'),
]
BAD_RESULTS = [
    (region('rectangle', x=1, y=1, width=9), 'not finite numbers: 9 None'),
    (region('polygon', points=[[1, 1]]), 'the points are not a list'),
    (region('brush', format='rle', rle=[1, 2, 3]), r'the brush cannot be read \(the data is cut'),
    (region('brush', format='rle'), 'the brush cannot be read'),
    (dict(region('rectangle', x=1), image_rotation=90), 'the image was rotated in Label Studio'),
    (dict(type='rectanglelabels', value=dict(rectanglelabels=['a', 'b'])), 'a list of one label'),
    (dict(region('rectangle', 'plum', x=0, y=0, width=9, height=9)), 'plum is not a class in cla'),
]


@pytest.mark.parametrize(
    ('tool', 'write', 'cases'),
    [
        ('labelme', labelme, BAD_SHAPES),
        ('cvat', lambda folder, shapes: cvat(folder, ''.join(shapes)), BAD_ELEMENTS),
        ('labelstudio', labelstudio, BAD_RESULTS),
    ],
)
def test_every_bad_label_is_named(folder, capsys, tool, write, cases):
    (folder / 'classes.txt').write_text('pear\ncircle\n')
    write(folder, [label for label, _ in cases])
    with pytest.raises(UserError, match=f'{len(cases)} images or labels cannot be used'):
        converted(tool, folder)
    lines = capsys.readouterr().out.splitlines()
    for number, (line, (_, message)) in enumerate(zip(lines, cases, strict=True), 1):
        assert re.search(rf' {number}: .*{message}', line), (line, message)
    assert not list((folder / 'out').iterdir())


def rewritten(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def task(result: object = (), **entries: object) -> Callable[[Path], object]:
    return rewritten('e.json', json.dumps([{'annotations': [dict(result=result)], **entries}]))


@pytest.mark.parametrize(
    ('tool', 'write', 'message'),
    [
        ('labelme', lambda folder: None, 'has no JSON file of LabelMe'),
        ('labelme', rewritten('a.json', '{'), r'a\.json: invalid JSON'),
        ('labelme', rewritten('a.json', '[' * 5000), r'a\.json: invalid JSON'),
        ('labelme', rewritten('a.json', '[1]'), r'a\.json: not a file of LabelMe'),
        ('labelme', rewritten('a.json', '{"shapes": [], "imagePath": "c.png"}'), r'no image .*c\.'),
        (
            'labelme',
            rewritten('a.json', '{"shapes": [], "imagePath": "c.png", "imageData": "eA=="}'),
            'the image inside the file is not read',
        ),
        (
            'labelme',
            rewritten('a.json', '{"shapes": [3], "imagePath": "images/a.png"}'),
            'shape 1: not a JSON object',
        ),
        (
            'labelme',
            rewritten(
                'a.json',
                '{"shapes": [], "imagePath": "images/a.png", "imageWidth": 5, "imageHeight": 4}',
            ),
            r'size \(5, 4\), but .*a\.png has \(60, 40\) pixels',
        ),
        ('cvat', lambda folder: None, r'no annotations\.xml there: unpack the export'),
        ('cvat', rewritten('annotations.xml', '<annotations>'), 'invalid XML'),
        (
            'cvat',
            rewritten('annotations.xml', '<!DOCTYPE a [<!ENTITY a "a">]><a/>'),
            'XML entities',
        ),
        ('cvat', rewritten('annotations.xml', '<a/>'), 'the root element is <a> instead of'),
        (
            'cvat',
            rewritten('annotations.xml', '<annotations><track/></annotations>'),
            'holds the tracks of a video: export the task from CVAT as "CVAT for images 1.1"',
        ),
        (
            'cvat',
            rewritten('annotations.xml', '<annotations><image name="../z.png"/></annotations>'),
            r'no image \.\./z\.png \(looked for /.*/z\.png\)',
        ),
        ('cvat', lambda folder: cvat(folder, '', size='width="x" height="4"'), 'size: not finite'),
        ('labelstudio', lambda folder: None, 'has 0 JSON files: name the export'),
        ('labelstudio', rewritten('e.json', '{}'), 'is not a list of tasks with data and annotat'),
        ('labelstudio', rewritten('e.json', '[{"image": "a"}]'), r'as JSON \(not as JSON-MIN\)'),
        (
            'labelstudio',
            rewritten('e.json', '[{"data": {"image": "c.png"}, "annotations": [{"result": []}]}]'),
            r'task None: no image c\.png \(looked for /.*/c\.png\)',
        ),
        (
            'labelstudio',
            rewritten('e.json', '[{"data": {"image": 3}, "annotations": [{"result": []}]}]'),
            'its data does not name an image',
        ),
        (
            'labelstudio',
            rewritten('e.json', '[{"id": 7, "data": {}, "annotations": [{"result": 5}]}]'),
            'task 7: the result of its annotation is not a list of objects',
        ),
        ('labelstudio', task(data=dict(image='http://[a')), r'http://\[a is not an address \(Inva'),
        ('labelstudio', task(data=dict(image='/a' * 10**4)), 'its data does not name an image'),
        ('labelstudio', task(result=[dict(to_name=['a'])], data=dict(image='c')), 'no image c '),
        (
            'labelstudio',
            rewritten(
                'e.json',
                '[{"id": 7, "data": {}, "annotations": [{"result": []}, {"result": []}]}]',
            ),
            'task 7 has 2 annotations: delete all but one, or mark one as ground truth',
        ),
        (
            'labelstudio',
            lambda folder: labelstudio(folder, [dict(type='bitmask', value={})]),
            'results of the type bitmask are not supported',
        ),
        (
            'labelstudio',
            lambda folder: labelstudio(folder, [dict(region('rectangle'), original_width=None)]),
            'size: not finite numbers: None 40',
        ),
    ],
)
def test_a_bad_file_is_one_sentence(folder, tool, write, message):
    write(folder)
    with pytest.raises(UserError, match=message):
        converted(tool, folder)


@pytest.mark.parametrize('name', ['x' * 300, f'data:image/png;base64,{"QUJD" * 100}'])
@pytest.mark.parametrize('tool', DATASETS)
def test_any_text_may_be_the_name_of_an_image(folder, tool, name):
    write_named = dict(
        labelme=rewritten('a.json', json.dumps(dict(shapes=[], imagePath=name))),
        cvat=rewritten('annotations.xml', f'<annotations><image name="{name}"/></annotations>'),
        labelstudio=task([], data=dict(image=name)),
    )
    write_named[tool](folder)
    with pytest.raises(
        UserError, match=f'no image {name[:9]}.* \\.\\.\\. .* .looked for /'
    ) as raised:
        converted(tool, folder)
    assert len(str(raised.value)) < 1000


def test_an_image_that_is_annotated_twice_is_named(folder):
    labelme(folder, [drawn('rectangle', [1, 2], [5, 9])])
    (folder / 'c.json').write_text((folder / 'a.json').read_text())
    with pytest.raises(UserError, match=r'c\.json and .*a\.json: .*a\.png is annotated twice'):
        converted('labelme', folder)
    assert len(converted('labelme', folder, skip_bad=True)) == 1
