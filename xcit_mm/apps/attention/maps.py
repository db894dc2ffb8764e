"""Maps over the tokens of an image that show what an XCiT attends to.

Figures and sections refer to the paper (XCiT, arXiv 2106.09681). Letters in shapes: h heads of
d = C / h channels, N = H * W tokens.
"""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import normalize, to_tensor

from ...base.device import choose_device
from ...base.errors import ArgumentError
from ...network.layers import XCA
from ...network.models.image_xcit import XCiTTrunk
from ...network.ops.xca import EPS
from ...network.tokens import map_to_tokens
from ...network.weights.names import (
    PYRAMID,
    architecture,
    backbone_state,
    model_state,
    require_same_tensors,
)
from ...network.weights.read import read_checkpoint
from ...network.weights.timm_classifier import build_classifier, has_class_attention

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for RGB in 0..1
CHUNK = 8192  # tokens whose queries and keys are in memory at a time


class AttentionMaps(NamedTuple):
    """The maps of an image, one for each head, on the CPU."""

    queries: Tensor  # (h, H, W), magnitude of each token in the normalized queries
    keys: Tensor  # (h, H, W), the same for the keys
    class_attention: Tensor | None  # (h, H, W), None without class-attention layers (figure 4)
    layer: int
    class_layer: int | None


class AttentionProbe(nn.Module):
    """An XCiT that returns maps of what it attends to.

    The layers of :class:`xcit_mm.XCiT` never compute queries and keys of many tokens. A hook
    computes them for one layer, a few tokens at a time, so that large images need no more memory
    than in inference.

    Args:
        path: File, URL or ``timm://NAME`` of a classifier or DINO model, which have
            class-attention layers, or of a backbone, detector or segmentor.
        device: Name of a device. None: a GPU if there is one, otherwise the CPU.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.

    Attributes:
        architecture: :class:`~xcit_mm.network.weights.names.Architecture` of the weights.

    Raises:
        UserError: If the file cannot be read, is not one of these models, or the device cannot
            be used.
    """

    def __init__(self, path: str | Path, device: str | None = None, trusted: bool = False) -> None:
        super().__init__()
        path, self.device = str(path), choose_device(device)
        checkpoint = read_checkpoint(path, trusted=trusted)
        state = model_state(checkpoint, path)
        self.architecture = architecture(state, path, checkpoint)
        dim, depth, num_heads, patch_size = self.architecture
        arch = dict(embed_dim=dim, depth=depth, num_heads=num_heads, eta=1.0)
        self.backbone = XCiTTrunk(arch, patch_size)
        trunk = {k: v for k, v in backbone_state(state).items() if not k.startswith(PYRAMID)}
        require_same_tensors(trunk, self.backbone.state_dict(), path)
        self.backbone.load_state_dict(trunk)
        classifier = None
        if has_class_attention(state):
            classifier = build_classifier(state, path, self.architecture)
        self.cls_token = None if classifier is None else classifier.cls_token
        self.cls_attn_blocks = nn.ModuleList(classifier.cls_attn_blocks if classifier else [])
        self.eval().to(self.device)

    @torch.inference_mode()
    def forward(
        self, image: np.ndarray, layer: int | None = None, class_layer: int | None = None
    ) -> AttentionMaps:
        """Compute the maps of an RGB image of any size, (H, W, 3) uint8.

        ``layer`` is the layer of the queries and keys, and ``class_layer`` a class-attention layer;
        both count from 0 and are the last ones by default. Raises an ArgumentError if there is no
        such layer.
        """
        blocks, class_blocks, maps = self.backbone.blocks, self.cls_attn_blocks, []
        layer = checked_index('layer', layer, len(blocks))
        class_layer = checked_index('class-attention layer', class_layer, len(class_blocks))
        attn = blocks[layer].attn
        pixels = normalize(to_tensor(image.copy()), MEAN, STD)[None].to(self.device)
        with blocks[layer].norm1.register_forward_hook(
            lambda *call: maps.extend(token_magnitudes(attn, call[-1])[0])
        ):
            (x,) = self.backbone(pixels)
        size = x.shape[2:]
        if class_layer is not None:
            x = torch.cat((self.cls_token, map_to_tokens(x)), dim=1)  # (1, 1 + N, C)
            for block in class_blocks[:class_layer]:
                x = block(x)
            block = class_blocks[class_layer]
            maps.append(class_attention(block.attn, block.norm1(x))[0])
        queries, keys, *attention = (m.unflatten(1, size).cpu() for m in maps)
        return AttentionMaps(queries, keys, *(attention or [None]), layer, class_layer)


def scaled(image: np.ndarray, factor: float) -> np.ndarray:
    """Resize an image (H, W, 3) by a factor."""
    width, height = (max(1, round(factor * side)) for side in image.shape[1::-1])
    interpolation = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=interpolation)


def token_magnitudes(attn: XCA, x: Tensor) -> Tensor:
    """Compute how large each token is in the normalized queries and keys of an attention.

    XCA normalizes every channel of q and k over the tokens (equation 2). The magnitude of a token
    is the norm of its row in them (section D.5 and figure D.2), taken for each head here.

    Shape:
        x: (1, N, C), the output of the LayerNorm. Output: (1, 2, h, N), queries and keys. The
        squares of a head sum to d.
    """
    C = x.shape[-1]
    weight, bias = attn.qkv.weight[: 2 * C], attn.qkv.bias[: 2 * C]
    chunks = x.split(CHUNK, dim=1)
    squares = sum(F.linear(chunk, weight, bias).square().sum(1, keepdim=True) for chunk in chunks)
    norms = squares.sqrt().clamp_min(EPS)  # (1, 1, 2 C)
    magnitudes = [
        (F.linear(chunk, weight, bias) / norms).unflatten(-1, (2, attn.num_heads, -1)).norm(dim=-1)
        for chunk in chunks
    ]
    return torch.cat(magnitudes, dim=1).permute(0, 2, 3, 1)


def class_attention(attn: nn.Module, x: Tensor) -> Tensor:
    """Compute the weights with which the class token attends to the other tokens.

    ``attn`` is timm's ``ClassAttn``, whose softmax includes the class token itself.

    Shape:
        x: (1, 1 + N, C), the class token first. Output: (1, h, N).
    """
    h = attn.num_heads
    q = attn.q(x[:, :1]).unflatten(-1, (h, -1)).transpose(1, 2)  # (1, h, 1, d)
    k = attn.k(x).unflatten(-1, (h, -1)).transpose(1, 2)  # (1, h, 1 + N, d)
    return (q * attn.scale @ k.mT).softmax(dim=-1)[:, :, 0, 1:]


def checked_index(name: str, index: int | None, count: int) -> int | None:
    """Return the index of a layer or head, by default the last one; refuse what does not exist."""
    if index is None:
        return count - 1 if count else None
    if index not in range(count):
        raise ArgumentError(f'{name} {index} does not exist: the model has {count}, counted from 0')
    return index
