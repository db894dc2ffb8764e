"""Datasets of LabelMe, CVAT and Label Studio, converted to COCO's format."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import DATA
from helpers.annotated import SIZE, masks, runs
from helpers.labeling_tools import (
    DATASETS,
    converted,
    cvat,
    drawn,
    labelme,
    labelstudio,
    region,
)
from helpers.other_layouts import SCRATCH
from PIL import Image
from pycocotools import mask as coco_mask

from xcit_mm import UserError
from xcit_mm.data.importers import brush_rle
from xcit_mm.data.importers.contents import read_contents
from xcit_mm.data.importers.cvat import CvatDataset
from xcit_mm.data.importers.labelme import LabelmeDataset
from xcit_mm.data.importers.labelstudio import LabelstudioDataset
from xcit_mm.data.importers.write_coco import convert

RECORDED = json.loads((DATA / 'annotation_tools.json').read_text())


def corners(annotation: dict) -> np.ndarray:
    return np.reshape(annotation['segmentation'][0], (-1, 2))


def decode(annotation: dict) -> np.ndarray:
    return coco_mask.decode(annotation['segmentation'])


TURNED = [[26.34, 5], [33.66, 5], [33.66, 15], [26.34, 15]]


def test_files_of_the_tools_themselves_are_read(folder, capsys):
    (folder / 'annotations.xml').write_text(RECORDED['cvat']['theirs'].replace('.jpg', '.png'))
    with pytest.raises(UserError, match='too few images'):  # datumaro knows one image
        converted('cvat', folder)
    capsys.readouterr()
    text = (folder / 'annotations.xml').read_text()
    second = '<image id="1" name="b.png" width="60" height="40"/></annotations>'
    (folder / 'annotations.xml').write_text(text.replace('</annotations>', second))
    box, joined, oriented = converted('cvat', folder)
    assert box['bbox'] == [3.25, 4.5, 20.13, 10.75]
    assert decode(joined)[:20, 30:50][5:].all() and decode(joined)[35, 9]
    assert joined['category_id'] == 3
    # A box of 20x10 pixels around (30, 20), turned by 30 degrees.
    half = 10 * math.cos(math.radians(30)) + 5 * math.sin(math.radians(30))
    assert oriented['bbox'][2] == pytest.approx(2 * half, abs=1e-3)
    assert oriented['area'] == pytest.approx(200, abs=1e-2)

    theirs = RECORDED['labelme']['theirs']
    labelme(folder, theirs['shapes'])
    (folder / 'out').rename(folder.parent / f'{folder.name}_cvat')
    box, circle, mask = converted('labelme', folder)
    assert box['bbox'] == [3.25, 4.5, 20.125, 10.75]
    assert circle['bbox'] == pytest.approx([20, 10, 20, 20], abs=1e-3)
    assert circle['area'] == pytest.approx(100 * math.pi, rel=1e-4)
    assert mask['segmentation']['counts'] == runs(masks()['parts'])
    assert 'Points and lines, which are not objects with an area, left out: 1' in (
        capsys.readouterr().out
    )


def test_brushes_of_label_studio_are_read(folder):
    theirs = RECORDED['labelstudio']['theirs']
    labelstudio(folder, [region('brush', format='rle', rle=rle) for rle in theirs.values()])
    found = [
        annotation['segmentation']['counts'] for annotation in converted('labelstudio', folder)
    ]
    assert found == [runs(mask) for mask in masks().values()]


@pytest.mark.parametrize('shape', [(1, 1), (30, 41), (200, 200)])
def test_brushes_are_encoded_and_decoded(shape):
    generator = np.random.default_rng(0)
    for share in (0.3, 1):
        mask = generator.random(shape) < share
        data = brush_rle.encode(mask)
        np.testing.assert_array_equal(brush_rle.decode(data, shape), mask)
        for wrong in (data[:-1], data[:6], [], None, 'text', [300], [1.5] * 9):
            with pytest.raises((ValueError, TypeError)):
                brush_rle.decode(wrong, shape)


def test_shapes_of_label_studio_are_rotated_around_their_corner_or_center(folder):
    # Percentages of 60x40 pixels.
    upright = dict(x=5, y=20, width=25, height=50)
    labelstudio(
        folder,
        [
            region('rectangle', **upright, rotation=0),
            region('rectangle', **dict(upright, x=50), rotation=90),
            region('ellipse', x=50, y=50, radiusX=10, radiusY=25, rotation=90),
            region('polygon', 'square', points=[[10, 10], [20, 10], [20, 50]]),
            dict(type='labels', value=dict(x=0, y=0, width=50, height=25, labels=['square'])),
            dict(type='rectangle', value=dict(x=0, y=0, width=50, height=25)),
            dict(type='choices', value=dict(choices=['sharp'])),
        ],
    )
    box, turned, ellipse, polygon, plain = converted('labelstudio', folder)
    assert box['bbox'] == [3, 8, 15, 20] and 'segmentation' not in box
    # Its width of 15 pixels points down from (30, 8), and its height of 20 pixels to the left.
    assert turned['bbox'] == pytest.approx([10, 8, 20, 15], abs=1e-3)
    np.testing.assert_allclose(corners(turned)[:2], [[30, 8], [30, 23]], atol=1e-3)
    assert ellipse['bbox'] == pytest.approx([20, 14, 20, 12], abs=1e-3)
    assert polygon['segmentation'] == [[6, 4, 12, 4, 12, 20]]
    assert plain['bbox'] == [0, 0, 30, 10] and plain['category_id'] == 2


def test_tasks_of_label_studio_choose_one_annotation(folder, capsys):
    labelstudio(folder, [])
    tasks = json.loads((folder / 'export.json').read_text())
    box = region('rectangle', x=0, y=0, width=50, height=25)
    box |= dict(original_width=SIZE[0], original_height=SIZE[1])
    skipped, truth = dict(was_cancelled=True, result=[]), dict(ground_truth=True, result=[box])
    tasks[0]['annotations'] = [skipped, dict(result=[]), truth]
    tasks.append(dict(id=3, data=dict(image='c.png'), annotations=[skipped]))
    (folder / 'export.json').write_text(json.dumps(tasks))
    assert [a['bbox'] for a in converted('labelstudio', folder)] == [[0, 0, 30, 10]]
    assert 'Tasks without an annotation, left out: 1' in capsys.readouterr().out


@pytest.mark.parametrize(
    'address',
    ['/data/local-files/?d=set%201/a%20b.png', 'http://h/x/set%201/a%20b.png', 'set 1/a b.png'],
)
def test_the_image_of_a_task_is_found_by_its_address(folder, address):
    (folder / 'set 1').mkdir()
    (folder / 'images/a.png').rename(folder / 'set 1/a b.png')
    labelstudio(folder, [region('rectangle', x=0, y=0, width=50, height=25)])
    tasks = json.loads((folder / 'export.json').read_text())
    tasks[0]['data'] = dict(text='first', image=address)
    (folder / 'export.json').write_text(json.dumps(tasks))
    convert(LabelstudioDataset(folder / 'export.json'), folder / 'out', SCRATCH)
    content = json.loads((folder / 'out/train.json').read_text())
    assert content['images'][0]['file_name'] == 'set 1/a b.png'


def test_images_of_labelme_were_on_another_machine_and_of_another_spelling(folder):
    (folder / 'images/a.png').rename(folder / 'a\u0308.png')  # as macOS writes it
    labelme(folder, [drawn('rectangle', [1, 2], [9, 8])])
    content = json.loads((folder / 'a.json').read_text())
    content['imagePath'] = 'C:\\Users\\me\\\u00e4.png'
    (folder / 'a.json').write_text(json.dumps(content))
    dataset = LabelmeDataset(folder)
    assert {path.name for path in dataset.labels} == {'a\u0308.png', 'b.png'}


def test_splits_are_folders_of_labelme_and_subsets_of_cvat(folder):
    for split in ('train', 'valid'):
        (folder / split).mkdir()
        Image.new('RGB', SIZE).save(folder / split / 'c.png')
        shapes = [dict(label='pear', points=[[1, 1], [9, 9]], shape_type='rectangle')]
        content = dict(shapes=shapes, imagePath='c.png')
        (folder / split / 'c.json').write_text(json.dumps(content))
    convert(LabelmeDataset(folder), folder / 'out', SCRATCH)
    box = '<box label="circle" xtl="1" ytl="1" xbr="9" ybr="9"/>'
    images = ''.join(
        f'<image id="{i}" name="c.png" subset="{subset}" width="60" height="40">{box}</image>'
        for i, subset in enumerate(('Train', 'Validation'))
    )
    (folder / 'Train').symlink_to('train')
    (folder / 'Validation').symlink_to('valid')
    cvat(folder, '', more=images)
    convert(CvatDataset(folder), folder / 'out2', SCRATCH)
    for out, split in (('out', 'valid'), ('out2', 'Validation')):
        val = json.loads((folder / out / 'val.json').read_text())
        assert [i['file_name'] for i in val['images']] == [f'{split}/c.png']
        assert len(val['annotations']) == 1


@pytest.mark.parametrize('tool', ['labelme', 'labelstudio'])
def test_annotation_files_may_be_written_next_to_the_labels(folder, tool):
    if tool == 'labelme':
        labelme(folder, [drawn('rectangle', [1, 2], [9, 8])])
    else:
        labelstudio(folder, [region('rectangle', x=10, y=10, width=20, height=20)])
    written = []
    for _ in range(2):
        convert(DATASETS[tool](folder), folder, SCRATCH)
        written.append((folder / 'train.json').read_text())
    assert written[0] == written[1]


def two_images(folder: Path, data: dict, *results: dict) -> LabelstudioDataset:
    sides = dict(original_width=SIZE[0], original_height=SIZE[1])
    results = [region('rectangle', x=10, y=20, width=25, height=50) | sides | r for r in results]
    task = dict(id=7, data=data, annotations=[dict(result=results)])
    (folder / 'export.json').write_text(json.dumps([task]))
    return LabelstudioDataset(folder)


def test_results_of_label_studio_are_drawn_on_the_image_that_they_name(folder):
    left, right = (dict(to_name=name) for name in ('left', 'right'))
    uploads = dict(left='/data/upload/1/0123abcd-a.png', right='/data/upload/1/0123abcd-b.png')
    pages = dict(text='a text', image=[*uploads.values()])
    for data, results in (
        (uploads, [right, left, right]),
        (pages, [dict(to_name='image', item_index=i) for i in (1, 0, 1)]),
    ):
        contents = read_contents(two_images(folder, data, *results))
        found = {path.name: len(dataset) for path, (_, dataset) in contents.images.items()}
        assert found == {'a.png': 1, 'b.png': 1} and not contents.problems
        assert contents.remarks['Duplicate objects dropped'] == 1
    (problem,) = two_images(folder, uploads, dict(to_name='img')).problems
    assert 'task 7: is img the image left or right?' in str(problem)
    assert not two_images(folder, dict(photo='b.png', title='x'), dict(to_name='img')).problems


def test_frames_of_cvat_without_a_suffix_are_found(folder):
    (folder / 'images/a.png').rename(folder / 'images/a.PNG')
    cvat(folder, '<box label="circle" xtl="1" ytl="2" xbr="9" ybr="9"/>')
    file = folder / 'annotations.xml'
    file.write_text(
        file.read_text().replace('.png"', '"').replace('name="b"', 'name="b" subset="x"')
    )
    contents = read_contents(CvatDataset(folder))
    assert [path.name for path in contents.images] == ['a.PNG', 'b.png']
    assert contents.remarks['Images of the subset x, used for training'] == 1
    Image.new('RGB', SIZE).save(folder / 'images/b.jpg')
    (problem,) = CvatDataset(folder).problems
    assert 'is b' in str(problem) and 'b.jpg or ' in str(problem)


def test_regions_of_labelme_are_ignored_or_background_and_rectangles_may_have_four_corners(folder):
    upright = [[20, 5], [3, 5], [3, 15], [20, 15]]
    around = [[10, 0], [20, 10], [10, 20], [0, 10]]
    shapes = [('square', 'rectangle', upright), ('circle', 'rectangle', around)]
    shapes += [('circle', 'rotation', around), ('__ignore__', 'rectangle', [[0, 0], [5, 9]])]
    shapes += [('_background_', 'polygon', around)]
    labelme(folder, [dict(label=n, shape_type=k, points=p) for n, k, p in shapes])
    (folder / 'classes.txt').write_text('__ignore__\n_background_\ncircle\nsquare\n')
    (folder / '.ipynb_checkpoints').mkdir()
    (folder / '.ipynb_checkpoints/a-checkpoint.json').write_text((folder / 'a.json').read_text())
    square, *circles, ignored, again = converted('labelme', folder)
    assert square['bbox'] == [3, 5, 17, 10] and 'segmentation' not in square
    for circle in circles:
        assert circle['area'] == 200 and circle['bbox'] == [0, 0, 20, 20]
    # COCO ignores detections of each class by regions of that class.
    assert [a['category_id'] for a in (ignored, again)] == [1, 2]
    assert ignored['iscrowd'] == again['iscrowd'] == 1 and ignored['bbox'] == [0, 0, 5, 9]
    remarks = read_contents(LabelmeDataset(folder)).remarks
    assert sum(n for text, n in remarks.items() if '_background_' in text) == 1
    assert sum(n for text, n in remarks.items() if 'Hidden' in text) == 1
