"""Layers of XCiT: patch embedding, position, attention, local interaction, MLP and block.

Parameter names match the authors' release. XCA, LPI and Mlp compute with the weights of their
layers, which is faster and keeps less for the backward pass. If a layer is modified
(:mod:`xcit_mm.network.fast.unmodified`), they call their layers instead. Their ``scale`` (C,) multiplies
the channels of the output (LayerScale). ``rows`` provide what a layer needs from other rows of the
images (:mod:`xcit_mm.network.rows`).

Letters in shapes: B images, N tokens (N = H * W), C channels, h heads of d = C / h channels.
Section numbers refer to the paper (XCiT, arXiv 2106.09681).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ArgumentError
from .convolutions import ConvStack, fill_up, gelu_norm_conv
from .fast.in_place import add_attention_and_interaction, add_mlp_, is_in_place
from .fast.linear_gelu import linear_gelu
from .fast.recompute import recompute
from .fast.tracing import computed_dtype, is_transformed
from .fast.unmodified import has_unmodified_layers, is_unmodified
from .ops.gram import gram
from .ops.xca import cross_covariance, xca
from .rows import ALONE, Rows, RowsModule, require_unmodified

POSITION_DIM = 32  # for each of y and x


class ConvPatchEmbed(RowsModule):
    """Patch embedding: stride-2 convolutions with BatchNorm, and GELU between them (section 3.3).

    Each convolution but the first doubles the channels, up to ``dim``, a multiple of 8. With
    ``fill``, the last pixels are repeated where patches reach beyond the image. Without it, the
    convolutions read zeros there, which they never read in images of whole patches.

    Shape:
        (B, ``in_channels``, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size)) in
        channels-last memory format, of which the tokens (B, N, C) are a view.
    """

    def __init__(self, dim: int, patch_size: int, in_channels: int = 3, fill: bool = False) -> None:
        super().__init__()
        self.patch_size, self.fill = patch_size, fill
        widths = [dim // 2**i for i in reversed(range(int(math.log2(patch_size))))]
        layers: list[nn.Module] = []
        for c_in, c_out in pairwise((in_channels, *widths)):
            conv = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, nn.BatchNorm2d(c_out)), nn.GELU()]
        self.proj = ConvStack(*layers[:-1])

    def forward(self, x: Tensor, rows: Rows = ALONE) -> Tensor:
        if self.fill:
            x = fill_up(x, self.patch_size)
        if not is_transformed():  # vmap has no memory formats
            x = x.contiguous(memory_format=torch.channels_last)
        return rows.call(self.proj, x)


class FourierPosition(nn.Module):
    """Sinusoidal encoding of y and x, projected to the channels of the tokens (section 3.3).

    Coordinates 1..H are scaled to (0, 2 pi], so that an encoding means the same relative place at
    every resolution. y and x are projected separately and added: H + W projections, not H * W.

    Shape:
        Size (H, W) in tokens to (1, C, H, W), the same for every image of a batch; or only a
        ``window`` of it, the slices of its rows and columns.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * POSITION_DIM, dim, kernel_size=1)

    def forward(
        self, H: int, W: int, window: tuple[slice, slice] = (slice(None), slice(None))
    ) -> Tensor:
        weight = next(self.token_projection.parameters())  # (C, 64, 1, 1)
        y = _encode(H, weight.device).to(weight.dtype)[window[0], None]  # (H, 1, 32)
        x = _encode(W, weight.device).to(weight.dtype)[window[1]]  # (W, 32)
        if not is_unmodified(self.token_projection):
            size = y.shape[0], x.shape[0], -1  # len() would fix the size in an exported graph
            grid = torch.cat((y.expand(size), x.expand(size)), dim=-1).permute(2, 0, 1)
            return self.token_projection(grid[None]).to(weight.dtype)
        y_weight, x_weight = weight.flatten(1).chunk(2, dim=1)  # (C, 32) each
        position = F.linear(y, y_weight) + (F.linear(x, x_weight) + self.token_projection.bias)
        return position.permute(2, 0, 1)[None]


def _encode(length: int, device: torch.device) -> Tensor:
    """Return (length, 32): sines at even places, cosines at odd places, in float32."""
    place = torch.arange(1, length + 1, device=device, dtype=torch.float32)
    place = place / (length + 1e-6) * (2 * math.pi)
    channel = torch.arange(0, POSITION_DIM, 2, device=device, dtype=torch.float32)
    phase = place[:, None] / 10000 ** (channel / POSITION_DIM)  # (length, 16)
    return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(1)


