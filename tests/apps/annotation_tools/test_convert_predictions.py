"""Predictions that are written for annotation tools, and read again by prepare_data.py."""

import json
import ntpath
import shutil
from collections.abc import Callable
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
from helpers import DATA
from helpers.annotated import BOX, CLASSES, SIZE, TRIANGLE, masks, runs, write_annotated
from helpers.in_process import call_tool
from helpers.other_layouts import SCRATCH
from pycocotools import mask as coco_mask

from xcit_mm import UserError
from xcit_mm.apps.annotation_tools.convert import convert_predictions
from xcit_mm.apps.annotation_tools.labelme import path_from
from xcit_mm.apps.annotation_tools.objects import names_of
from xcit_mm.data.audit import annotations
from xcit_mm.data.importers.cvat import CvatDataset
from xcit_mm.data.importers.labelme import LabelmeDataset
from xcit_mm.data.importers.labelstudio import LabelstudioDataset
from xcit_mm.data.importers.write_coco import convert

DATASETS = dict(cvat=CvatDataset, labelme=LabelmeDataset, labelstudio=LabelstudioDataset)


@pytest.fixture
def written(tmp_path) -> Callable[..., Path]:
    """Write predictions for a tool, and return the folder."""
    path = write_annotated(tmp_path)

    def write(tool: str, **options) -> Path:
        convert_predictions(tool, path, tmp_path / tool, **options)
        return tmp_path / tool

    return write


def read_again(tool: str, folder: Path) -> dict[str, list[dict]]:
    """Return the annotations of each image that prepare_data.py reads from a tool's files."""
    if tool == 'labelstudio':  # a person accepts the predictions, and exports the project
        tasks = json.loads((folder / 'tasks.json').read_text())
        for task in tasks:
            task['annotations'] = task.pop('predictions')
        (folder / 'tasks.json').write_text(json.dumps(tasks))
    if tool != 'labelme':  # whose files name the images
        shutil.copytree(folder.parent / 'images', folder / 'images')
    convert(DATASETS[tool](folder), folder / 'coco', SCRATCH)
    found: dict[str, list[dict]] = {}
    for split in ('train', 'val'):
        content = json.loads((folder / f'coco/{split}.json').read_text())
        names = {c['id']: c['name'] for c in content['categories']}
        for image in content['images']:
            name = image['file_name'].split('images/')[-1]
            own = [a for a in content['annotations'] if a['image_id'] == image['id']]
            found[name] = [dict(a, name=names[a['category_id']]) for a in own]
    return found


@pytest.mark.parametrize('tool', DATASETS)
def test_boxes_return_exactly_and_masks_to_the_pixel(written, tool):
    found = read_again(tool, written(tool))
    assert found.keys() == {'a.png', 'below/b.png', 'c.png'} and found['c.png'] == []
    box, triangle, parts = found['a.png']
    assert [item['name'] for item in found['a.png']] == ['circle', 'triangle', 'square']
    assert box['bbox'] == pytest.approx(BOX, abs=1e-3) and 'segmentation' not in box
    assert triangle['segmentation'][0] == pytest.approx(TRIANGLE, abs=1e-3)
    assert len(found['below/b.png']) == 2
    for item, mask in zip((parts, *found['below/b.png']), masks().values(), strict=True):
        np.testing.assert_array_equal(coco_mask.decode(item['segmentation']), mask)
        rows, columns = np.nonzero(mask)
        x, y = columns.min(), rows.min()
        assert item['bbox'] == [x, y, columns.max() - x + 1, rows.max() - y + 1]
        assert item['area'] == mask.sum()


