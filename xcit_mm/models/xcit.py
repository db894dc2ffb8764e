"""XCiT as a backbone with four output maps, for mmdetection and mmsegmentation.

Paper: XCiT: Cross-Covariance Image Transformers, arXiv 2106.09681. The state-dict names are
those of the authors' detectors and segmentors.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..errors import ArgumentError
from ..ops import recompute
from .layers import (
    IMAGE_CHANNELS,
    ChannelNorm,
    ConvPatchEmbed,
    FourierPosition,
    XCABlock,
    map_to_tokens,
    tokens_to_map,
)
from .pyramid import pyramid_levels


class Arch(NamedTuple):
    """Hyper-parameters of a published model (paper, table 1 and appendix)."""

    embed_dim: int
    depth: int
    num_heads: int
    eta: float
    drop_path_rate: dict[int, float]  # by patch size


ARCHS = {
    'n12': Arch(128, 12, 4, 1.0, {16: 0.0, 8: 0.0}),
    't12': Arch(192, 12, 4, 1.0, {16: 0.0, 8: 0.0}),
    't24': Arch(192, 24, 4, 1e-5, {16: 0.05, 8: 0.05}),
    's12': Arch(384, 12, 8, 1.0, {16: 0.05, 8: 0.05}),
    's24': Arch(384, 24, 8, 1e-5, {16: 0.1, 8: 0.1}),
    'm24': Arch(512, 24, 8, 1e-5, {16: 0.15, 8: 0.15}),
    'l24': Arch(768, 24, 16, 1e-5, {16: 0.25, 8: 0.3}),
}
PATCH_SIZES = (8, 16)
SIZE_NAMES = {'n': 'nano', 't': 'tiny', 's': 'small', 'm': 'medium', 'l': 'large'}
CUSTOM_ARCH_KEYS = ('embed_dim', 'depth', 'num_heads', 'eta')
NUM_LEVELS = 4


def released_name(arch: str, patch_size: int, training: str = '224') -> str:
    """How the authors and timm call a model of ``ARCHS``, such as 'xcit_small_12_p8_224'."""
    return f'xcit_{SIZE_NAMES[arch[0]]}_{arch[1:]}_p{patch_size}_{training}'


@MODELS.register_module()
class XCiT(BaseModule):
    """Cross-Covariance Image Transformer with outputs at strides 4, 8, 16 and 32.

    Registered in the common parent of mmdet's and mmseg's registries: both build it from
    ``dict(type='XCiT', arch='s12', patch_size=8)``.

    Args:
        arch: 'n12', 't12', 't24', 's12', 's24', 'm24' or 'l24', or a dict with
            ``embed_dim``, ``depth``, ``num_heads`` and ``eta`` (initial LayerScale).
        patch_size: 8 or 16 pixels.
        out_indices: The four layers, from 0, whose maps are given out at strides 4, 8, 16
            and 32; layers behind the last one are neither computed nor trained. None: those
            after a third, a half, two thirds and all of the layers, which are [4, 6, 8, 12]
            or [8, 12, 16, 24] counted from 1, as published.
        drop_path_rate: Probability of skipping a branch, the same in every layer. None: as
            published for ``arch``, and 0 for an ``arch`` given as a dict.
        with_cp: Recompute each layer in the backward pass instead of keeping what it
            computed: less memory, more time, the same gradients.
        frozen_stages: -1: everything is trained. 0: the patch and position embeddings are
            frozen. n > 0: those and the first n layers. Frozen parts stay in evaluation
            mode (BatchNorm statistics, drop path) and get no gradient.
        out_norm: Normalise the channels of every output map with a LayerNorm of its own,
            as ResT does in front of RetinaNet's FPN (arXiv 2105.13677, appendix).
        init_cfg: ``dict(type='Pretrained', checkpoint=<path, URL or timm://NAME>)`` starts
            from pretrained weights (see :func:`xcit_mm.weights.pretrained.load_pretrained`).

    Shape:
        (B, 3, H, W) to a tuple of four maps (B, C, H_i, W_i), C = ``embed_dim``. With
        h = ceil(H / patch_size), H_i is h * patch_size / stride_i, rounded down; W alike.

    Raises:
        ValueError: For an argument outside its choices, and in ``forward`` for an image
            without three channels or too small for stride 32.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 8,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        with_cp: bool = False,
        frozen_stages: int = -1,
        out_norm: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        if patch_size not in PATCH_SIZES:
            raise ArgumentError(f'patch_size={patch_size!r} is not one of {PATCH_SIZES}')
        dim, depth, num_heads, eta, published_rate = _resolve_arch(arch)
        if drop_path_rate is None:
            drop_path_rate = published_rate[patch_size]
        if not isinstance(drop_path_rate, (int, float)) or not 0 <= drop_path_rate < 1:
            raise ArgumentError(f'drop_path_rate={drop_path_rate!r} is not in [0, 1)')
        if frozen_stages not in range(-1, depth + 1):
            raise ArgumentError(f'frozen_stages={frozen_stages!r} is not in -1..{depth}')
        if init_cfg is not None and not (isinstance(init_cfg, dict) and 'type' in init_cfg):
            raise ArgumentError(
                f'init_cfg={init_cfg!r} is not a '
                "dict(type='Pretrained', checkpoint=<path, URL or timm://NAME>)"
            )

        self.patch_size = patch_size
        self.out_indices = _resolve_out_indices(out_indices, depth)
        self.with_cp = with_cp
        self.frozen_stages = frozen_stages

        self.patch_embed = ConvPatchEmbed(dim, patch_size)
        self.pos_embeder = FourierPosition(dim)  # sic: the name in the released weights
        self.blocks = nn.ModuleList(
            XCABlock(dim, num_heads, eta, drop_path_rate) for _ in range(depth)
        )
        self.apply(_init_linear)
        self.fpn1, self.fpn2, self.fpn3, self.fpn4 = pyramid_levels(dim, patch_size)
        self.out_norms = nn.ModuleList(
            ChannelNorm(dim, eps=1e-6) if out_norm else nn.Identity() for _ in range(NUM_LEVELS)
        )
        # Behind the last output; without a gradient, DistributedDataParallel must know it.
        self.blocks[self.out_indices[-1] + 1 :].requires_grad_(False)
        self._freeze()

    def init_weights(self) -> None:
        """Load the weights that ``init_cfg`` names; called once by the runner."""
        if self.init_cfg is not None and self.init_cfg.get('type') == 'Pretrained':
            from ..weights.pretrained import load_pretrained  # which imports this module

            load_pretrained(
                self, self.init_cfg.get('checkpoint'), self.init_cfg.get('trusted', False)
            )
        else:
            super().init_weights()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self._check_image(x)
        x = self.patch_embed(x)
        H, W = x.shape[2:]
        x = map_to_tokens(x + self.pos_embeder(H, W))  # (B, N, C)

        maps = []
        for i, block in enumerate(self.blocks[: self.out_indices[-1] + 1]):
            if self.with_cp:
                x = recompute(block, x, H, W, within=block, random=True)
            else:
                x = block(x, H, W)
            if i in self.out_indices:
                maps.append(tokens_to_map(x, H, W))
        levels = (self.fpn1, self.fpn2, self.fpn3, self.fpn4)
        return tuple(
            norm(level(m)) for norm, level, m in zip(self.out_norms, levels, maps, strict=True)
        )

    def train(self, mode: bool = True) -> 'XCiT':
        """Switch to training or evaluation; what is frozen stays in evaluation."""
        super().train(mode)
        self._freeze()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        for module in (self.patch_embed, self.pos_embeder, *self.blocks[: self.frozen_stages]):
            module.eval().requires_grad_(False)

    def _check_image(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != IMAGE_CHANNELS:
            raise ArgumentError(
                f'an image batch of shape {tuple(x.shape)} is not (B, {IMAGE_CHANNELS}, H, W): '
                f'XCiT takes {IMAGE_CHANNELS} channels (RGB)'
            )
        smallest = 32 - self.patch_size + 1  # ceil(smallest / patch_size) * patch_size == 32
        if min(x.shape[2:]) < smallest:
            raise ArgumentError(
                f'an image of {x.shape[2]}x{x.shape[3]} pixels has no map at stride 32: with '
                f'patch_size={self.patch_size} both sides need at least {smallest}'
            )


def _resolve_arch(arch: str | dict[str, Any]) -> Arch:
    if isinstance(arch, dict):
        if set(arch) != set(CUSTOM_ARCH_KEYS):
            raise ArgumentError(f'arch={arch!r} does not have just the keys {CUSTOM_ARCH_KEYS}')
        dim, depth, num_heads, eta = (arch[key] for key in CUSTOM_ARCH_KEYS)
        if not all(isinstance(n, int) and n > 0 for n in (dim, depth, num_heads)):
            raise ArgumentError(f'arch={arch!r}: embed_dim, depth, num_heads are not integers > 0')
        if not isinstance(eta, (int, float)):
            raise ArgumentError(f'arch={arch!r}: eta is not a number')
        if dim % 8:
            raise ArgumentError(
                f'arch={arch!r}: embed_dim is not a multiple of 8 (the first convolution of patch '
                'size 16 has an eighth of the channels)'
            )
        return Arch(**arch, drop_path_rate=dict.fromkeys(PATCH_SIZES, 0.0))
    if not isinstance(arch, str) or arch not in ARCHS:
        raise ArgumentError(
            f'arch={arch!r} is not one of {tuple(ARCHS)} or a dict with {CUSTOM_ARCH_KEYS}'
        )
    return ARCHS[arch]


def _resolve_out_indices(out_indices: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    default = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
    indices = default if out_indices is None else out_indices
    if (
        not isinstance(indices, (tuple, list))
        or len(indices) != NUM_LEVELS
        or not all(isinstance(i, int) and 0 <= i < depth for i in indices)
        or not all(a < b for a, b in pairwise(indices))
    ):
        raise ArgumentError(
            f'out_indices={out_indices!r} are not {NUM_LEVELS} ascending layers in 0..{depth - 1}'
        )
    return tuple(indices)


def _init_linear(module: nn.Module) -> None:
    """The authors' initialisation; convolutions and norms keep PyTorch's."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