class XCA(RowsModule):
    """Cross-covariance attention: channels attend to channels instead of tokens (section 3.2).

    The cost is linear in the number of tokens. Each of the h heads has a learned temperature.
    :func:`xcit_mm.network.ops.xca` explains ``form``.

    Shape:
        (B, N, C) to (B, N, C).
    """

    form: str | None = None

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ArgumentError(f'dim={dim} is not a multiple of num_heads={num_heads}')
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def weights(self, scale: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the parameters, as :func:`xcit_mm.network.ops.xca` takes them after the tokens."""
        return self.qkv.weight, self.qkv.bias, self.temperature, *_scaled_weights(self.proj, scale)

    def forward(self, x: Tensor, scale: Tensor | None = None, rows: Rows = ALONE) -> Tensor:
        if rows.are_shared or rows.have_gaps:  # the attention needs only sums of other rows
            require_unmodified(self.qkv, self.proj)
            return gram(rows.with_data(x), *self.weights(scale), total=rows.sum)
        if has_unmodified_layers(self) and not is_transformed():
            return xca(x, *self.weights(scale), self.form)
        return _scaled(self.proj(cross_covariance(self.qkv(x), self.temperature)), scale)


class LPI(RowsModule):
    """Local patch interaction of neighboring tokens: two depthwise convolutions (section 3.3).

    The backward pass recomputes GELU and BatchNorm.

    Shape:
        (B, N, C) and the size (H, W) in tokens, N = H * W, to (B, N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(
        self, x: Tensor, H: int, W: int, scale: Tensor | None = None, rows: Rows = ALONE
    ) -> Tensor:
        x = rows.call(self.conv1, tokens_to_map(x, H, W))  # (B, C, H, W)
        are_plain = not (rows.are_shared or rows.have_gaps)
        if are_plain and has_unmodified_layers(self) and not is_transformed():
            weights = _scaled_weights(self.conv2, scale)
            return map_to_tokens(gelu_norm_conv(x, self.bn, self.conv2, *weights, within=self))
        x = rows.call(self.conv2, rows.call(self.bn, self.act(x)))
        return _scaled(map_to_tokens(x), scale)


class Mlp(nn.Module):
    """Two linear layers with GELU between them, (..., C) to (..., 4 C) to (..., C).

    The backward pass recomputes GELU, whose output is as large as its input.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        if not has_unmodified_layers(self) or is_transformed():
            return _scaled(self.fc2(F.gelu(self.fc1(x))), scale)
        weights = _scaled_weights(self.fc2, scale)
        if not torch.is_grad_enabled():
            return F.linear(linear_gelu(x, self.fc1.weight, self.fc1.bias), *weights)
        x = self.fc1(x)  # (..., 4 C)
        return recompute(lambda x: F.linear(F.gelu(x), *weights), x, within=self)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else scale * x


def _scaled_weights(layer: nn.Module, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weight and bias with which a layer scales its output by (C,)."""
    if scale is None:
        return layer.weight, layer.bias
    return scale.view(-1, *[1] * (layer.weight.ndim - 1)) * layer.weight, scale * layer.bias


def tokens_to_map(x: Tensor, H: int, W: int) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, H, W) in channels-last memory format."""
    return x.unflatten(1, (H, W)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a map (B, C, H, W) as tokens (B, N, C), a view if its memory is channels-last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class DropPath(RowsModule):
    """Stochastic depth (Huang et al. 2016): in training, samples of (B, N, C) are 0 at the rate p.

    torchvision has the same layer, but under vmap it cannot draw each sample independently.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, rows: Rows = ALONE) -> Tensor:
        if not (self.training and self.p):
            return x
        share = 1 - self.p
        return x * rows.agreed(x.new_empty(x.shape[0], 1, 1).bernoulli_(share).div_(share))


class XCABlock(RowsModule):
    """Attention, local interaction and MLP, each normed, scaled and added (figure 1).

    The numbers in the names follow the release, in which the local interaction, the second branch,
    has number 3. LayerScale (Touvron et al., "Going deeper with image transformers") starts at
    ``eta``; ``drop_path`` is the probability that a sample skips a branch in training.

    Shape:
        (B, N, C) and the size (H, W) in tokens, N = H * W, to (B, N, C).
    """

    BRANCHES = (XCA, LPI, Mlp)

    def __init__(self, dim: int, num_heads: int, eta: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = XCA(dim, num_heads)
        self.norm3 = nn.LayerNorm(dim, eps=1e-6)
        self.local_mp = LPI(dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.gamma3 = nn.Parameter(torch.full((dim,), eta))
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        H: int,
        W: int,
        rows: Rows = ALONE,
        draws: Sequence[Tensor | None] = (None, None, None),
    ) -> Tensor:
        if rows is ALONE and is_in_place(self):
            return add_mlp_(self, add_attention_and_interaction(self, x, H, W, self.attn))
        x = x + self._branch(rows, draws[0], self.gamma1, self.attn, self.norm1(x))
        x = x + self._branch(rows, draws[1], self.gamma3, self.local_mp, self.norm3(x), H, W)
        x = rows.inner(x)
        return x + self._branch(rows, draws[2], self.gamma2, self.mlp, self.norm2(x))

    def draws(self, x: Tensor, rows: Rows) -> tuple[Tensor | None, ...]:
        """Draw what each branch of the tokens ``x`` is multiplied by, to recompute it alike."""
        if not (self.training and self.drop_path.p):
            return None, None, None
        ones = x.new_ones(x.shape[0], 1, 1)
        return tuple(rows.call(self.drop_path, ones) for _ in range(3))

    def _branch(
        self, rows: Rows, draw: Tensor | None, gamma: Tensor, branch: nn.Module, *args: Any
    ) -> Tensor:
        # Scaling the last projection of the branch keeps one tensor less for the backward pass.
        # In float16 the initial gamma of 1e-5 times a weight would vanish.
        if computed_dtype(args[0]) == torch.float16 or not is_unmodified(branch, self.BRANCHES):
            y = gamma * rows.call(branch, *args)
        else:
            y = rows.call(branch, *args, scale=gamma)
        return rows.call(self.drop_path, y) if draw is None else y * draw
