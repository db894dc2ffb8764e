"""The format of LabelMe: a JSON file for each image."""

import base64
import math
from pathlib import Path, PureWindowsPath

import numpy as np

from ...base.errors import UserError
from ...base.files import EARLIER
from ...base.finder import LeftOut, find_files
from ..transforms.decode import opened
from . import areas, base
from .base import IGNORED, ForeignDataset, Shape, Size

NOT_AREAS = ('point', 'points', 'line', 'linestrip')
OUTLINES = ('polygon', 'oriented_rectangle', 'rotation', 'quadrilateral')  # also X-AnyLabeling's
LEFT_OUT = 'Points and lines, which are not objects with an area, left out'


BACKGROUND = '_background_'
OF_BACKGROUND = f'Shapes with the label {BACKGROUND}, which are not objects, left out'


class LabelmeDataset(ForeignDataset):
    """A folder with JSON files at any depth, or one JSON file.

    Images in folders train, val and test are the splits. The classes are those in classes.txt, or
    else the names of the objects, sorted. Polygons and masks of one name that share a
    ``group_id`` are the parts of one object. Shapes with the label ``__ignore__`` are neither
    objects nor background, and those with ``_background_`` are left out.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        self.read_classes()
        self.classes = [name for name in self.classes if name not in (IGNORED, BACKGROUND)]
        self._contents: dict[Path, tuple[list[dict], tuple]] = {}  # shapes, width and height
        left = LeftOut()
        is_folder = source.is_dir()
        for file in sorted(find_files(self.folder, ['.json'], left)) if is_folder else [source]:
            file = base.absolute(file)
            if any(part.startswith(EARLIER) for part in file.relative_to(self.folder).parts):
                continue  # tools/convert_predictions.py has set it aside
            with self.problems.noted(file):
                if not base.is_converted(file):
                    self._add(file)
        self.remarks.update(LeftOut(left.hidden).remarks())
        if not self.labels and not self.problems:
            raise UserError(f'{source} has no JSON file of LabelMe: name the folder they are in')

    def _add(self, file: Path) -> None:
        content = base.read_json(file)
        if not isinstance(content, dict) or 'shapes' not in content:
            raise ValueError('not a file of LabelMe (a JSON object with a list of shapes): move it')
        name, shapes = str(content.get('imagePath')), content['shapes']
        path = PureWindowsPath(name)  # LabelMe may write backslashes, or a path on another machine
        paths = [file.parent / path.as_posix(), file.parent / path.name]
        inside = ': the image inside the file is not read' if content.get('imageData') else ''
        image = base.find_image(name, paths, f'{file}{inside}')
        first = file.relative_to(self.folder).parts[0]
        self.add_image(image, file, first)
        self._contents[image] = shapes, (content.get('imageWidth'), content.get('imageHeight'))

    def read_labels(self, image: Path) -> tuple[list[tuple[str, list]], Size | None]:
        file, (shapes, sides) = self.labels[image], self._contents[image]
        parts = []
        for number, shape in enumerate(shapes, 1):
            place = f'{file}: shape {number}'
            kind, group = shape.get('shape_type', 'polygon'), shape.get('group_id')
            if kind in NOT_AREAS or shape.get('label') == BACKGROUND:
                self.remarks[LEFT_OUT if kind in NOT_AREAS else OF_BACKGROUND] += 1
                continue
            is_part = group is not None and kind != 'rectangle'
            parts.append((place, shape, (str(shape.get('label')), str(group)) if is_part else None))
        return base.grouped(parts), None if sides == (None, None) else (
            int(sides[0]),
            int(sides[1]),
        )

    def parse_label(
        self, label: list[dict], size: Size, place: str
    ) -> tuple[str, list[Shape], bool]:
        name = base.clean_name(label[0].get('label'))
        return name, [_shape(part, size) for part in label], name == IGNORED


def _shape(shape: dict, size: Size) -> Shape:
    kind, points = shape.get('shape_type', 'polygon'), shape['points']
    if kind == 'rectangle':
        outline = base.read_points(points, 4 if len(points) == 4 else 2)  # 4: X-AnyLabeling's
        xs, ys = outline[::2], outline[1::2]
        is_upright = len({*xs}) <= 2 and len({*ys}) <= 2
        return [min(xs), min(ys), max(xs), max(ys)] if is_upright else outline
    if kind == 'circle':
        x, y, x2, y2 = base.read_points(points, 2)
        return areas.ellipse((x, y), [math.hypot(x2 - x, y2 - y)] * 2)
    if kind == 'mask':  # the text of a PNG
        x1, y1, x2, y2 = map(round, base.read_points(points, 2))
        with opened(base64.b64decode(shape['mask'], validate=True), ['PNG']) as image:
            if image.size != (x2 - x1 + 1, y2 - y1 + 1):
                raise ValueError(f'the mask has {image.size} pixels, unlike its box')
            return areas.placed(np.asarray(image.convert('L')) > 0, (x1, y1), size)
    if kind in OUTLINES:
        return base.read_points(points)
    raise ValueError(f'shapes of the type {kind} are not supported')
