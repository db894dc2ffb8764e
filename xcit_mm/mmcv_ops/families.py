"""The operators by family: what computes them, and what the tests compare them with."""

from collections.abc import Callable
from typing import NamedTuple

from . import (
    carafe,
    deform_attn,
    deform_conv,
    focal_loss,
    masked_conv,
    nms,
    psa_mask,
    roi_align,
    roi_pool,
    sync_bn,
)


class Family(NamedTuple):
    """Operators of one name in mmcv; ``operators`` have the names and arguments of mmcv._ext."""

    name: str
    operators: tuple[Callable, ...]
    computed_by: str
    tested_against: str


LOOP = 'a float64 loop'
COMPILED = 'compiled mmcv'

FAMILIES = (
    Family('nms', (nms.nms,), 'torchvision', COMPILED),
    Family('soft_nms', (nms.softnms,), 'PyTorch', COMPILED),
    Family('nms_match', (nms.nms_match,), 'PyTorch', COMPILED),
    Family('line_nms', (nms.line_nms_forward,), 'PyTorch', LOOP),
    Family(
        'roi_align',
        (roi_align.roi_align_forward, roi_align.roi_align_backward),
        'torchvision; the maximum: PyTorch',
        COMPILED,
    ),
    Family('roi_pool', (roi_pool.roi_pool_forward, roi_pool.roi_pool_backward), 'PyTorch', LOOP),
    Family(
        'deform_roi_pool',
        (roi_pool.deform_roi_pool_forward, roi_pool.deform_roi_pool_backward),
        'PyTorch',
        LOOP,
    ),
    Family(
        'deform_conv2d',
        (
            deform_conv.deform_conv_forward,
            deform_conv.deform_conv_backward_input,
            deform_conv.deform_conv_backward_parameters,
        ),
        'torchvision',
        f'{COMPILED}, {LOOP}',
    ),
    Family(
        'modulated_deform_conv2d',
        (deform_conv.modulated_deform_conv_forward, deform_conv.modulated_deform_conv_backward),
        'torchvision',
        f'{COMPILED}, {LOOP}',
    ),
    Family(
        'multi_scale_deformable_attn',
        (deform_attn.ms_deform_attn_forward, deform_attn.ms_deform_attn_backward),
        'PyTorch',
        f"mmcv's own in PyTorch, {LOOP}",
    ),
    Family(
        'sigmoid_focal_loss',
        (focal_loss.sigmoid_focal_loss_forward, focal_loss.sigmoid_focal_loss_backward),
        'PyTorch',
        f"mmdet's in PyTorch, {LOOP}",
    ),
    Family(
        'softmax_focal_loss',
        (focal_loss.softmax_focal_loss_forward, focal_loss.softmax_focal_loss_backward),
        'PyTorch',
        LOOP,
    ),
    Family(
        'carafe',
        (
            carafe.carafe_forward,
            carafe.carafe_backward,
            carafe.carafe_naive_forward,
            carafe.carafe_naive_backward,
        ),
        'PyTorch',
        LOOP,
    ),
    Family('psa_mask', (psa_mask.psamask_forward, psa_mask.psamask_backward), 'PyTorch', COMPILED),
    Family(
        'masked_conv2d',
        (masked_conv.masked_im2col_forward, masked_conv.masked_col2im_forward),
        'PyTorch',
        "PyTorch's convolution",
    ),
    Family(
        'SyncBatchNorm (MMSyncBN)',
        (
            sync_bn.sync_bn_forward_mean,
            sync_bn.sync_bn_forward_var,
            sync_bn.sync_bn_forward_output,
            sync_bn.sync_bn_backward_param,
            sync_bn.sync_bn_backward_data,
        ),
        'PyTorch',
        "PyTorch's BatchNorm",
    ),
)
