"""What is measured: backbones that give maps to a dense head, with random weights."""

import re

from torch import Tensor, nn

from ..environment import require
from ..errors import ArgumentError
from ..models import XCiT
from ..models.archs import ARCHS, PATCH_SIZES, released_name
from ..models.layers import tokens_to_map

# The peers of the paper's table D.5 and figure D.1, by their names in timm.
PEERS = {
    'resnet50': 'resnet50',
    'deit_s': 'deit_small_patch16_224',
    'swin_t': 'swin_tiny_patch4_window7_224',
    'pvtv2_b2': 'pvt_v2_b2',
    'convnext_t': 'convnext_tiny',
}
XCIT = re.compile(r'(xcit_mm|timm)_([a-z]\d\d)_(\d+)')
NAMES = f'xcit_mm_ARCH_PATCH, timm_ARCH_PATCH (as in xcit_mm_s12_16) or {", ".join(PEERS)}'


def build(name: str, size: tuple[int, int]) -> nn.Module:
    """Build the backbone of a name for images of a size (height, width).

    - ``xcit_mm_s12_8``: ours, four maps at strides 4 to 32.
    - ``timm_s12_8``: timm's, its tokens after the same layers through the same pyramid.
    - ``resnet50``, ``swin_t``, ``pvtv2_b2``, ``convnext_t``: timm's, four maps at these strides.
    - ``deit_s``: timm's, its tokens at stride 16; it has no other map.

    Drop path is off in all of them.

    Raises:
        ValueError: If there is no such name.
    """
    check_name(name)
    if match := XCIT.fullmatch(name):
        arch, patch_size = match[2], int(match[3])
        ours = XCiT(arch, patch_size, drop_path_rate=0.0)
        return ours if match[1] == 'xcit_mm' else _TimmXCiT(ours, arch, patch_size)
    if name == 'deit_s':
        return _TokensOf(_timm(PEERS[name], img_size=size))
    sized = {'img_size': size} if name == 'swin_t' else {}
    return _timm(PEERS[name], features_only=True, **sized)


def check_name(name: str) -> None:
    """Raise a ValueError unless :func:`build` knows the name."""
    match = XCIT.fullmatch(name)
    known = match and match[2] in ARCHS and int(match[3]) in PATCH_SIZES
    if not known and name not in PEERS:
        raise ArgumentError(f'{name!r} is not the name of a model: there are {NAMES}')


def _timm(name: str, **arguments: object) -> nn.Module:
    require('timm')
    import timm

    return timm.create_model(name, drop_path_rate=0.0, **arguments)


class _TokensOf(nn.Module):
    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.classifier.forward_features(x),)


class _TimmXCiT(nn.Module):
    """timm's patch embedding, position and layers, and the pyramid of ours."""

    def __init__(self, ours: XCiT, arch: str, patch_size: int) -> None:
        super().__init__()
        theirs = _timm(released_name(arch, patch_size))
        self.patch_embed, self.pos_embed = theirs.patch_embed, theirs.pos_embed
        self.blocks = theirs.blocks
        self.levels = nn.ModuleList((ours.fpn1, ours.fpn2, ours.fpn3, ours.fpn4))
        self.out_indices = ours.out_indices

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
