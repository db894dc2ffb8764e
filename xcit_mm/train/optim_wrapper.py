"""Mixed precision for training on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from ..predict.fusion.precision import widest_outputs


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """An ``OptimWrapper`` that trains in bfloat16 on a CPU.

    mmengine's AmpOptimWrapper needs a GPU. bfloat16 has the range of float32, so gradients need no
    scaling. Weights stay in float32, and so do regions and losses, although autocast would compute
    them in bfloat16 on a CPU. It has the arguments of ``OptimWrapper``.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        in_bfloat16 = torch.autocast('cpu', torch.bfloat16)
        with super().optim_context(model), in_bfloat16, widest_outputs(model):
            yield
