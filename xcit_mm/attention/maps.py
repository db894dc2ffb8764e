"""What an XCiT attends to in an image, as maps over its tokens.

Two kinds, as in the paper (XCiT, arXiv 2106.09681): how much the class token attends to each
token (figure 4), and how large each token is in the queries and keys of the cross-covariance
attention (figure D.2, section D.5).

Letters in shapes: h heads of d = C / h channels, N = H * W tokens.
"""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..classification.loading import classifier_of, has_class_attention
from ..device import choose_device
from ..errors import ArgumentError
from ..models.layers import XCA, ConvPatchEmbed, FourierPosition, XCABlock, map_to_tokens
from ..ops.xca import EPS
from ..weights.architecture import Architecture, architecture
from ..weights.read import read_checkpoint
from ..weights.states import PYRAMID, backbone_state, model_state, require_same_tensors

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for RGB in 0..1
CHUNK = 8192  # tokens whose queries and keys are there at a time


class AttentionMaps(NamedTuple):
    """The maps of an image, one a head, on the CPU.

    Attributes:
        queries: Magnitude of each token in the normalised queries of a layer, (h, H, W).
        keys: The same of the keys.
        class_attention: Share of the class token's attention, (h, H, W); what is missing to 1 in
            the sum of a head goes to the class token itself. None without class-attention layers.
        layer: Which layer the queries and keys are of, from 0.
        class_layer: Which class-attention layer, from 0.
    """

    queries: Tensor
    keys: Tensor
    class_attention: Tensor | None
    layer: int
    class_layer: int | None


class AttentionProbe(nn.Module):
    """An XCiT that shows what it attends to.

    The layers are those of :class:`xcit_mm.XCiT`, which never compute queries and keys for many
    tokens: those of the layer that is asked for are computed here, a few tokens at a time. Large
    images need no more memory than in inference.

    Args:
        path: A classifier, a DINO model, a backbone, a detector or a segmentor, as of
            :func:`~xcit_mm.weights.read.read_checkpoint`. The first two have
            class-attention layers.
        device: Its name; None: a GPU where there is one.
        trusted: As of :func:`~xcit_mm.weights.read.read_checkpoint`.

    Attributes:
        kind: The :class:`~xcit_mm.weights.architecture.Architecture` of the file.

    Raises:
        UserError: If the file cannot be read, or is not just the weights of such a model, or the
            device cannot be used.
    """

    def __init__(self, path: str | Path, device: str | None = None, trusted: bool = False) -> None:
        super().__init__()
        path, self.device = str(path), choose_device(device)
        state = model_state(read_checkpoint(path, trusted=trusted), path)
        self.kind: Architecture = architecture(state, path)
        dim, depth, num_heads, patch_size = self.kind
        self.patch_embed = ConvPatchEmbed(dim, patch_size)
        self.pos_embeder = FourierPosition(dim)
        self.blocks = nn.ModuleList(
            XCABlock(dim, num_heads, eta=1.0, drop_path=0.0) for _ in range(depth)
        )
        trunk = {k: v for k, v in backbone_state(state).items() if not k.startswith(PYRAMID)}
        require_same_tensors(trunk, self.state_dict(), path)
        self.load_state_dict(trunk)
        classifier = classifier_of(state, path) if has_class_attention(state) else None
        self.cls_token = None if classifier is None else classifier.cls_token
        self.cls_attn_blocks = nn.ModuleList(classifier.cls_attn_blocks if classifier else [])
        self.eval().to(self.device)

    @torch.inference_mode()
    def forward(
        self, image: np.ndarray, layer: int | None = None, class_layer: int | None = None
    ) -> AttentionMaps:
        """Compute the maps of an image.

        Args:
            image: RGB, (H, W, 3) uint8, of any size: there are ceil(H / patch_size) times
                ceil(W / patch_size) tokens.
            layer: Whose queries and keys to take, from 0; None: the last one.
            class_layer: The class-attention layer to take, from 0; None: the last one, if there
                is any.

        Raises:
            ValueError: If there is no such layer.
        """
        layer = _index(layer, len(self.blocks), 'layer', 'layers')
        if class_layer is not None or len(self.cls_attn_blocks):
            count = len(self.cls_attn_blocks)
            class_layer = _index(class_layer, count, 'class_layer', 'class-attention layers')
        x = self.patch_embed(self._normalized(image))
        H, W = x.shape[2:]
        x = map_to_tokens(x + self.pos_embeder(H, W))  # (1, N, C)
        for i, block in enumerate(self.blocks):
            if i == layer:
                queries, keys = token_magnitudes(block.attn, block.norm1(x))[0]
                if class_layer is None:
                    break
            x = block(x, H, W)
        attention = None
        if class_layer is not None:
            attention = self._class_attention(x, class_layer)[0].unflatten(1, (H, W)).cpu()
        queries, keys = (m.unflatten(1, (H, W)).cpu() for m in (queries, keys))
        return AttentionMaps(queries, keys, attention, layer, class_layer)

    def _normalized(self, image: np.ndarray) -> Tensor:
        x = torch.from_numpy(np.ascontiguousarray(image)).to(self.device)
        mean, std = (torch.tensor(v, device=self.device)[:, None, None] for v in (MEAN, STD))
        return ((x.permute(2, 0, 1) / 255 - mean) / std)[None]

    def _class_attention(self, x: Tensor, class_layer: int) -> Tensor:
        x = torch.cat((self.cls_token, x), dim=1)
        for block in self.cls_attn_blocks[:class_layer]:
            x = block(x)
        block = self.cls_attn_blocks[class_layer]
        return class_attention(block.attn, block.norm1(x))


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """Resize an image.

    Args:
        image: RGB, (H, W, 3) uint8.
        size: Its shorter side afterwards, in pixels.
    """
    factor = size / min(image.shape[:2])
    width, height = (max(1, round(factor * side)) for side in image.shape[1::-1])
    way = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=way)


