"""mmengine's test loop with the fused copy of the model."""

from typing import Any

import torch
from mmengine.registry import LOOPS
from mmengine.runner import TestLoop

from ..device import DTYPES
from ..fusion import FusedCopy
from .distributed import unwrapped


@LOOPS.register_module()
class FusedTestLoop(TestLoop):
    """A ``TestLoop`` that predicts in a dtype with fused layers (see :mod:`xcit_mm.fusion`).

    Args:
        dtype: 'float32', 'bfloat16' or 'float16'.
        compiled: Whether to compile the backbone and the neck with ``torch.compile``.
        args, kwargs: Arguments of mmengine's loop.
    """

    def __init__(
        self, *args: Any, dtype: str = 'float32', compiled: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._fused = FusedCopy(DTYPES[dtype], compiled)

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        self.runner.call_hook('before_test_iter', batch_idx=idx, data_batch=data_batch)
        with self._fused.of(unwrapped(self.runner.model)) as model:
            outputs = model.test_step(data_batch)
        self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        self.runner.call_hook(
            'after_test_iter', batch_idx=idx, data_batch=data_batch, outputs=outputs
        )