@pytest.mark.parametrize('tool', DATASETS)
def test_objects_may_be_written_as_boxes_or_with_the_polygons_of_their_parts(written, tool):
    boxes = read_again(tool, written(tool, kind='boxes'))
    assert boxes['a.png'][2]['bbox'] == [30, 5, 20, 25]
    assert not any('segmentation' in item for items in boxes.values() for item in items)
    shutil.rmtree(written(tool, kind='boxes'))
    parts = read_again(tool, written(tool, kind='polygons'))['a.png'][2:]
    if tool == 'labelstudio':  # has no groups
        outlines = [item['segmentation'][0] for item in parts]
        areas = sorted(np.ptp(np.reshape(outline, (-1, 2)), axis=0).prod() for outline in outlines)
        assert areas == [25, 300]
    else:  # the hole is filled
        (item,) = parts
        assert coco_mask.decode(item['segmentation']).sum() == 15 * 20 + 5 * 5


def test_names_of_images_may_be_relative_to_a_folder(tmp_path):
    path = write_annotated(tmp_path)
    path.write_text(path.read_text().replace(f'{tmp_path}/images/', ''))
    convert_predictions('labelme', path, tmp_path / 'labelme', folder=tmp_path / 'images')
    assert read_again('labelme', tmp_path / 'labelme').keys() == {'a.png', 'below/b.png', 'c.png'}


@pytest.mark.parametrize('tool', DATASETS)
def test_boxes_of_images_that_are_too_large_for_masks_are_written(
    written, tmp_path, tool, monkeypatch
):
    path = tmp_path / 'predictions.json'
    content = json.loads(path.read_text())
    content['annotations'][2]['segmentation']['counts'] = 'no run lengths'
    path.write_text(json.dumps(content))
    monkeypatch.setattr(annotations, 'MAX_PIXELS', SIZE[0] * SIZE[1])
    with pytest.raises(UserError, match='use boxes only'):
        written(tool)
    found = read_again(tool, written(tool, kind='boxes'))
    assert [len(items) for items in found.values()] == [3, 2, 0]


@pytest.mark.parametrize('tool', DATASETS)
def test_control_characters_of_class_names_become_question_marks(written, tmp_path, tool):
    path = tmp_path / 'predictions.json'
    path.write_text(path.read_text().replace('triangle', 'a\\u001bb'))
    found = read_again(tool, written(tool))
    assert [item['name'] for item in found['a.png']] == ['circle', 'a?b', 'square']


def test_images_and_files_may_be_on_several_drives_of_windows(monkeypatch):
    for name in ('commonpath', 'relpath'):
        monkeypatch.setattr(f'os.path.{name}', getattr(ntpath, name))
    here, there = PureWindowsPath('C:/x/y/a.png'), PureWindowsPath('D:/x/a.png')
    assert names_of([here, PureWindowsPath('C:/x/b.png')]) == ['y/a.png', 'b.png']
    assert names_of([here, there]) == ['x/y/a.png', 'x/a.png']
    assert path_from(PureWindowsPath('C:/x/out'), here) == '..\\y\\a.png'
    assert path_from(PureWindowsPath('C:/x/out'), there) == 'D:\\x\\a.png'


def test_objects_below_a_score_are_left_out(written):
    assert 'circle' in (written('cvat', score_thr=0.75) / 'annotations.xml').read_text()
    found = read_again('cvat', written('cvat', score_thr=0.75))
    assert [len(items) for items in found.values()] == [1, 0, 0]


def test_tasks_have_scores_addresses_and_a_configuration_that_fits(written):
    folder = written('labelstudio', image_url='https://images.example/')
    task, other, empty = json.loads((folder / 'tasks.json').read_text())
    assert other['data'] == dict(image='https://images.example/below/b.png')
    (prediction,) = task['predictions']
    assert prediction['score'] == (0.75 + 0.5 + 0.25) / 3
    assert empty['predictions'] == [dict(model_version='xcit_mm', result=[])]
    kinds = {result['type']: result['from_name'] for result in prediction['result']}
    config = (folder / 'labeling_config.xml').read_text()
    assert len(kinds) == 3
    for kind, name in kinds.items():
        assert f'<{name} name="{name}" toName="image">' in config and name.lower() == kind
    assert all(f'<Label value="{name}" />' in config for name in CLASSES)


