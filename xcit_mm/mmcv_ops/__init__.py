"""The compiled operators of mmcv that our models need, on top of torchvision's and PyTorch.

mmcv's wheels exist for few versions of PyTorch, CUDA and Python, and building it takes a
quarter of an hour where it succeeds. mmdet and mmseg import it whole, but a Mask R-CNN calls
three of its compiled functions only, and torchvision has the same ones; RetinaNet on a GPU
calls a focal loss besides. :func:`install` puts a stand-in where mmcv expects its extension
module ``mmcv._ext``.

Results equal those of compiled mmcv (tests/mmcv_ops/test_mmcv_ops.py), of the focal loss those of
mmdet in Python. The environment variable
``XCIT_MM_MMCV_FALLBACK=0`` switches the stand-in off.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from ..environment import require

EXTENSION = 'mmcv._ext'
SWITCH = 'XCIT_MM_MMCV_FALLBACK'
NOTICE = (
    'mmcv has no compiled operators here: torchvision does nms and roi_align, plain PyTorch '
    'soft_nms and sigmoid_focal_loss, everything else needs a compiled mmcv '
    f'({SWITCH}=0 switches this off).'
)


def install() -> None:
    """Stand in for ``mmcv._ext`` if mmcv is installed without it.

    Does nothing where mmcv is compiled, where it is not installed at all, where
    ``XCIT_MM_MMCV_FALLBACK`` is 0, and when called again. A run says in its log that the
    stand-in is in force (see :class:`xcit_mm.engine.ReportHook`).
    """
    if os.environ.get(SWITCH, '1') != '0' and EXTENSION not in sys.modules and _lacks_extension():
        sys.modules[EXTENSION] = _StandIn()


def in_force() -> bool:
    """Whether mmcv's operators are those of this module."""
    return isinstance(sys.modules.get(EXTENSION), _StandIn)


def _lacks_extension() -> bool:
    mmcv = find_spec('mmcv')  # found, not imported; also where it is installed editable
    if mmcv is None:
        return False
    return PathFinder.find_spec(EXTENSION, mmcv.submodule_search_locations) is None


class _StandIn(ModuleType):
    """A module in which every operator exists and those not given here explain themselves."""

    def __init__(self) -> None:
        super().__init__(EXTENSION, __doc__)
        # mmengine asks pkgutil for this module's loader, which reads the spec.
        self.__spec__ = ModuleSpec(EXTENSION, loader=None)

    def __getattr__(self, name: str):
        if name.startswith('__'):
            raise AttributeError(name)
        if name in OPERATORS:
            require('torchvision')  # registers torch.ops.torchvision; takes a second to import
            return OPERATORS[name]

        def needs_compiled_mmcv(*args, **kwargs) -> NoReturn:
            raise NotImplementedError(
                f'mmcv.ops: {name} exists in compiled mmcv only, and {EXTENSION} is not there; '
                'build mmcv with its operators (MMCV_WITH_OPS=1) or use a model without it'
            )

        return needs_compiled_mmcv


def get_compiler_version() -> str:
    """What mmcv's collect_env, of bug reports, says of the compiler."""
    return 'n/a'