def token_magnitudes(attn: XCA, x: Tensor) -> Tensor:
    """How large each token is in the normalised queries and keys of an attention.

    XCA normalises every channel of q and k over the tokens, so that q_hat^T k_hat holds cosines
    (paper, equation 2): a token counts in them as much as its own part of the channels is large.
    That is the norm of its row in q_hat and k_hat (section D.5), taken for each head here.

    Args:
        attn: The attention; only its projection to q, k and v is used.
        x: Its input, the normed tokens.

    Shape:
        x: (1, N, C). Output: (1, 2, h, N), queries and keys. The squares of a head sum to d.
    """
    C = x.shape[-1]
    weight = attn.qkv.weight[: 2 * C]
    bias = None if attn.qkv.bias is None else attn.qkv.bias[: 2 * C]
    chunks = x.split(CHUNK, dim=1)
    squares = sum(F.linear(chunk, weight, bias).square().sum(1, keepdim=True) for chunk in chunks)
    norms = squares.sqrt().clamp_min(EPS)  # (1, 1, 2 C)
    magnitudes = [
        (F.linear(chunk, weight, bias) / norms).unflatten(-1, (2, attn.num_heads, -1)).norm(dim=-1)
        for chunk in chunks
    ]
    return torch.cat(magnitudes, dim=1).permute(0, 2, 3, 1)


def class_attention(attn: nn.Module, x: Tensor) -> Tensor:
    """The weights with which the class token attends to the others, for each head.

    Args:
        attn: timm's ``ClassAttn`` (Touvron et al., "Going deeper with image transformers"): the
            query is the class token's alone, and the softmax includes the class token.
        x: Its input, the normed tokens, the class token first.

    Shape:
        x: (1, 1 + N, C). Output: (1, h, N).
    """
    h = attn.num_heads
    q = attn.q(x[:, :1]).unflatten(-1, (h, -1)).transpose(1, 2)  # (1, h, 1, d)
    k = attn.k(x).unflatten(-1, (h, -1)).transpose(1, 2)  # (1, h, 1 + N, d)
    return (q * attn.scale @ k.mT).softmax(dim=-1)[:, :, 0, 1:]


def _index(index: int | None, count: int, name: str, what: str) -> int:
    if not count:
        raise ArgumentError(
            f'{name}={index!r}: the checkpoint has no {what}, as classifiers and DINO models do'
        )
    if index is None:
        return count - 1
    if index not in range(count):
        raise ArgumentError(f'{name}={index!r} is not in 0..{count - 1}, the {what} of this model')
    return index
