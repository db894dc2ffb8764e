"""The operators: what computes them, and what the tests compare them with."""

from . import (
    carafe,
    deform_attn,
    deform_conv,
    deform_roi_pool,
    focal_loss,
    masked_conv,
    nms,
    psa_mask,
    roi_align,
    sync_bn,
)

FILES = (
    *(carafe, deform_attn, deform_conv, deform_roi_pool, focal_loss),
    *(masked_conv, nms, psa_mask, roi_align, sync_bn),
)
# Every public function of these files has the name and the arguments of one in mmcv._ext.
OPERATORS = tuple(
    function
    for file in FILES
    for name, function in vars(file).items()
    if name[0] != '_' and getattr(function, '__module__', None) == file.__name__
)

COMPILED, LOOP = 'compiled mmcv', 'a float64 loop'
# The name in mmcv.ops, what computes it, and what the tests compare it with.
FAMILIES = (
    ('nms', 'torchvision', COMPILED),
    ('soft_nms', 'PyTorch', COMPILED),
    ('nms_match', 'PyTorch', COMPILED),
    ('line_nms', 'PyTorch', LOOP),
    ('roi_align', 'torchvision', COMPILED),
    ('deform_roi_pool', 'PyTorch', LOOP),
    ('deform_conv2d', 'torchvision', COMPILED),
    ('modulated_deform_conv2d', 'torchvision', COMPILED),
    ('multi_scale_deformable_attn', 'PyTorch', "mmcv's own in PyTorch"),
    ('sigmoid_focal_loss', 'PyTorch', "mmdet's in PyTorch"),
    ('softmax_focal_loss', 'PyTorch', LOOP),
    ('carafe', 'PyTorch', LOOP),
    ('psa_mask', 'PyTorch', COMPILED),
    ('masked_conv2d', 'PyTorch', "PyTorch's convolution"),
    ('SyncBatchNorm (MMSyncBN)', 'PyTorch', "PyTorch's BatchNorm"),
)