def get_compiling_cuda_version() -> str:
    """What mmcv's collect_env, of bug reports, says of the CUDA that compiled it."""
    return 'n/a'


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes that no better box overlaps, best first.

    Args:
        bboxes: (n, 4) corners x1, y1, x2, y2 in pixels.
        scores: (n,).
        iou_threshold: A box goes whose IoU with a better one exceeds it.
        offset: 1 if x2 and y2 are the last pixels inside, else 0.
    """
    if offset:
        bboxes = torch.cat((bboxes[:, :2], bboxes[:, 2:] + offset), dim=1)
    return torch.ops.torchvision.nms(bboxes, scores, iou_threshold)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft-NMS (Bodla et al. 2017): lower the scores of overlapping boxes, best box first.

    Args:
        boxes: (n, 4) corners x1, y1, x2, y2 in pixels, on the CPU as in mmcv.
        scores: (n,).
        dets: (n, 5), filled with the kept boxes and their new scores, in the order kept.
        iou_threshold: Of methods 0 and 1.
        sigma: Of method 2.
        min_score: Boxes below it are dropped.
        method: 0, naive: a box above the threshold gets the score 0. 1, linear: its score is
            multiplied by 1 - IoU. 2, gaussian: every score is by exp(-IoU**2 / sigma).
        offset: 1 if x2 and y2 are the last pixels inside, else 0.

    Returns:
        Indices of the kept boxes.
    """
    scores = scores.clone()
    left = torch.arange(len(boxes))
    areas = (boxes[:, 2:] - boxes[:, :2] + offset).prod(dim=1)
    kept: list[int] = []
    while len(left):
        best = left[scores[left].argmax()]
        dets[len(kept), :4] = boxes[best]
        dets[len(kept), 4] = scores[best]
        kept.append(int(best))

        left = left[left != best]
        corner1 = torch.maximum(boxes[left, :2], boxes[best, :2])
        corner2 = torch.minimum(boxes[left, 2:], boxes[best, 2:])
        overlap = (corner2 - corner1 + offset).clamp(min=0).prod(dim=1)
        iou = overlap / (areas[left] + areas[best] - overlap)
        if method == 0:
            weight = (iou < iou_threshold).to(scores)
        elif method == 1:
            weight = torch.where(iou >= iou_threshold, 1 - iou, torch.ones_like(iou))
        else:
            weight = torch.exp(-(iou * iou) / sigma)
        scores[left] *= weight
        left = left[scores[left] >= min_score]
    return torch.tensor(kept, dtype=torch.int64)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average-pool regions of a map into ``output``; RoIAlign of Mask R-CNN.

    Args:
        input: (B, C, H, W).
        rois: (n, 5) image index, x1, y1, x2, y2 in pixels.
        output: (n, C, aligned_height, aligned_width), written.
        argmax_y: Of max-pooling, unused.
        argmax_x: Of max-pooling, unused.
        aligned_height: Bins along y.
        aligned_width: Bins along x.
        spatial_scale: Cells of the map per pixel.
        sampling_ratio: Samples a bin and axis, 0: as many as cells.
        pool_mode: 1, average; 0, maximum, torchvision does not have.
        aligned: Whether pixel centres lie at half-integers.
    """
    if pool_mode != 1:
        raise NotImplementedError(
            f"roi_align: pool_mode='max' exists in compiled mmcv only, and {EXTENSION} is not "
            "there; use pool_mode='avg'"
        )
    pooled = torch.ops.torchvision.roi_align(
        _full_precision(input),
        _full_precision(rois),
        spatial_scale,
        aligned_height,
        aligned_width,
        sampling_ratio,
        aligned,
    )
    output.copy_(pooled)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Gradient of :func:`roi_align_forward` to its input, written into ``grad_input``."""
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            _full_precision(grad_output),
            _full_precision(rois),
            spatial_scale,
            aligned_height,
            aligned_width,
            *grad_input.shape,
            sampling_ratio,
            aligned,
        )
    )


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (Lin et al. 2017) of every class on its own, written into ``output``.

    Args:
        input: (n, C) logits.
        target: (n,) classes; C is none of them.
        weight: (C,) of the classes, or empty.
        output: (n, C).
        gamma: How much less an example counts that is classified well.
        alpha: Weight of the positive examples, 1 - alpha of the negative ones.
    """
    output.copy_(_sigmoid_focal_loss(input.float(), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Gradient of the sum of :func:`sigmoid_focal_loss_forward`, written into ``grad_input``."""
    with torch.enable_grad():
        logits = input.detach().float().requires_grad_()
        loss = _sigmoid_focal_loss(logits, target, weight, gamma, alpha).sum()
        grad_input.copy_(*torch.autograd.grad(loss, logits))


def _sigmoid_focal_loss(
    logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float
) -> Tensor:
    num_classes = logits.shape[1]
    positive = target[:, None] == torch.arange(num_classes, device=target.device)
    p = logits.sigmoid()
    loss = torch.where(
        positive,
        -alpha * (1 - p) ** gamma * F.logsigmoid(logits),
        -(1 - alpha) * p**gamma * F.logsigmoid(-logits),
    )
    if weight.numel():
        loss = loss * weight[target.clamp(max=num_classes - 1)][:, None]
    return loss


def _full_precision(x: Tensor) -> Tensor:
    """Torchvision's RoIAlign has no bfloat16, and on the CPU no float16."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


OPERATORS = {
    function.__name__: function
    for function in (
        nms,
        softnms,
        roi_align_forward,
        roi_align_backward,
        sigmoid_focal_loss_forward,
        sigmoid_focal_loss_backward,
        get_compiler_version,
        get_compiling_cuda_version,
    )
}
