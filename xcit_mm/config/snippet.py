"""The lines that put an XCiT into a config of one's own: ``xcit config backbone``."""

from ..network.archs import ARCHS, released_name
from ..network.weights.published import TOP1

RELEASED = 'https://dl.fbaipublicfiles.com/xcit/{}.pth'
# The ImageNet models of M12 and L12 are those of Debenedetti et al.
ROBUST = (
    'https://github.com/RobustBench/robustbench/releases/download/v1.1/'
    'debenedetti2022light-xcit-{}-imagenet-linf.pth.tar'
)
BACKBONE = """\
custom_imports = dict(imports=['xcit_mm'])
{weights}
xcit = dict(type='XCiT', arch='{arch}', patch_size={patch_size}, init_cfg={init_cfg})
"""
MMDET = """\
# mmdetection, for a detector with a neck. This goes below the line of its base, such as
# _base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
{backbone}model = dict(backbone=dict(_delete_=True, **xcit), neck=dict(in_channels=[{dim}] * 4))
"""
MMSEG = """\
# mmsegmentation, for heads without a neck. This goes below the line of its base, such as
# _base_ = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'
# (a script that does not import xcit_mm: python -m xcit_mm.mmcv_ops SCRIPT, for the onedl packages)
{backbone}model = dict(
    pretrained=None,  # names weights of another backbone in the base
    backbone=dict(_delete_=True, **xcit),
    # A head that reads one map has in_channels={dim}. If the base has a neck, as Semantic FPN has,
    # write neck=dict(in_channels=[{dim}] * 4) instead, and leave the decode head as it is.
    decode_head=dict(in_channels=[{dim}] * 4),
    auxiliary_head=dict(in_channels={dim}),  # leave it out if the base has none
)
"""
ROBUST_IMAGES = """\
# These weights are for images in 0..1.
model.update(data_preprocessor=dict(mean=[0, 0, 0], std=[255, 255, 255]))
"""
OPTIMIZER = """\
adamw = dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=0.05)
optim_wrapper = dict(optimizer=adamw)
"""
FRAMEWORKS = {'mmdet': MMDET, 'mmseg': MMSEG}


def backbone_snippet(arch: str, patch_size: int, framework: str | None = None) -> str:
    """Return what a config of mmdetection or mmsegmentation needs for an XCiT as its backbone.

    Args:
        arch: A key of :data:`~xcit_mm.network.archs.ARCHS`.
        patch_size: 4, 8 or 16.
        framework: 'mmdet' or 'mmseg'. Default: both, one after the other.
    """
    weights, is_robust = _weights(arch, patch_size)
    backbone = BACKBONE.format(
        weights=f"weights = '{weights}'" if weights else '# No weights of this model are released.',
        arch=arch,
        patch_size=patch_size,
        init_cfg="dict(type='Pretrained', checkpoint=weights)" if weights else None,
    )
    end = ROBUST_IMAGES * is_robust + OPTIMIZER
    names = FRAMEWORKS if framework is None else [framework]
    dim = ARCHS[arch].embed_dim
    return '\n'.join(FRAMEWORKS[name].format(backbone=backbone, dim=dim) + end for name in names)


def _weights(arch: str, patch_size: int) -> tuple[str | None, bool]:
    """Return the URL of ImageNet weights, if there are any, and whether they are robust ones."""
    stem = 16 if patch_size == 4 else patch_size  # patches of 4 have the weights of 16
    name = released_name(arch, stem, '384_dist')
    if name in TOP1:
        return RELEASED.format(name), False
    return (ROBUST.format(arch[0]), True) if stem == 16 else (None, False)
