"""A dataset that draws windows from large images without labels."""

from collections.abc import Mapping
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..files.open_image import open_header
from .drawn_windows import DrawnWindows
from .scenes_dataset import images_of, listed, log_remark


@DATASETS.register_module()
class UnlabeledWindows(DrawnWindows):
    """Windows of large images for a training without labels, drawn at random in each iteration.

    The pipeline is :class:`.ReadWindow`, which also reads other bands than RGB,
    :class:`~xcit_mm.data.transforms.multi_crop.MultiCrop` and
    :class:`~xcit_mm.data.transforms.image_transforms.PackImage`. See :class:`.DrawnWindows` for the
    order, and for the other arguments.

    Args:
        data_prefix: ``dict(img=...)``, the folder of the images.
        img_suffix: The end of the names of the images, which may also be in folders inside.

    Raises:
        UserError: If the folder has no image, or an image that cannot be opened.
    """

    def __init__(
        self, *args: Any, data_prefix: Mapping[str, str], img_suffix: str = '.tif', **kwargs: Any
    ) -> None:
        self._suffix = img_suffix
        super().__init__(*args, data_prefix={**data_prefix}, serialize_data=False, **kwargs)

    def load_data_list(self) -> list[dict]:
        images = images_of(self, self._suffix)
        log_remark(self)
        return [listed(path, number, open_header(path)) for number, path in enumerate(images)]

    def scenes(self) -> BaseDataset:
        """Return the whole scenes as a dataset of open images."""
        self.full_init()
        scenes = BaseDataset(pipeline=[self._opener], serialize_data=False, lazy_init=True)
        scenes.data_list, scenes._fully_initialized = self.data_list, True
        return scenes
