"""Images of labels among the images of a training without labels, found by their names."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from logging import WARNING
from pathlib import Path

from mmengine.logging import print_log

from ...base.errors import UserError

# Folders of labels in the layouts of ADE20K, Cityscapes, COCO-Stuff, Pascal VOC and others. With a
# prefix, as in train_labels, the name is in the plural: with_mask may be the folder of a class.
FOLDER = re.compile(
    r'(annotations?|anns?|ann_dir|labels?|masks?|gts?|gt_?fine|gt_?coarse|ground_?truths?'
    r'|segmentation_?(class|object|maps?)|seg_?maps?|stuffthingmaps|trimaps|panoptic'
    r'|.+[ _.-](annotations|labels|masks|gt|ground_?truth))',
    re.I,
)
BESIDE_IMAGE = re.compile(r'(.+?)[ _.-]*(masks?|labels?|gt|seg(mentation)?|annotations?)', re.I)
# The names of Cityscapes, and of the labels of a single mosaic.
ALONE = re.compile(r'.+_(label|instance)(Train)?Ids|labels|masks')
PROBLEM = 'but a training without labels would take them for images'


def require_no_labels(folder: Path, files: Sequence[Path]) -> None:
    """Refuse images of labels among the image ``files`` below a folder.

    Raises:
        UserError: If a folder has a name such as ``labels`` or ``train_masks``, a file has one such
            as ``a_mask.png`` beside ``a.png``, ``a_labelTrainIds.png`` or ``labels.tif``, or at
            least half of the images have a file with the same name and another suffix.
    """
    folders = Counter(file.parent for file in files)
    of_labels = [parent for parent in folders if _is_for_labels(folder, parent)]
    if of_labels:
        others = [parent for parent in folders if parent not in of_labels]
        hint = f', such as {max(others, key=folders.__getitem__)},' if others else ''
        raise UserError(
            f'{of_labels[0]} has the name of a folder of labels, {PROBLEM}: write the folder of '
            f'the images{hint} in data_prefix.img of the dataset, or rename a folder of images'
        )
    names = {(file.parent, file.stem) for file in files}
    for file in files:
        beside = BESIDE_IMAGE.fullmatch(file.stem)
        is_beside = beside is not None and (file.parent, beside[1]) in names
        if is_beside or ALONE.fullmatch(file.stem):
            raise UserError(
                f'{file} has the name of a file with labels, {PROBLEM}: move such files to another '
                'folder, or name the ends of the names of the images in suffixes of the dataset'
            )
    _require_one_suffix(files)


def _is_for_labels(root: Path, folder: Path) -> bool:
    names: Iterable[str] = (root.name, *folder.relative_to(root).parts)
    return any(FOLDER.fullmatch(name) for name in names)


def _require_one_suffix(files: Sequence[Path]) -> None:
    """Refuse folders in which at least half of the images have a second file."""
    suffixes: dict[tuple[Path, str], list[str]] = {}
    for file in files:
        suffixes.setdefault((file.parent, file.stem), []).append(file.suffix)
    pairs = {name: found for name, found in suffixes.items() if len(found) > 1}
    if 2 * len(pairs) >= max(len(suffixes), 1):
        (parent, stem), (first, second, *_) = next(iter(pairs.items()))
        raise UserError(
            f'{parent / stem}{first} and {stem}{second} may be an image and its labels, {PROBLEM}: '
            f"write suffixes=('{first}',) or suffixes=('{second}',) of the dataset, whichever are "
            'the images'
        )
    if pairs:
        (parent, stem), (first, second, *_) = next(iter(pairs.items()))
        print_log(
            f'{len(pairs)} of {len(suffixes)} images have a second file, such as {parent / stem}'
            f'{first} and {second}: if one of them holds labels, name the ends of the names of the '
            'images in suffixes of the dataset',
            'current',
            WARNING,
        )
