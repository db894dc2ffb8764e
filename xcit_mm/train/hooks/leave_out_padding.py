"""Training on images of several sizes without attention to the padding of a batch."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import UserError
from ...network.rows import ALONE
from ..distributed import unwrapped
from ..padded_rows import PaddedRows


@HOOKS.register_module()
class LeaveOutPaddingHook(Hook):
    """Leave the padding of the images of a batch out of the attention of an XCiT in training.

    The published recipes attend to it. Evaluation does not mix sizes (:func:`.predict_by_size`), so
    it attends only to the pixels that ``pad_size_divisor`` adds.
    """

    def before_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        self._backbone = model.backbone
        if getattr(model.data_preprocessor, 'batch_augments', None):
            raise UserError(
                'LeaveOutPaddingHook: batch_augments of data_preprocessor change the sizes of '
                'images after they are known: remove them, or the hook'
            )

    def before_train_iter(self, runner: Runner, data_batch: Any = None, **_: Any) -> None:
        sizes = [sample.img_shape[:2] for sample in data_batch['data_samples']]
        self._backbone.rows = PaddedRows(sizes, self._backbone.patch_size)

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        self._backbone.rows = ALONE
