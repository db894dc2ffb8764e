"""What the code of annotation tools and of supervision reads and writes.

    python tests/helpers/recorded_tools.py

It writes tests/expected/annotation_tools.json with datumaro 1.13.12 for CVAT, labelme 6.3.1,
label-studio-sdk 2.1.2 and supervision 0.31.2, which the tests do not need. ``ours`` are the files
that we write for the images of annotated.py, ``read`` what these packages read from them, and
``theirs`` what they write.
"""

import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import MagicMock

import numpy as np

from helpers import DATA
from helpers.annotated import CLASSES, SIZE, masks, runs, write_annotated
from helpers.other_layouts import SCRATCH
from xcit_mm.apps.annotation_tools.convert import convert_predictions
from xcit_mm.data.importers.cvat import CvatDataset
from xcit_mm.data.importers.write_coco import convert

RECORDED = DATA / 'annotation_tools.json'


def cvat(folder: Path) -> dict:
    from datumaro.components.annotation import Bbox, Mask, Polygon, RotatedBbox
    from datumaro.components.dataset import Dataset
    from datumaro.components.dataset_base import DatasetItem
    from datumaro.components.media import Image
    from datumaro.plugins.data_formats.cvat.base import CvatBase

    read = defaultdict(list)
    shutil.copytree(folder.parent / 'images', folder / 'images')
    ours = (folder / 'annotations.xml').read_text()
    for item in CvatBase(str(folder / 'annotations.xml')):
        for annotation in item.annotations:
            name = CLASSES[annotation.label]
            if isinstance(annotation, Mask):
                read[item.id].append([name, 'mask', runs(annotation.image)])
            else:
                kind = 'box' if isinstance(annotation, Bbox) else 'polygon'
                read[item.id].append([name, kind, list(map(float, annotation.points))])
    annotations = [
        Bbox(3.25, 4.5, 20.125, 10.75, label=0),
        Polygon([5.5, 30.25, 20.12, 38.75, 2, 37.5], label=2, group=7),
        Polygon([30, 5, 50, 5, 50, 20, 30, 20], label=2, group=7),
        RotatedBbox(30, 20, 20, 10, 30, label=1),
    ]
    item = DatasetItem('a', media=Image.from_numpy(np.zeros((*SIZE[::-1], 3), np.uint8)))
    item.annotations = annotations
    Dataset.from_iterable([item], categories=CLASSES).export(str(folder / 'export'), 'cvat')
    (file,) = (folder / 'export').rglob('*.xml')
    return dict(ours=ours, read=read, theirs=file.read_text())


def labelme(folder: Path) -> dict:
    # LabelMe imports Qt, which draws its window.
    for name in ('PyQt5', 'PyQt5.QtCore', 'PyQt5.QtGui', 'PyQt5.QtWidgets'):
        sys.modules[name] = MagicMock()
    from labelme._label_file import read_label_file, write_label_file
    from labelme.utils import img_arr_to_b64, shapes_to_label

    ours, read = {}, defaultdict(list)
    for file in sorted(folder.rglob('*.json')):
        name = file.relative_to(folder).with_suffix('').as_posix()
        ours[name] = json.loads(file.read_text())
        for shape in read_label_file(str(file)).shapes:
            kind, points = shape['shape_type'], np.ravel(shape['points']).tolist()
            if kind == 'mask':
                numbers = {label: i for i, label in enumerate(CLASSES, 1)}
                points = runs(shapes_to_label(SIZE[::-1], [shape], numbers)[1] > 0)
            kind = 'box' if kind == 'rectangle' else kind
            read[name].append([shape['label'], kind, points])
    mask = masks()['parts'][5:30, 30:50]
    shapes = [
        dict(label='circle', points=[[23.375, 15.25], [3.25, 4.5]], shape_type='rectangle'),
        dict(label='circle', points=[[30, 20], [30, 10]], shape_type='circle'),
        dict(
            label='square',
            points=[[30, 5], [49, 29]],
            shape_type='mask',
            mask=img_arr_to_b64(mask.astype(np.uint8)),
        ),
        dict(label='square', points=[[3, 4]], shape_type='point'),
    ]
    shapes = [dict(dict(group_id=None, flags={}, description='', mask=None), **s) for s in shapes]
    image = dict(image_path='images\\a.png', image_height=SIZE[1], image_width=SIZE[0])
    write_label_file(str(folder / 'theirs'), shapes=shapes, **image)
    return dict(ours=ours, read=read, theirs=json.loads((folder / 'theirs').read_text()))


def labelstudio(folder: Path) -> dict:
    from label_studio_sdk.converter.brush import decode_rle, mask2rle
    from label_studio_sdk.converter.converter import Converter

    tasks, read = json.loads((folder / 'tasks.json').read_text()), defaultdict(list)
    for task in tasks:
        name = Path(task['data']['image'].partition('?d=')[2]).with_suffix('').as_posix()
        for result in task['predictions'][0]['result']:
            value, kind = result['value'], result['type'].removesuffix('labels')
            label = value[result['type']][0]
            if kind == 'brush':
                pixels = decode_rle(value['rle']).reshape(*SIZE[::-1], 4)
                read[name].append([label, 'mask', runs(pixels[..., 3] > 0)])
            elif kind == 'rectangle':
                x, y, width, height = Converter.rotated_rectangle(value)
                corners = np.array([x, y, x + width, y + height]) * [*SIZE, *SIZE] / 100
                read[name].append([label, 'box', corners.tolist()])
            else:
                points = np.multiply(value['points'], SIZE) / 100
                read[name].append([label, 'polygon', points.ravel().tolist()])
    brushes = {name: mask2rle(mask.astype(np.uint8) * 255) for name, mask in masks().items()}
    return dict(ours=tasks, read=read, theirs=brushes)


def supervision(folder: Path) -> dict:
    """What supervision reads from the annotation file of prepare_data.py."""
    from supervision import DetectionDataset

    shutil.copytree(folder.parent / 'images', folder / 'in/images')
    convert_predictions('cvat', folder.parent / 'predictions.json', folder / 'in')
    convert(CvatDataset(folder / 'in'), folder / 'out', SCRATCH)
    file, read = folder / 'out/train.json', defaultdict(list)
    content = json.loads(file.read_text())
    dataset = DetectionDataset.from_coco(str(folder / 'in'), str(file), force_masks=True)
    for path, detections in dataset.annotations.items():
        for box, mask, label in zip(
            detections.xyxy, detections.mask, detections.class_id, strict=True
        ):
            name = Path(path).relative_to(folder / 'in/images').with_suffix('').as_posix()
            read[name].append([dataset.classes[label], box.tolist(), runs(mask)])
    return dict(ours=content, read=read)


if __name__ == '__main__':
    content = {}
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        path = write_annotated(root)
        for tool in (cvat, labelme, labelstudio, supervision):
            if tool is not supervision:
                convert_predictions(tool.__name__, path, root / tool.__name__)
            content[tool.__name__] = tool(root / tool.__name__)
    RECORDED.write_text(json.dumps(content) + '\n')
