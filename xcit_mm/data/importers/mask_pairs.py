"""Images and their label images, in two folders, paired by their names."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...base.errors import UserError
from ...base.finder import LeftOut, find_files, same_name
from .base import LabelError, Problems, absolute, split_of
from .write_coco import HELD_OUT

# What the name of a label image may have after the name of its image.
END = re.compile(
    r'([_. -](masks?|labels?|gt|seg|segmentation|segmentations|annotations?|labelids))+$', re.I
)
HINT = 'a label has the name of its image, also with an end such as _mask, _label, _gt or _seg'


class Pair(NamedTuple):
    """An image and its label image.

    Attributes:
        image: The path of the image.
        label: The path of the label image.
        name: The path of the image in the folder of the images, without its suffix.
        end: What the path of the label in the folder of the labels has after this name, or None if
            it has another path.
    """

    image: Path
    label: Path
    name: str
    end: str | None


@dataclass
class Pairs:
    """The pairs in two folders.

    Attributes:
        images: The folder of the images.
        labels: The folder of the label images.
        splits: The pairs of 'train', 'val' and 'test'; a split without a pair is missing.
        problems: What has no partner, or several.
        remarks: Numbers for the report.
    """

    images: Path
    labels: Path
    splits: dict[str, list[Pair]] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    remarks: Counter[str] = field(default_factory=Counter)

    def hold_out(self) -> None:
        """Use every tenth image for validation if there is no split for it.

        Raises:
            UserError: If no image is left to train on.
        """
        train = self.splits.get('train', [])
        if not self.splits.keys() & {'val', 'test'} and len(train) > 1:
            held_out = train[HELD_OUT - 1 :: HELD_OUT] or train[-1:]
            images = {pair.image for pair in held_out}
            self.splits['train'] = [pair for pair in train if pair.image not in images]
            self.splits['val'] = held_out
            remark = 'Images for validation, which the folders have no split for'
            self.remarks[remark] = len(held_out)
        elif not train:
            raise UserError(
                f'{self.images}: all labeled images are of {" and ".join(self.splits)}: name a '
                'folder that also has images to train on'
            )
        elif len(self.splits) == 1:
            raise UserError(
                f'{self.images}: {train[0].image.name} is the only image with a label, but one '
                'more is needed for validation: add one, or cut it in two files, for example with '
                'gdal_translate -srcwin'
            )


class _Key(NamedTuple):
    """What the paths of an image and its label have in common, and the split that a path names."""

    folder: str
    stem: str
    split: str


class _Candidate(NamedTuple):
    """A label image."""

    key: _Key
    path: Path


def find_pairs(images: Path, labels: Path) -> Pairs:
    """Pair the images and the label images below two folders, which may be the same.

    Folders inside are mirrored. If a folder is named after a split, such as ``train`` or
    ``validation``, the images in it are of this split; it may be missing on one of the two sides.

    Raises:
        UserError: If there is no image, no label image or no pair.
    """
    for folder in (images, labels):
        if not folder.is_dir():
            raise UserError(
                f'{folder} is not a folder: name the folder of the images, and the folder of their '
                'label images'
            )
    pairs, left = Pairs(absolute(images), absolute(labels)), LeftOut()
    images, labels = pairs.images, pairs.labels
    image_files = _files(images, labels, left)
    label_files = _files(labels, images, left) if images != labels else image_files
    if images == labels:
        label_files = [file for file in image_files if END.search(file.stem)]
        image_files = [file for file in image_files if not END.search(file.stem)]
    for files, folder, what in ((image_files, images, 'image'), (label_files, labels, 'label')):
        if not files:
            raise UserError(f'{folder} has no {what} image: is it the right folder? ({HINT})')
    pairs.remarks.update(left.remarks())
    _match(pairs, image_files, label_files)
    if not pairs.splits:
        raise UserError(
            f'none of the {len(label_files)} labels in {labels}, such as {label_files[0].name}, '
            f'matches an image in {images}, such as {image_files[0].name}: {HINT}'
        )
    return pairs


def _files(folder: Path, other: Path, left: LeftOut) -> list[Path]:
    """Return the images below a folder, without those of the other folder inside."""
    is_inside = other != folder and other.is_relative_to(folder)
    files = sorted(find_files(folder, left=left))
    return [file for file in files if not (is_inside and file.is_relative_to(other))]


def _match(pairs: Pairs, image_files: Sequence[Path], label_files: Sequence[Path]) -> None:
    """Fill the splits and problems."""
    of_names: dict[tuple[str, str], list[_Candidate]] = {}
    for file in label_files:
        key = _key(file, pairs.labels)
        for stem in {key.stem, END.sub('', key.stem)}:
            of_names.setdefault((key.folder, stem), []).append(_Candidate(key, file))
    owners: dict[Path, Path] = {}
    without = []
    for image in image_files:
        key = _key(image, pairs.images)
        found = _labels_of(key, of_names.get((key.folder, key.stem), []))
        if not found:
            without.append(image)
            continue
        with pairs.problems.noted(image):
            if len(found) > 1:
                files = ' or '.join(str(label.path) for label in found)
                owners |= {label.path: image for label in found}
                raise LabelError(f'{image}: is its label {files}? Remove the others')
            ((other, label),) = found
            if label in owners:
                raise LabelError(
                    f'{image}: {label} is also the label of {owners[label]}: rename or remove one'
                )
            owners[label] = image
            split = key.split or other.split or 'train'
            split = 'train' if split == 'trainval' else split
            pairs.splits.setdefault(split, []).append(_pair(pairs, image, label))
    for label in label_files:
        if label not in owners:
            pairs.problems.append(
                LabelError(f'{label}: no image in {pairs.images} has this name: {HINT}')
            )
    if without:
        pairs.remarks[f'Images without a label, such as {without[0]}, left out'] = len(without)


def _labels_of(key: _Key, candidates: Sequence[_Candidate]) -> Sequence[_Candidate]:
    """Return the labels with the name of an image, of its split, or without one on either side.

    A label with exactly this name wins over those with an end such as ``_mask``.
    """
    exact = [label for label in candidates if label.key.stem == key.stem]
    candidates = exact or candidates
    same = [label for label in candidates if label.key.split == key.split]
    return same or [label for label in candidates if not (label.key.split and key.split)]


def _key(file: Path, folder: Path) -> _Key:
    *parents, _ = file.relative_to(folder).parts
    numbers = [number for number, name in enumerate(parents) if split_of(name)]
    split = split_of(parents.pop(numbers[0])) if numbers else ''
    return _Key(same_name('/'.join(parents)), same_name(file.stem), split)


def _pair(pairs: Pairs, image: Path, label: Path) -> Pair:
    name = image.relative_to(pairs.images).with_suffix('').as_posix()
    path = label.relative_to(pairs.labels).as_posix()
    return Pair(image, label, name, path.removeprefix(name) if path.startswith(name) else None)
