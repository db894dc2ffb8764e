"""Mixed precision for trainings on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """An ``OptimWrapper`` that trains in bfloat16 on a CPU.

    mmengine's AmpOptimWrapper needs a GPU. bfloat16 has the range of float32, so that gradients
    need no scale. The weights stay in float32. The arguments are those of ``OptimWrapper``.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), torch.autocast('cpu', torch.bfloat16):
            yield
