"""The format of Label Studio: its JSON export."""

import posixpath
import re
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ...base.errors import UserError
from ...base.finder import is_hidden
from ..transforms.rotation import rotated_box
from . import areas, base, brush_rle
from .base import ForeignDataset, LabelError, Problems, Shape, Size

NAMES = ('rectanglelabels', 'polygonlabels', 'brushlabels', 'ellipselabels', 'labels')
UNSUPPORTED = ('bitmask', 'bitmasklabels', 'vector', 'vectorlabels', 'videorectangle')
# Of a region whose label is a result of its own, of the type ``labels`` and with the same area.
PLAIN = ('rectangle', 'polygon', 'brush', 'ellipse')
AREAS = (*NAMES, *UNSUPPORTED, *PLAIN)
NO_IMAGE = 'its data does not name an image'
LEFT_OUT = 'Results that are not areas with a label, such as points and choices, left out'
NOT_LABELED = 'Tasks without an annotation, left out'
# Label Studio puts eight hexadecimal digits before the name of an uploaded file.
MAX_ADDRESS = 4096  # characters; a longer one is an image itself, as in data:image/png;base64,...
UPLOADED = re.compile('[0-9a-f]{8}-')


class LabelstudioDataset(ForeignDataset):
    """The JSON file of an export, or a folder with one JSON file.

    The images are in the folder of the file or in a folder ``images`` there. The classes are those
    in classes.txt, or else the names of the labels, sorted.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        self.read_classes()
        files = [source]
        if source.is_dir():
            files = [f for f in sorted(source.glob('*.json')) if not is_hidden(f.name)]
            files = [file for file in files if not base.is_converted(file)]
        if len(files) != 1:
            raise UserError(
                f'{source} has {len(files)} JSON files: name the export of Label Studio'
            )
        self._file = base.absolute(files[0])
        tasks = base.read_json(self._file)
        is_list = isinstance(tasks, list)
        if not is_list or not all({'data', 'annotations'} <= task.keys() for task in tasks):
            raise UserError(
                f'{self._file} is not a list of tasks with data and annotations: export the '
                'project from Label Studio as JSON (not as JSON-MIN)'
            )
        self._results: dict[Path, list[tuple[int, dict]]] = {}  # each with its number in the task
        for task in tasks:
            place = f'{self._file}: task {task.get("id")}'
            with self.problems.noted(place):
                self._add(task, place)

    def _add(self, task: dict, place: str) -> None:
        done = [entry for entry in task['annotations'] if not entry.get('was_cancelled')]
        if not done:
            self.remarks[NOT_LABELED] += 1
            return
        truths = [entry for entry in done if entry.get('ground_truth')] or done
        if len(truths) > 1:
            raise ValueError(
                f'{len(truths)} annotations: delete all but one, or mark one as ground truth'
            )
        results = truths[0]['result']
        areas_of = {_image_of(r): [] for r in results if r.get('type') in AREAS} or {(None, 0): []}
        first = next(iter(areas_of.values()))
        for numbered in enumerate(results, 1):
            areas_of.get(_image_of(numbered[1]), first).append(numbered)
        images: dict[Path, list[tuple[int, dict]]] = {}
        for (tag, page), numbered in areas_of.items():
            image = self._find_image(task['data'], tag, page, place)
            images.setdefault(image, []).extend(numbered)
        for image, numbered in images.items():
            self.add_image(image, self._file)
            self._results[image] = numbered

    def _find_image(self, data: Mapping[str, Any], tag: str | None, page: int, place: str) -> Path:
        """Return the image that a tag of the labeling configuration shows.

        The data of the task has a field with the name of the tag, or only one image.
        """
        fields = [tag] if tag in data else sorted(data, key=lambda field: field != 'image')
        files, problems = {}, Problems()
        for field in fields:
            pages = data[field]
            address = pages[page] if isinstance(pages, list) and page < len(pages) else pages
            with problems.noted(place):
                files[field] = self._file_of(address, place)
        if len({*files.values()}) > 1:
            raise ValueError(
                f'is {tag} the image {" or ".join(files)}? Give the Image tag of the labeling '
                'configuration the name of its field, and export the project again'
            )
        if not files:
            raise problems[0] if problems else ValueError(NO_IMAGE)
        return next(iter(files.values()))

    def _file_of(self, address: Any, place: str) -> Path:
        """Return the file of an address: the address of an upload or of a local file."""
        if not isinstance(address, str) or len(address) > MAX_ADDRESS:
            raise ValueError(NO_IMAGE)
        url = urlsplit(address)
        path = (parse_qs(url.query).get('d') or [unquote(url.path)])[0]
        name = posixpath.basename(path)
        # The last parts of the path, the longest first.
        parts = [part for part in path.split('/') if part not in ('', '.', '..')]
        below = ['/'.join(parts[start:]) for start in range(len(parts))]
        names = [*below, UPLOADED.sub('', name, count=1)]
        folders = self.folder, self.folder / 'images'
        candidates = [folder / name for name in names if name for folder in folders]
        return base.find_image(address, candidates or folders, place)

    def read_labels(self, image: Path) -> tuple[list[tuple[str, dict]], Size | None]:
        labels, sizes = [], set()
        for number, result in self._results[image]:
            place, kind = f'{self._file}: {image.name}: result {number}', result.get('type')
            value = result.get('value')
            if kind in UNSUPPORTED:
                raise LabelError(f'{place}: results of the type {kind} are not supported')
            if kind not in NAMES or not isinstance(value, dict):
                self.remarks[LEFT_OUT] += kind not in PLAIN
                continue
            labels.append((place, result))
            sizes.add((int(result['original_width']), int(result['original_height'])))
        if len(sizes) > 1:
            raise ValueError(f'{image.name}: results for images of the sizes {sizes}')
        return labels, next(iter(sizes), None)

    def parse_label(self, label: dict, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        value = label['value']
        (name,) = value[label['type']]
        if label.get('image_rotation'):
            raise ValueError('the image was rotated in Label Studio: rotate it back there')
        return base.clean_name(name), [_shape(value, size)], False


def _image_of(result: dict) -> tuple[str, int]:
    """Return the tag of the image that a result is drawn on, and the number of its page."""
    page = result.get('item_index')
    return str(result.get('to_name')), page if type(page) is int and page > 0 else 0


def _shape(value: dict, size: Size) -> Shape:
    """Return the shape of a result, whose coordinates are percentages of the image."""

    def pixels(*names: str) -> list[float]:
        return _scaled([float(value[name]) for name in names], size)

    if 'rle' in value:
        return brush_rle.decode(value['rle'], size[::-1])
    if 'points' in value:
        return _scaled(base.read_points(value['points']), size)
    degrees = float(value.get('rotation') or 0)
    if 'radiusX' in value:
        return areas.ellipse(pixels('x', 'y'), pixels('radiusX', 'radiusY'), degrees)
    (x, y), (width, height) = pixels('x', 'y'), pixels('width', 'height')
    return rotated_box([x, y, x + width, y + height], (x, y), degrees)


def _scaled(percentages: list[float], size: Size) -> list[float]:
    return [percent * side / 100 for percent, side in zip(percentages, cycle(size))]
