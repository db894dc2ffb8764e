"""The memory and disk space that whole images need, checked before the first step."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ...base.processes import all_processes, cpu_group
from ...large.files.open_image import image_size
from ..streamed_model import StreamedModel
from . import order


@HOOKS.register_module()
class RoomCheckHook(Hook):
    """Refuse a run whose largest image needs more memory or disk space than there is.

    All runs that stream whole images have this hook. It reads only the headers of the files. It
    also refuses models whose loss cannot be computed tile by tile.

    Raises:
        UserError: With the image, what it needs, and what is available.
    """

    priority = order.ROOM

    def before_run(self, runner: Runner) -> None:
        model = runner.model
        loops = [runner._val_loop, runner._test_loop]
        if isinstance(runner._train_loop, BaseLoop) and model.trains:
            loops.insert(0, runner._train_loop)
        for loop in loops:
            if isinstance(loop, BaseLoop):
                with all_processes(cpu_group()):
                    _check(model, loop.dataloader.dataset, is_trained=loop is runner._train_loop)


def _check(model: StreamedModel, dataset: Any, is_trained: bool) -> None:
    path, size = largest_image(dataset)
    if size is None:  # none can be read, which the loader reports
        return
    model.require_room(path, size, is_trained)


def largest_image(dataset: Any) -> tuple[str, tuple[int, int] | None]:
    """Return the path and (H, W) of the image with the most pixels; None if none can be read."""
    sizes = {}
    for index in range(len(dataset)):
        path = dataset.get_data_info(index)['img_path']
        if path not in sizes:  # a dataset may be repeated
            sizes[path] = image_size(path)
    readable = {path: size for path, size in sizes.items() if size is not None}
    return max(readable.items(), key=lambda item: item[1][0] * item[1][1], default=('', None))
