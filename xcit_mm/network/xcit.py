"""XCiT as a backbone with four output maps, for mmdetection and mmsegmentation."""

from collections.abc import Sequence
from typing import Any

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..base.errors import ArgumentError
from .archs import PATCH_SIZES, resolve_arch
from .conv_stack import ConvStack
from .fast.recompute import recompute
from .layers import ConvPatchEmbed, FourierPosition, XCABlock
from .pyramid import ChannelNorm, pyramid_levels
from .rows import ALONE, Rows
from .tokens import fill_up, map_to_tokens, tokens_to_map

STRIDES = 4, 8, 16, 32
NUM_LEVELS = len(STRIDES)


@MODELS.register_module()
class XCiT(BaseModule):
    """Cross-Covariance Image Transformer with outputs at strides 4, 8, 16 and 32.

    Paper: arXiv 2106.09681. State-dict names match the authors' detectors and segmentors. mmdet
    and mmseg both build it from ``dict(type='XCiT', arch='s12', patch_size=8)``.

    Args:
        arch: 'n12', 't12', 't24', 's12', 's24', 'm12', 'm24', 'l12' or 'l24', or a dict with
            ``embed_dim``, ``depth``, ``num_heads`` and ``eta`` (initial LayerScale).
        patch_size: 4, 8 or 16 pixels. The weights of 16 fit 4, too, which is for small images: its
            first map has the stride of the tokens.
        out_indices: The four blocks, counted from 0, whose maps are returned at strides 4, 8,
            16 and 32. Later blocks are neither computed nor trained. Default: the blocks after
            a third, a half, two thirds and all of the depth, as published.
        drop_path_rate: Probability of skipping a branch, the same in every block. Default: the
            published rate of ``arch``, or 0 if ``arch`` is a dict.
        with_cp: Whether the backward pass recomputes each block instead of keeping its
            intermediate tensors: less memory, more time, the same gradients.
        frozen_stages: -1 trains everything, 0 freezes the patch and position embeddings, and
            n > 0 the first n blocks as well. Frozen parts stay in evaluation mode.
        start_level: Number of maps to leave out, from stride 4 on: 0 to 3. Their layers are not
            built. With 1, as for DINO and RTMDet, the maps have strides 8, 16 and 32.
        out_norm: Whether a LayerNorm normalizes the channels of each map, as in ResT's RetinaNet
            (arXiv 2105.13677, appendix).
        in_channels: Channels of the images. Weights of RGB images are adapted to them when they
            are loaded (see :func:`xcit_mm.network.weights.inflation.inflate`).
        norm_eval: Whether BatchNorm stays in evaluation mode in training: it normalizes with its
            running statistics and does not update them, as in fine-tuning on few images.
        pad_maps: Whether the maps cover the image extended to a multiple of 32 pixels, so that a
            pixel at stride s always stands for s x s pixels. The last pixels are repeated up to a
            multiple of ``patch_size``, and the last tokens up to a multiple of 32 pixels. With
            False, as published, the last patches read zeros, and sizes of maps are rounded down.
        init_cfg: ``dict(type='Pretrained', checkpoint=<path, URL or timm://NAME>)``, or None. With
            ``rgb=(3, 2, 1)``, bands 3, 2 and 1 keep the kernels of red, green and blue.

    Shape:
        (B, ``in_channels``, H, W) to a tuple of 4 - ``start_level`` maps of
        (B, C, H_i, W_i), C = ``embed_dim``. With h = ceil(H / patch_size), H_i is
        h * patch_size / stride_i, rounded down; W_i likewise. With ``pad_maps``, H_i is
        ceil(H / 32) * 32 / stride_i.

    Raises:
        ValueError: If an argument is invalid, and in ``forward`` if an image has the wrong number
            of channels or is too small for stride 32.
    """

    rows: Rows = ALONE  # replaced for a while by what shares or pads images

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 8,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        with_cp: bool = False,
        frozen_stages: int = -1,
        start_level: int = 0,
        out_norm: bool = False,
        in_channels: int = 3,
        norm_eval: bool = False,
        pad_maps: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        dim, depth, num_heads, eta, _ = shape = resolve_arch(arch)
        _require('patch_size', patch_size, patch_size in PATCH_SIZES, f'one of {PATCH_SIZES}')
        if drop_path_rate is None:
            drop_path_rate = shape.published_drop_path_rate(patch_size)
        is_rate = isinstance(drop_path_rate, (int, float)) and 0 <= drop_path_rate < 1
        is_count = type(in_channels) is int and in_channels > 0
        is_stage = frozen_stages in range(-1, depth + 1)
        is_level = start_level in range(NUM_LEVELS)
        is_cfg = init_cfg is None or (isinstance(init_cfg, dict) and 'type' in init_cfg)
        _require('drop_path_rate', drop_path_rate, is_rate, 'in [0, 1)')
        _require('frozen_stages', frozen_stages, is_stage, f'in -1..{depth}')
        _require('in_channels', in_channels, is_count, 'a positive integer')
        _require('start_level', start_level, is_level, f'in 0..{NUM_LEVELS - 1}')
        _require('init_cfg', init_cfg, is_cfg, "a dict(type='Pretrained', ...)")

        self.patch_size = patch_size
        self.in_channels = in_channels
        self.out_indices = _resolve_out_indices(out_indices, depth)
        self.with_cp = with_cp
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.start_level = start_level
        self.pad_maps = pad_maps

        self.patch_embed = ConvPatchEmbed(dim, patch_size, in_channels, fill=pad_maps)
        self.pos_embeder = FourierPosition(dim)  # sic: the name in the released weights
        self.blocks = nn.ModuleList(
            XCABlock(dim, num_heads, eta, drop_path_rate) for _ in range(depth)
        )
        self.apply(init_linear)
        levels = list(pyramid_levels(dim, patch_size))
        levels[:start_level] = (nn.Identity() for _ in range(start_level))  # not called
        self.fpn1, self.fpn2, self.fpn3, self.fpn4 = levels
        self.out_norms = nn.ModuleList(
            ChannelNorm(dim, eps=1e-6) if out_norm else nn.Identity() for _ in levels[start_level:]
        )
        # DistributedDataParallel must know which parameters never get a gradient.
        self.blocks[self.out_indices[-1] + 1 :].requires_grad_(False)
        self.train()  # freezes

    def init_weights(self) -> None:
        """Load the weights that ``init_cfg`` names. The runner calls this once."""
        if self.init_cfg is not None and self.init_cfg.get('type') == 'Pretrained':
            from .weights.pretrained import load_pretrained

            cfg = self.init_cfg
            load_pretrained(self, cfg.get('checkpoint'), cfg.get('trusted', False), cfg.get('rgb'))
        else:
            super().init_weights()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = self.rows
        rows.check(x, self.check_size)
        x = self.patch_embed(x, *rows.of_pixels.passed)  # (B, C, H, W)
        H, W = x.shape[2:]
        x = rows.with_data(map_to_tokens(x + rows.position(self.pos_embeder, H, W)))  # (B, N, C)

        maps = []
        for i, block in enumerate(self.blocks[: self.out_indices[-1] + 1]):
            if self.with_cp:
                # Numbers that are drawn in a CUDA graph cannot be drawn again in another one.
                draws = block.drop_path.draw(x, rows)
                x = recompute(block, x, H, W, rows, draws, within=block, random=True)
            else:
                x = block(x, H, W, *rows.passed)
            if i in self.out_indices[self.start_level :]:
                tokens = tokens_to_map(rows.with_data(x), H, W)
                multiple = STRIDES[-1] // self.patch_size
                maps.append(fill_up(tokens, multiple) if self.pad_maps else tokens)
        levels = zip(self.levels, maps, strict=True)
        return tuple(
            norm(resize(x, *(rows.of_pixels.passed if isinstance(resize, ConvStack) else ())))
            for (_, _, resize, norm), x in levels
        )

    @property
    def levels(self) -> list[tuple[int, int, nn.Module, nn.Module]]:
        """For each map: the index of its block, its stride, its convolutions, and its norm."""
        layers = self.fpn1, self.fpn2, self.fpn3, self.fpn4
        returned = (group[self.start_level :] for group in (self.out_indices, STRIDES, layers))
        return list(zip(*returned, self.out_norms, strict=True))

    def train(self, mode: bool = True) -> 'XCiT':
        """Switch to training or evaluation mode; see ``frozen_stages`` and ``norm_eval``."""
        super().train(mode)
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        if self.frozen_stages >= 0:
            for module in (self.patch_embed, self.pos_embeder, *self.blocks[: self.frozen_stages]):
                module.eval().requires_grad_(False)
        return self

    def check_size(self, shape: Sequence[int]) -> None:
        """Refuse images of a shape other than (B, channels, H, W), or too small for four maps."""
        channels = self.in_channels
        if len(shape) != 4 or shape[1] != channels:
            kind = '3 channels (RGB)' if channels == 3 else f'in_channels={channels}'
            raise ArgumentError(
                f'images of shape {tuple(shape)} are not (B, {channels}, H, W), {kind}'
            )
        smallest = 32 - self.patch_size + 1  # ceil(smallest / patch_size) * patch_size == 32
        if min(shape[-2:]) < smallest:
            raise ArgumentError(
                f'an image of {shape[-2]}x{shape[-1]} pixels has no map at stride 32: with '
                f'patch_size={self.patch_size} both sides need at least {smallest}'
            )


def _require(name: str, value: object, is_valid: bool, valid: str) -> None:
    if not is_valid:
        raise ArgumentError(f'{name}={value!r} is not {valid}')


def _resolve_out_indices(out_indices: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    indices = out_indices
    if indices is None:
        indices = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
    is_sequence = isinstance(indices, (tuple, list)) and len(indices) == NUM_LEVELS
    if not is_sequence or [i for i in range(depth) if i in indices] != list(indices):
        raise ArgumentError(
            f'out_indices={indices!r} are not {NUM_LEVELS} ascending layers in 0..{depth - 1}'
        )
    return tuple(map(int, indices))


def init_linear(module: nn.Module) -> None:
    """Initialize linear layers as the authors do; other layers keep PyTorch's initialization."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
