"""Folders of images: without labels, or with a folder for each class."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..errors import UserError
from ..files import subfolders
from .examples import examples_in_lists

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.ppm', '.webp', '.tif', '.tiff')


@DATASETS.register_module()
class ClassFolders(BaseDataset):
    """Images in a folder for each class, as ImageNet has them.

    The classes are the names of the folders in alphabetical order, or ``metainfo['classes']``. A
    sample has ``img_path`` and ``gt_label``.

    Args:
        data_prefix: ``dict(img=...)``, the folder with the folders of the classes.
        suffixes: The ends of the names of image files, in lower case.
        kwargs: Other arguments of mmengine's ``BaseDataset``.

    Raises:
        UserError: If a class has no folder or no image, or a folder is not a class.
    """

    def __init__(
        self,
        *args: Any,
        data_prefix: Mapping[str, str] | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        **kwargs: Any,
    ) -> None:
        self.suffixes = tuple(suffixes)
        prefix = {'img': '', **(data_prefix or {})}
        super().__init__(*args, data_prefix=prefix, **kwargs)

    def load_data_list(self) -> list[dict]:
        folder = Path(self.data_prefix['img'])
        names = [path.name for path in subfolders(folder)]
        classes = list(self._metainfo.get('classes') or names)
        if not names or not set(names) <= set(classes):
            found = f'has the folders {", ".join(names[:5])}' if names else 'has no folders'
            wanted = ', '.join(classes[:5]) or 'one for each class'
            raise UserError(
                f'{folder} {found}, but its folders are the classes ({wanted}): rename or remove '
                'the others, or set data_root'
            )
        self._metainfo['classes'] = tuple(classes)
        samples = []
        for label, name in enumerate(classes):
            if name not in names:  # a validation may lack a class
                continue
            files = list(images_below(folder / name, self.suffixes))
            if not files:
                raise UserError(
                    f'{folder / name} has no image ({", ".join(self.suffixes)}): add images of the '
                    'class, or remove it'
                )
            samples += [dict(img_path=str(file), gt_label=label) for file in files]
        self.examples = examples_in_lists(samples, len(classes))
        return samples


def images_below(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> Iterator[Path]:
    """Yield the image files in a folder and its folders in alphabetical order."""
    for path in sorted(folder.rglob('*')):
        if path.name.lower().endswith(tuple(suffixes)) and path.is_file():
            yield path
