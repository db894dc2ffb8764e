"""The backbones of the benchmark, with random weights."""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from ..environment import require
from ..errors import ArgumentError
from ..models import XCiT
from ..models.archs import ARCHS, PATCH_SIZES, released_name
from ..models.layers import tokens_to_map

# The models of the paper's table D.5 and figure D.1, and their names in timm.
PEERS = {
    'resnet50': 'resnet50',
    'deit_s': 'deit_small_patch16_224',
    'swin_t': 'swin_tiny_patch4_window7_224',
    'pvtv2_b2': 'pvt_v2_b2',
    'convnext_t': 'convnext_tiny',
}
IN_MMDET = ('resnet50', 'swin_t')  # and in mmseg
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
    """timm's patch embedding, position and layers with the pyramid of ``xcit``."""

    def __init__(self, model: nn.Module, xcit: XCiT) -> None:
        super().__init__()
        self.patch_embed, self.pos_embed = model.patch_embed, model.pos_embed
        self.blocks = model.blocks
        self.levels = nn.ModuleList((xcit.fpn1, xcit.fpn2, xcit.fpn3, xcit.fpn4))
        self.out_indices = xcit.out_indices

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        B = x.shape[0]
        x, (H, W) = self.patch_embed(x)  # (B, N, C)
        x = x + self.pos_embed(B, H, W).reshape(B, -1, x.shape[1]).permute(0, 2, 1)
        maps = []
        for i, block in enumerate(self.blocks):
            x = block(x, H, W)
            if i in self.out_indices:
                maps.append(tokens_to_map(x, H, W))
        return tuple(level(m) for level, m in zip(self.levels, maps, strict=True))
