"""Folders of images: without labels, or with a folder for each class."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from ...base.errors import UserError, printable
from ...base.finder import IMAGE_SUFFIXES, LeftOut, find_files, subfolders
from ..audit.examples import examples_in_lists


class ImageFolders(BaseDataset):
    """Images in folders.

    Args:
        data_prefix: ``dict(img=...)``, the folder of the images.
        suffixes: The ends of the names of image files, in lower case.
        kwargs: Other arguments of mmengine's ``BaseDataset``.
    """

    def __init__(
        self,
        *args: Any,
        data_prefix: Mapping[str, str] | None = None,
        suffixes: Sequence[str] = IMAGE_SUFFIXES,
        **kwargs: Any,
    ) -> None:
        self.suffixes = tuple(suffixes)
        prefix = {'img': '', **(data_prefix or {})}
        super().__init__(*args, data_prefix=prefix, **kwargs)


@DATASETS.register_module()
class UnlabeledImages(ImageFolders):
    """All images in a folder and its folders, for a training without labels.

    A sample has ``img_path``. Folders of classes are fine, but their names are ignored.

    Raises:
        UserError: If the folder has no image.
    """

    def load_data_list(self) -> list[dict]:
        folder = Path(self.data_prefix['img'])
        (files,) = images_below(self, [folder], self.suffixes)
        if not files:
            raise UserError(
                f'{folder} has no image ({", ".join(self.suffixes)}): write the folder of your '
                'images in data_prefix.img of the dataset'
            )
        inside = {file.parent for file in files}
        if len(inside) > 1:
            print_log(
                f'{folder}: {len(files)} images in {len(inside)} folders, whose names are ignored',
                'current',
            )
        return [dict(img_path=str(file)) for file in files]


@DATASETS.register_module()
class ClassFolders(ImageFolders):
    """Images in a folder for each class, as ImageNet has them.

    The classes are the names of the folders in alphabetical order, or ``metainfo['classes']``. A
    sample has ``img_path`` and ``gt_label``.

    Raises:
        UserError: If a class has no folder or no image, or a folder is not a class.
    """

    def load_data_list(self) -> list[dict]:
        folder = Path(self.data_prefix['img'])
        names = [path.name for path in subfolders(folder)]
        classes = list(self._metainfo.get('classes') or names)
        if not names or not set(names) <= set(classes):
            folders = f'has the folders {", ".join(names[:5])}' if names else 'has no folders'
            wanted = ', '.join(classes[:5]) or 'one for each class'
            raise UserError(
                f'{folder} {folders}, but its folders are the classes ({wanted}): rename or remove '
                'the others, or set data_root'
            )
        self._metainfo['classes'] = tuple(classes)
        samples = []
        present = [name for name in classes if name in names]  # a validation set may lack a class
        images = images_below(self, (folder / name for name in present), self.suffixes)
        for name, files in zip(present, images, strict=True):
            if not files:
                raise UserError(
                    f'{folder / name} has no image ({", ".join(self.suffixes)}): add images of the '
                    'class, or remove it'
                )
            samples += [dict(img_path=str(f), gt_label=classes.index(name)) for f in files]
        self.examples = examples_in_lists(samples, len(classes))
        return samples


def images_below(
    dataset: BaseDataset, folders: Iterable[Path], suffixes: Sequence[str]
) -> list[list[Path]]:
    """Return the image files below each folder in alphabetical order.

    The ``remark`` of the dataset, which is also logged, says what is left out.
    """
    left = LeftOut()
    files = [sorted(find_files(folder, suffixes, left)) for folder in folders]
    dataset.remark = left.sentence(dataset.data_prefix['img'])
    if dataset.remark:
        print_log(printable(dataset.remark), 'current')
    return files
