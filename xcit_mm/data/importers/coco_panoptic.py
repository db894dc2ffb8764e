"""COCO's panoptic format: a JSON file for each split, and a PNG of segment ids for each image."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError, one_line
from ...base.finder import is_hidden
from ..audit.annotations import SEGMENTS, read_panoptic_annotations
from ..datasets.segment_ids import segment_ids
from . import base
from .base import SPLITS, ForeignDataset, LabelError, Shape, Size, named

FILES = ('panoptic*.json', 'annotations/panoptic*.json', '*.json', 'annotations/*.json')
PREFIX = 'panoptic_'


class ForeignPanopticDataset(ForeignDataset):
    """A folder with JSON files, which may be in a folder ``annotations``, or one JSON file.

    The name of a file says the split, as in ``panoptic_val.json``. Its PNG files are in a folder of
    its name, and its images next to it or above, also in folders such as ``images`` and ``val``.

    Attributes:
        segments: The segments of each image, as in the file.
        png_files: The PNG file of each image.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        self.segments: dict[Path, list[dict]] = {}
        self.png_files: dict[Path, Path] = {}
        self._sizes: dict[Path, Size] = {}
        globbed = (
            [file for file in sorted(source.glob(pattern)) if not is_hidden(file.name)]
            for pattern in FILES
        )
        files = [source] if source.is_file() else next(filter(None, globbed), None)
        if files is None:
            raise UserError(f'{source} has no JSON file of panoptic annotations: name the file')
        for file in map(base.absolute, files):
            self._add(file)

    def _add(self, file: Path) -> None:
        content = read_panoptic_annotations(file).content
        categories = sorted(content['categories'], key=lambda category: not category['isthing'])
        names = base.check_names([category['name'] for category in categories], file)
        num_things = sum(bool(category['isthing']) for category in categories)
        if self.classes and (names, num_things) != (self.classes, self.num_things):
            raise UserError(
                f'{file} has the classes {", ".join(names)} ({num_things} things), but '
                f'{self.classes_file} has {", ".join(self.classes)} ({self.num_things} things): '
                'make them the same, in the same order'
            )
        self.classes, self.classes_file, self.num_things = names, file, num_things
        name_of = {category['id']: name for category, name in zip(categories, names, strict=True)}
        annotations = {entry['image_id']: entry for entry in content.get('annotations', ())}
        part = file.stem.removeprefix(PREFIX)
        words = re.findall('[a-z]+', part.lower())  # train2017 is train, validation is val
        named = (name for name in SPLITS[::-1] for word in words if word.startswith(name))
        split = next(named, 'train')
        folders = [file.parent / up / down for up in ('', '..') for down in _below(part, split)]
        for info in content['images']:
            with self.problems.noted(file):
                name = info['file_name']
                image = base.find_image(name, [folder / name for folder in folders], file)
                if info['id'] not in annotations:
                    raise ValueError(f'no annotation of {one_line(name)}')
                entry = annotations[info['id']]
                self.add_image(image, file, split)
                self.segments[image] = [
                    dict(segment, name=name_of[segment['category_id']])
                    for segment in entry[SEGMENTS]
                ]
                self.png_files[image] = base.absolute(file.with_suffix('') / entry['file_name'])
                self._sizes[image] = info['width'], info['height']

    def read_labels(self, image: Path) -> tuple[list[tuple[str, Any]], Size]:
        png = self.png_files[image]
        with named(png):
            ids = segment_ids(str(png))
        if ids.shape != self._sizes[image][::-1]:
            raise LabelError(f'{png}: {ids.shape[1]}x{ids.shape[0]} pixels, unlike its image')
        listed = [segment['id'] for segment in self.segments[image]]
        unknown = np.setdiff1d(ids, [0, *listed])
        if unknown.size:
            raise LabelError(
                f'{png}: {unknown.size} segments, such as {unknown[0]}, are not in '
                f'{self.labels[image].name}'
            )
        labels = [(f'{png}: segment {s["id"]}', (s, ids)) for s in self.segments[image]]
        return labels, self._sizes[image]

    def parse_label(
        self, label: tuple[dict, np.ndarray], size: Size, place: str
    ) -> tuple[str, list[Shape], bool]:
        segment, ids = label
        return segment['name'], [ids == segment['id']], bool(segment.get('iscrowd'))


def _below(part: str, split: str) -> tuple[str, ...]:
    """Return the folders in which the images of a split may be."""
    return '', part, split, 'images', f'images/{part}', f'images/{split}'