def test_the_tool_says_what_it_wrote_and_keeps_earlier_files(monkeypatch, capfd, tmp_path):
    path = write_annotated(tmp_path)
    typed = 'convert_predictions.py', 'labelme', tmp_path, '--out', tmp_path / 'out'
    code, output, _ = call_tool(monkeypatch, capfd, *typed)
    assert code == 0
    expected = ['3 images, 5 objects', f'Everything was written to {tmp_path}/out']
    assert output.splitlines() == expected
    assert 'was already there' in call_tool(monkeypatch, capfd, *typed)[1]
    (tmp_path / 'out/below/b.json').write_text('edited')
    output = call_tool(monkeypatch, capfd, *typed)[1]
    (aside,) = (tmp_path / 'out').glob('earlier_*')
    assert f'Earlier files are now in {aside}' in output
    assert (aside / 'below/b.json').read_text() == 'edited'
    assert len(LabelmeDataset(tmp_path / 'out').labels) == 3  # without what was set aside
    assert call_tool(monkeypatch, capfd, *typed, '--image-url', 'x')[0] == 2
    path.write_text('{}')
    code, _, error = call_tool(monkeypatch, capfd, *typed)
    assert code == 2 and 'is not a COCO annotation file' in error


@pytest.mark.parametrize('tool', DATASETS)
@pytest.mark.parametrize('kind', ['masks', 'polygons'])
def test_polygons_without_a_pixel_are_boxes(tmp_path, tool, kind):
    path = write_annotated(tmp_path)
    content = json.loads(path.read_text())
    slivers = [[x, 5.1, x + 0.2, 5.1, x + 0.2, 5.3] for x in (4.1, 8.1)]
    content['annotations'][0]['segmentation'] = slivers
    path.write_text(json.dumps(content))
    convert_predictions(tool, path, tmp_path / tool, kind=kind)
    boxes = [
        obj['bbox'] for objects in read_again(tool, tmp_path / tool).values() for obj in objects
    ]
    assert any(box == pytest.approx(BOX, abs=1e-3) for box in boxes)


def test_other_packages_read_the_same_objects(written, tmp_path):
    """The files of recorded_tools.py, which says what their packages read from them."""
    recorded = json.loads((DATA / 'annotation_tools.json').read_text())
    assert (written('cvat') / 'annotations.xml').read_text() == recorded['cvat']['ours']
    folder = written('labelme')
    for name, expected in recorded['labelme']['ours'].items():
        assert json.loads((folder / f'{name}.json').read_text()) == expected
    tasks = json.loads((written('labelstudio') / 'tasks.json').read_text())
    assert tasks == recorded['labelstudio']['ours']

    x, y, width, height = BOX
    box = [x, y, x + width, y + height]
    encoded = [['square', 'mask', runs(mask)] for mask in masks().values()]
    for tool in DATASETS:
        read = recorded[tool]['read']
        first, second, third = read['a']
        assert (first[:2], second[:2]) == (['circle', 'box'], ['triangle', 'polygon'])
        assert first[2] == pytest.approx(box, abs=1e-2)
        assert second[2] == pytest.approx(TRIANGLE, abs=1e-2)
        assert [third, *read['below/b']] == encoded


def test_supervision_reads_what_prepare_data_writes(written, tmp_path):
    recorded = json.loads((DATA / 'annotation_tools.json').read_text())['supervision']
    read_again('cvat', written('cvat'))
    assert json.loads((tmp_path / 'cvat/coco/train.json').read_text()) == recorded['ours']
    (_, box, _), _, (*_, parts) = recorded['read']['a']
    assert box == pytest.approx([BOX[0], BOX[1], BOX[0] + BOX[2], BOX[1] + BOX[3]], abs=1e-2)
    found = [parts, *(mask for *_, mask in recorded['read']['below/b'])]
    assert found == [runs(mask) for mask in masks().values()]


def test_two_images_of_one_file_of_labelme_are_refused(tmp_path):
    path = write_annotated(tmp_path)
    path.write_text(path.read_text().replace('c.png', 'a.jpg'))
    with pytest.raises(
        UserError, match=r'a\.png and .*a\.jpg would share the file a\.json of Labe'
    ):
        convert_predictions('labelme', path, tmp_path / 'out')
