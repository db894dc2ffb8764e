"""A dataset in COCO's layout, written in those of VOC and YOLO."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

SPLITS = ('train', 'val')


def read_coco(root: Path, split: str) -> dict:
    """The annotations of a split of the built-in shapes."""
    return json.loads((root / f'coco/annotations/instances_{split}2017.json').read_text())


def objects_of(content: dict) -> list[tuple[dict, list[dict]]]:
    """Each image with its annotations."""
    annotations: dict[int, list[dict]] = {image['id']: [] for image in content['images']}
    for annotation in content['annotations']:
        annotations[annotation['image_id']].append(annotation)
    return [(image, annotations[image['id']]) for image in content['images']]


def make_voc(shapes: Path, root: Path, number: Callable[[float], float] = lambda v: v) -> Path:
    """Write the shapes as VOC has them.

    Args:
        shapes: The built-in dataset.
        root: The folder to make.
        number: What becomes of a coordinate; VOC's own are integers.
    """
    for folder in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (root / folder).mkdir(parents=True)
    for split in SPLITS:
        content = read_coco(shapes, split)
        names = {category['id']: category['name'] for category in content['categories']}
        stems = []
        for image, annotations in objects_of(content):
            shutil.copy(shapes / 'coco' / f'{split}2017' / image['file_name'], root / 'JPEGImages')
            stems.append(Path(image['file_name']).stem)
            objects = ''.join(
                voc_object(names[a['category_id']], a['bbox'], number) for a in annotations
            )
            write_xml(root, stems[-1], image['width'], image['height'], objects)
        (root / f'ImageSets/Main/{split}.txt').write_text('\n'.join(stems) + '\n')
    return root


def write_xml(root: Path, stem: str, width: int, height: int, objects: str) -> Path:
    path = root / f'Annotations/{stem}.xml'
    size = f'<size><width>{width}</width><height>{height}</height><depth>3</depth></size>'
    path.write_text(f'<annotation>\n{size}\n{objects}</annotation>\n')
    return path


def voc_object(
    name: str, box: list[float], number: Callable[[float], float] = lambda v: v, more: str = ''
) -> str:
    x, y, width, height = box
    corners = dict(xmin=x + 1, ymin=y + 1, xmax=x + width, ymax=y + height)
    texts = ''.join(f'<{key}>{number(value)}</{key}>' for key, value in corners.items())
    return f'<object><name>{escape(name)}</name>{more}<bndbox>{texts}</bndbox></object>\n'


def make_yolo(shapes: Path, root: Path, with_polygons: bool = False) -> Path:
    """Write the shapes as YOLO has them, with a data.yaml.

    Args:
        shapes: The built-in dataset.
        root: The folder to make.
        with_polygons: Instead of boxes.
    """
    for split in SPLITS:
        content = read_coco(shapes, split)
        (root / 'labels' / split).mkdir(parents=True)
        shutil.copytree(shapes / 'coco' / f'{split}2017', root / 'images' / split)
        for image, annotations in objects_of(content):
            sides = image['width'], image['height']
            lines = [yolo_line(annotation, sides, with_polygons) for annotation in annotations]
            stem = Path(image['file_name']).stem
            (root / f'labels/{split}/{stem}.txt').write_text('\n'.join(lines))
    names = [category['name'] for category in content['categories']]
    (root / 'data.yaml').write_text(
        f'train: images/train\nval: images/val\nnc: {len(names)}\nnames: {json.dumps(names)}\n'
    )
    return root


def yolo_line(annotation: dict, sides: tuple[int, int], with_polygons: bool) -> str:
    x, y, width, height = annotation['bbox']
    values = [x + width / 2, y + height / 2, width, height]
    if with_polygons:
        (values,) = annotation['segmentation']
    relative = [value / sides[i % 2] for i, value in enumerate(values)]
    return ' '.join(map(str, [annotation['category_id'] - 1, *relative]))
