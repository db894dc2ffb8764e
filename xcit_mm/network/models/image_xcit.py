"""XCiT for whole images: one vector per image, and the map that the vector is read from."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...base.errors import ArgumentError
from ..archs import ARCHS, resolve_arch
from ..tokens import map_to_tokens
from ..xcit import NUM_LEVELS, XCiT, init_linear
from .class_attention import ClassAttentionBlock

NUM_CLASS_LAYERS = 2  # in all published models


class XCiTTrunk(XCiT):
    """An XCiT for images of any size that returns one map, the tokens of its last layer.

    It has the arguments of :class:`.XCiT` except for the arguments about maps. Its parameters are
    the parameters of a published classifier without the class attention.

    Shape:
        (B, ``in_channels``, H, W) to a tuple of one map (B, C, ceil(H / patch_size),
        ceil(W / patch_size)).
    """

    def __init__(
        self, arch: str | dict[str, Any] = 's12', patch_size: int = 16, **arguments: Any
    ) -> None:
        depth = resolve_arch(arch).depth
        last = range(depth - NUM_LEVELS, depth)
        super().__init__(arch, patch_size, tuple(last), start_level=NUM_LEVELS - 1, **arguments)
        self.fpn4 = nn.Identity()  # replaces the pooling, which refuses small images

    def check_size(self, shape: Sequence[int]) -> None:
        """Refuse images with a shape other than (B, channels, H, W)."""
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ArgumentError(
                f'images of shape {tuple(shape)} are not (B, {self.in_channels}, H, W), '
                f'in_channels={self.in_channels}'
            )


class ImageFeatures(NamedTuple):
    """The features of images, computed by an :class:`ImageXCiT`."""

    token: Tensor  # (B, C), the class token after the last norm
    map: Tensor  # (B, C, H, W), the tokens of the last layer before the class attention


@MODELS.register_module()
class ImageXCiT(XCiTTrunk):
    """XCiT with class attention: an image classifier or an image encoder.

    Parameters have the same names as in the authors' classifiers and DINO models. It loads the
    authors' files, and :class:`.XCiT` loads its files.

    Args:
        arch, patch_size, drop_path_rate, with_cp, frozen_stages, in_channels, norm_eval: See
            :class:`.XCiT`.
        num_classes: The number of classes, or 0 for a network without a classification head.
        init_cfg: See :class:`.XCiT`. The class attention and the head are initialized at random if
            they are not in the file. The head is also initialized at random if it has other
            classes.

    Shape:
        (B, ``in_channels``, H, W) of any size to logits (B, ``num_classes``), or to class tokens
        (B, C) without a head.
    """

    def __init__(
        self,
        arch: str | dict[str, Any] = 's12',
        patch_size: int = 16,
        num_classes: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__(arch, patch_size, **arguments)
        dim, _, num_heads, eta, _ = shape = resolve_arch(arch)
        # In the release, only N12 normalizes the class token alone after the attention.
        tokens_norm = shape[:3] != ARCHS['n12'][:3]
        self.num_classes = num_classes
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        self.cls_attn_blocks = nn.ModuleList(
            ClassAttentionBlock(dim, num_heads, eta, tokens_norm) for _ in range(NUM_CLASS_LAYERS)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        self.cls_attn_blocks.apply(init_linear)
        self.head.apply(init_linear)

    def features(self, x: Tensor) -> ImageFeatures:
        """Compute the class tokens of images (B, ``in_channels``, H, W), and their maps."""
        (x,) = super().forward(x)
        tokens = map_to_tokens(x)
        token = self.cls_token.expand(x.shape[0], -1, -1)
        for block in self.cls_attn_blocks:
            token, tokens = block(token, tokens)
        return ImageFeatures(self.norm(token)[:, 0], x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).token)
