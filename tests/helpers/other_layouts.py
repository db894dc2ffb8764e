"""Write a dataset in COCO's layout in the layouts of VOC and YOLO."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from xcit_mm.config.start import Start
from xcit_mm.data.importers.write_coco import objects

SCRATCH = objects(Start('n12'))  # a config that needs no weights
SPLITS = ('train', 'val')


def read_coco(root: Path, split: str) -> dict:
    """Read the annotations of a split of the built-in shapes."""
    return json.loads((root / f'coco/annotations/instances_{split}2017.json').read_text())


def images_with_objects(content: dict) -> Iterator[tuple[dict, list[dict]]]:
    for image in content['images']:
        yield image, [a for a in content['annotations'] if a['image_id'] == image['id']]


def make_voc(shapes: Path, root: Path) -> Path:
    """Write the shapes in VOC's layout."""
    for folder in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (root / folder).mkdir(parents=True)
    for split in SPLITS:
        content = read_coco(shapes, split)
        names = {category['id']: category['name'] for category in content['categories']}
        stems = []
        for image, annotations in images_with_objects(content):
            shutil.copy(shapes / 'coco' / f'{split}2017' / image['file_name'], root / 'JPEGImages')
            stems.append(Path(image['file_name']).stem)
            objects = [voc_object(names[a['category_id']], a['bbox']) for a in annotations]
            write_xml(root, stems[-1], image['width'], image['height'], ''.join(objects))
        (root / f'ImageSets/Main/{split}.txt').write_text('\n'.join(stems) + '\n')
    return root


def write_xml(root: Path, stem: str, width: int, height: int, objects: str) -> Path:
    path = root / f'Annotations/{stem}.xml'
    size = f'<size><width>{width}</width><height>{height}</height><depth>3</depth></size>'
    path.write_text(f'<annotation>\n{size}\n{objects}</annotation>\n')
    return path


def voc_object(name: str, box: list[float], more: str = '') -> str:
    x, y, width, height = box
    corners = dict(xmin=x + 1, ymin=y + 1, xmax=x + width, ymax=y + height)
    texts = ''.join(f'<{key}>{value}</{key}>' for key, value in corners.items())
    return f'<object><name>{escape(name)}</name>{more}<bndbox>{texts}</bndbox></object>\n'


def make_yolo(shapes: Path, root: Path, with_polygons: bool = False) -> Path:
    """Write the shapes in YOLO's layout, with boxes or polygons and a data.yaml."""
    for split in SPLITS:
        content = read_coco(shapes, split)
        (root / 'labels' / split).mkdir(parents=True)
        shutil.copytree(shapes / 'coco' / f'{split}2017', root / 'images' / split)
        for image, annotations in images_with_objects(content):
            lines = []
            for annotation in annotations:
                x, y, width, height = annotation['bbox']
                values = [x + width / 2, y + height / 2, width, height]
                if with_polygons:
                    (values,) = annotation['segmentation']
                sides = image['width'], image['height']
                relative = [value / sides[i % 2] for i, value in enumerate(values)]
                lines.append(' '.join(map(str, [annotation['category_id'] - 1, *relative])))
            label_file = root / f'labels/{split}/{Path(image["file_name"]).stem}.txt'
            label_file.write_text('\n'.join(lines))
    names = [category['name'] for category in content['categories']]
    (root / 'data.yaml').write_text(
        f'train: images/train\nval: images/val\nnc: {len(names)}\nnames: {json.dumps(names)}\n'
    )
    return root


def write_yaml(root: Path, names: str, val: str = 'images/val') -> None:
    (root / 'data.yaml').write_text(f'train: images/train\nval: {val}\nnames: {names}\n')
