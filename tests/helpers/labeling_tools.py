"""Writes LabelMe, CVAT and Label Studio files for two images, and converts them."""

import json
from pathlib import Path

from xcit_mm.data.importers.cvat import CvatDataset
from xcit_mm.data.importers.labelme import LabelmeDataset
from xcit_mm.data.importers.labelstudio import LabelstudioDataset
from xcit_mm.data.importers.write_coco import convert

from .annotated import CLASSES, SIZE
from .other_layouts import SCRATCH

DATASETS = dict(cvat=CvatDataset, labelme=LabelmeDataset, labelstudio=LabelstudioDataset)


def drawn(kind: str, *points: object, **more: object) -> dict:
    return dict(label='pear', shape_type=kind, points=[*points], **more)


def labelme(folder: Path, shapes: list[dict], **more: object) -> None:
    size = dict(imageWidth=SIZE[0], imageHeight=SIZE[1])
    for name, own in (('a', shapes), ('b', [])):
        content = dict(shapes=own, imagePath=f'images\\{name}.png', **size, **more)
        (folder / f'{name}.json').write_text(json.dumps(content))


def cvat(folder: Path, shapes: str, more: str = '', size: str = 'width="60" height="40"') -> None:
    labels = ''.join(f'<label><name>{name}</name></label>' for name in CLASSES)
    (folder / 'annotations.xml').write_text(
        f'<annotations><meta><task><labels>{labels}</labels></task></meta>{more}'
        f'<image id="0" name="a.png" {size}>{shapes}</image>'
        f'<image id="1" name="b.png" {size}/></annotations>'
    )


def labelstudio(folder: Path, results: list[dict], **more: object) -> None:
    sides = dict(to_name='image', original_width=SIZE[0], original_height=SIZE[1])
    results = [{**sides, **result} for result in results]
    tasks = [
        dict(id=1, data=dict(image='/data/upload/1/0123abcd-a.png'), annotations=[result])
        for result in [dict(result=results, **more)]
    ]
    tasks.append(dict(id=2, data=dict(image='x:8080/b.png'), annotations=[dict(result=[])]))
    (folder / 'export.json').write_text(json.dumps(tasks))


def region(kind: str, name: str = 'circle', **value: object) -> dict:
    return dict(type=f'{kind}labels', value={**value, f'{kind}labels': [name]})


def converted(tool: str, folder: Path, skip_bad: bool = False) -> list[dict]:
    """Return the annotations of a.png."""
    convert(DATASETS[tool](folder), folder / 'out', SCRATCH, skip_bad)
    content = json.loads((folder / 'out/train.json').read_text())
    assert [Path(image['file_name']).name for image in content['images']] == ['a.png']
    return content['annotations']
