"""The backbones of the benchmark, with random weights."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from xcit_mm.base.environment import require
from xcit_mm.base.errors import ArgumentError
from xcit_mm.network import XCiT
from xcit_mm.network.archs import ARCHS, PATCH_SIZES, released_name

# The models of the paper's table D.5 and figure D.1, and their names in timm.
PEERS = {
    'resnet50': 'resnet50',
    'deit_s': 'deit_small_patch16_224',
    'swin_t': 'swin_tiny_patch4_window7_224',
    'pvtv2_b2': 'pvt_v2_b2',
    'convnext_t': 'convnext_tiny',
}
IN_MMDET = ('resnet50', 'swin_t', 'convnext_t')  # or in mmseg
XCIT = re.compile(rf'(xcit_mm|timm)_({"|".join(ARCHS)})_({"|".join(map(str, PATCH_SIZES))})')
NAMES = (
    f'xcit_mm_ARCH_PATCH, timm_ARCH_PATCH (as in xcit_mm_s12_16) or {", ".join(PEERS)}; whole '
    f'models: xcit_mm_ARCH_PATCH, {", ".join(IN_MMDET)} or a config file'
)


def build(name: str, size: tuple[int, int]) -> nn.Module:
    """Build a backbone without drop path for images of a size (height, width).

    - ``xcit_mm_s12_8``: XCiT of this package, four maps at strides 4 to 32.
    - ``timm_s12_8``: timm's XCiT, with the tokens of the same layers in the same pyramid.
    - ``resnet50``, ``swin_t``, ``pvtv2_b2``, ``convnext_t``: timm's, maps at these strides.
    - ``deit_s``: timm's, one map at stride 16.
    """
    if match := XCIT.fullmatch(name):
        arch, patch_size = match[2], int(match[3])
        xcit = XCiT(arch, patch_size, drop_path_rate=0.0)
        if match[1] == 'xcit_mm':
            return xcit
        return _TimmXCiT(_create(released_name(arch, patch_size)), xcit)
    arguments = {'deit_s': dict(img_size=size, out_indices=(-1,)), 'swin_t': dict(img_size=size)}
    return _create(PEERS[name], features_only=True, **arguments.get(name, {}))


def check_name(name: str, what: Sequence[str]) -> None:
    """Raise an ArgumentError if no model of this name can do the tasks ``what``."""
    if name.endswith('.py'):
        if 'backbone' in what:
            raise ArgumentError(
                f'{name} is a config: choose --what training, detector or segmentor'
            )
        return
    if name not in PEERS and not XCIT.fullmatch(name):
        raise ArgumentError(f'{name!r} is not a model: choose {NAMES}')
    tasks = {'detector', 'segmentor'} & set(what)
    if tasks and name not in IN_MMDET and not name.startswith('xcit_mm'):
        raise ArgumentError(
            f'{name!r} has no {" and no ".join(sorted(tasks))}: choose xcit_mm_ARCH_PATCH, '
            f'{", ".join(IN_MMDET)} or a config file'
        )


def _create(name: str, **arguments: object) -> nn.Module:
    require('timm')
    import timm

    return timm.create_model(name, drop_path_rate=0.0, **arguments)


class _TimmXCiT(nn.Module):
    """timm's XCiT without its classifier, with the pyramid of ``xcit``."""

    def __init__(self, model: nn.Module, xcit: XCiT) -> None:
        super().__init__()
        model.cls_token = model.cls_attn_blocks = model.norm = model.head = None
        self.model, self.indices = model, list(xcit.out_indices)
        self.levels = nn.ModuleList((xcit.fpn1, xcit.fpn2, xcit.fpn3, xcit.fpn4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = self.model.forward_intermediates(x, self.indices, intermediates_only=True)
        return tuple(level(m) for level, m in zip(self.levels, maps, strict=True))
