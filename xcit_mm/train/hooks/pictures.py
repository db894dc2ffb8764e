"""Pictures of the ground truth and the predictions."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from ...base.run_files import PICTURES
from ...base.threads import BackgroundWriter
from . import order

NUM_VAL = 16  # pictures of a validation
# The pictures of a test batch with more pixels than this are drawn before the next batch is
# predicted: the masks of a large image take gigabytes.
MAX_PIXELS = 2**24


@HOOKS.register_module()
class PictureHook(Hook):
    """Draw ground truth (left) and prediction (right) over the images, as PNG files.

    The first images of a validation go to ``<work_dir>/pictures``, where the next validation
    replaces them. In a test, a thread draws while the model predicts the next batch.

    Args:
        test_dir: Folder for every image of a test (of its first process); None: no pictures.
    """

    priority = order.PICTURES

    def __init__(self, test_dir: str | None = None) -> None:
        self.test_dir = test_dir
        self._pending = ExitStack()  # waits for the pictures of a test

    def before_val_epoch(self, runner: Runner) -> None:
        self._left = NUM_VAL

    def after_val_iter(self, runner: Runner, outputs: Sequence[BaseDataElement], **_: Any) -> None:
        from ..report.sample_pictures import draw_samples

        draw_samples(runner.val_loop, outputs[: self._left], Path(runner.work_dir, PICTURES))
        self._left = max(0, self._left - len(outputs))

    def before_test_epoch(self, runner: Runner) -> None:
        from ..report.sample_pictures import draw_samples

        self._pictures = self._pending.enter_context(BackgroundWriter(draw_samples))

    def after_test_iter(self, runner: Runner, outputs: Sequence[BaseDataElement], **_: Any) -> None:
        if self.test_dir is not None:
            size = sum(math.prod(sample.ori_shape) for sample in outputs)
            self._pictures(runner.test_loop, outputs, Path(self.test_dir), size=size)
            self._pictures.wait(calls=1, size=MAX_PIXELS)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._pending.close()
