"""A dataset of images without labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from ...base.errors import UserError
from ...base.finder import IMAGE_SUFFIXES
from .image_folders import images_below
from .unexpected_labels import require_no_labels


@DATASETS.register_module()
class UnlabeledImages(BaseDataset):
    """All images in a folder and its folders, for a training without labels.

    A sample has ``img_path``. Folders of classes are fine, but their names are ignored.

    Args:
        data_prefix: ``dict(img=...)``, the folder of the images.
        suffixes: The ends of the names of image files, in lower case.
        kwargs: Other arguments of mmengine's ``BaseDataset``.

    Raises:
        UserError: If the folder has no image, or images of labels; see :func:`.require_no_labels`.
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

    def load_data_list(self) -> list[dict]:
        folder = Path(self.data_prefix['img'])
        (files,) = images_below(self, [folder], self.suffixes)
        if not files:
            raise UserError(
                f'{folder} has no image ({", ".join(self.suffixes)}): write the folder of your '
                'images in data_prefix.img of the dataset'
            )
        require_no_labels(folder, files)
        inside = {file.parent for file in files}
        if len(inside) > 1:
            print_log(
                f'{folder}: {len(files)} images in {len(inside)} folders, whose names are ignored',
                'current',
            )
        return [dict(img_path=str(file)) for file in files]
