"""A copy of a model for inference that shares weights with the model where it can."""

import copy
import logging
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ...base.device import dtype_name
from ...base.errors import DependencyError, UserError
from ...network.fast.unmodified import CONVOLUTIONS, is_unmodified
from .fpn import fuse_fpn
from .heads import fold_batch_norms, fuse_roi_extractors
from .precision import compute_in, widen_heads
from .winograd import use_winograd

COMPILERS = 'g++', 'clang++'  # compilers that torch.compile looks for


def fuse(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a copy of a detector or segmentor for inference, in evaluation mode.

    The copy computes the same as the model, in float32 up to rounding:

    - the last transposed convolution of a map of XCiT and the lateral convolution of an FPN that
      follows it become one, and the maps of the FPN are added in place;
    - BatchNorm of necks and heads is folded into the convolution before it;
    - convolutions and maps are in channels-last memory format;
    - on a CPU, wide 3x3 convolutions take a quarter of the multiplications.

    In 16 bits, layers multiply in ``dtype`` and heads return float32: call the copy within
    ``torch.autocast(device_type, dtype)``, as :class:`FusedCopy` does.

    Layers that have hooks or do not come from mmdet, mmseg or this package are called unchanged.
    The model itself stays as it is, and the copy does not follow later changes of its weights.

    Args:
        model: A detector of mmdet or a segmentor of mmseg, or a module that holds one.
        dtype: float32, bfloat16 or float16.
    """
    fused = copy.deepcopy(model, _shared(model)).eval()
    for part in _with_backbone(fused):
        fuse_fpn(part)
        fold_batch_norms(part)
        fuse_roi_extractors(part)
        if dtype != torch.float32:
            compute_in(part, dtype)
    for module in fused.modules():
        if is_unmodified(module, CONVOLUTIONS):
            module.to(memory_format=torch.channels_last)
    if dtype == torch.float32:
        use_winograd(fused)
    return fused.requires_grad_(False)


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model that computes in 16 bits, or the model itself for float32.

    All weights, tokens and maps are in ``dtype``. The heads return float32.

    Raises:
        UserError: If a BatchNorm has a variance that is too large for float16.
    """
    if dtype == torch.float32:
        return model
    narrow = copy.deepcopy(model, _shared(model))
    for part in _with_backbone(narrow):
        fold_batch_norms(part)
    narrow.to(dtype)
    for name, values in narrow.named_buffers():
        if not values.isfinite().all():
            raise UserError(f'{name} exceeds the range of {dtype_name(dtype)}: use bfloat16')
    widen_heads(narrow)
    return narrow


class FusedCopy:
    """The fused copy of a model in a dtype, rebuilt when the model has changed.

    With ``compiled``, ``torch.compile`` compiles the backbone and the neck of the copy for images
    of any size at the first prediction. On a CPU, this needs a C++ compiler. With ``graphs``,
    sizes of batches that come again replay CUDA graphs (:mod:`xcit_mm.network.graphs`).
    """

    def __init__(self, dtype: torch.dtype, compiled: bool = False, graphs: bool = False) -> None:
        self.dtype, self.compiled, self.graphs = dtype, compiled, graphs
        self._version: Hashable = None

    def __getstate__(self) -> dict[str, object]:
        state = dict(dtype=self.dtype, compiled=self.compiled, graphs=self.graphs)
        return state | dict(_version=None)  # without the copy

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[nn.Module]:
        """Return the copy of a model, for use within the ``with`` block."""
        current = _version(model)
        if self._version != current:
            self._copy, self._version = fuse(model, self.dtype), current
            if self.compiled:
                _compile(self._copy)
            if self.graphs:
                from ...network.graphs import GraphedModel  # only on GPUs

                GraphedModel(self._copy, logging.getLogger(__name__).warning).attach()
        device = next(model.parameters()).device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            yield self._copy


def _compile(model: nn.Module) -> None:
    if next(model.parameters()).device.type == 'cpu' and not any(map(shutil.which, COMPILERS)):
        raise DependencyError(
            f'torch.compile needs a C++ compiler, but neither {" nor ".join(COMPILERS)} is '
            'installed: install one, or predict without --compile'
        )
    for part in _with_backbone(model):
        for module in filter(None, (part.backbone, getattr(part, 'neck', None))):
            module.compile(dynamic=True)


def _with_backbone(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if hasattr(module, 'backbone')]


def _version(model: nn.Module) -> Hashable:
    """Return a value that changes when weights, hooks or the ``test_cfg`` of a model do."""
    tensors = [*model.parameters(), *model.buffers()]
    # Tensors that were made in inference mode do not count their changes.
    counts = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    return tuple(counts), tuple(map(id, _references(model)))


def _shared(model: nn.Module) -> dict[int, object]:
    """Return what a deep copy shares with a model: the memory of its tensors, and references."""
    parameters = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    buffers = {id(b): b.detach() for b in model.buffers()}
    return parameters | buffers | {id(shared): shared for shared in _references(model)}


def _references(model: nn.Module) -> list[object]:
    """Return the hooks and the ``test_cfg`` of all modules."""
    kinds, modules = ('_forward_pre_hooks', '_forward_hooks'), list(model.modules())
    hooks = [hook for m in modules for kind in kinds for hook in getattr(m, kind).values()]
    return hooks + [m.test_cfg for m in modules if getattr(m, 'test_cfg', None) is not None]
