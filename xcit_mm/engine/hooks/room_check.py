"""The memory and the disk that whole images need, checked before the first step."""

from types import SimpleNamespace
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ...errors import UserError
from ...large_images.step import require_room
from ...large_images.window_files import image_size
from . import order


@HOOKS.register_module()
class RoomCheckHook(Hook):
    """Refuse a run whose largest image needs more memory and disk than there is.

    It is a part of runs that stream whole images. Only the headers of the files are read.

    Raises:
        UserError: With the image, what it needs, and what there is.
    """

    priority = order.ROOM

    def before_run(self, runner: Runner) -> None:
        model = runner.model
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if not isinstance(loop, BaseLoop):
                continue
            path, size = largest_image(loop.dataloader.dataset)
            try:
                if loop is runner._train_loop and size is not None:
                    require_room(model.module, size, model.memory, model.store)
                elif size is not None:
                    channels = model.module.backbone.in_channels
                    model.require_room_to_predict(SimpleNamespace(shape=(channels, *size)), size)
            except UserError as error:
                raise UserError(f'{path}: {error}') from error


def largest_image(dataset: Any) -> tuple[str, tuple[int, int] | None]:
    """Return the path and (H, W) of the image with the most pixels; None if none can be read."""
    sizes = {}
    for index in range(len(dataset)):
        path = dataset.get_data_info(index)['img_path']
        if path not in sizes:  # a dataset may be repeated
            sizes[path] = image_size(path)
    known = {path: size for path, size in sizes.items() if size is not None}
    return max(known.items(), key=lambda item: item[1][0] * item[1][1], default=('', None))
