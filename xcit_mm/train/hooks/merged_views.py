"""Test-time augmentation: a test that merges the predictions for several views of an image."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import Runner

from ..distributed import unwrapped


@HOOKS.register_module()
class TTAHook(Hook):
    """Wrap the model of a test, once its weights are loaded, in one that merges predictions.

    mmengine's PrepareTTAHook wraps DistributedDataParallel, but mmseg's TTA model cannot use it.

    Args:
        model: Config of a ``BaseTTAModel``, such as ``dict(type='SegTTAModel')``.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self.model = model

    def before_test(self, runner: Runner) -> None:
        runner.model = MODELS.build({**self.model, 'module': unwrapped(runner.model)})
