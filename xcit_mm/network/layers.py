"""Layers of XCiT: patch embedding, position, attention, local interaction, MLP and block.

The layers follow the paper, and parameter names match the authors' release. :func:`.fast_form`
selects code that computes the values of a block or a stack of convolutions faster, without calling
the layers: give a layer that computes something else a class of its own, and it is called. ``rows``
provides what a layer needs from rows of an image that are not in its input (:mod:`.rows`).

Letters in shapes: B images, N tokens (N = H * W), C channels, h heads of d = C / h channels.
Section numbers refer to the paper (XCiT, arXiv 2106.09681).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..base.errors import ArgumentError
from .archs import STEM_STRIDES
from .conv_stack import ConvStack
from .fast.form import fast_form
from .fast.tracing import is_transformed
from .fast.unmodified import is_unmodified, plays
from .fast.xca_operator import xca
from .ops.sums import xca_of_part
from .ops.xca import cross_covariance
from .rows import ALONE, Rows, require_unmodified
from .tokens import fill_up, map_to_tokens, tokens_to_map

POSITION_DIM = 32  # for each of y and x


class ConvPatchEmbed(nn.Module):
    """Patch embedding: stride-2 convolutions with BatchNorm, and GELU between them (section 3.3).

    Patches of 4 pixels have the four convolutions of patches of 16, the first two with stride 1.
    Each convolution but the first doubles the channels, up to ``dim``, a multiple of 8. With
    ``fill``, the last pixels are repeated where patches reach beyond the image. Without it, the
    convolutions read zeros there, which they never read in images of whole patches.

    Attributes:
        reach: How many patches before and after its own patch a token reads pixels from.

    Shape:
        (B, ``in_channels``, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size)) in
        channels-last memory format, of which the tokens (B, N, C) are a view.
    """

    def __init__(self, dim: int, patch_size: int, in_channels: int = 3, fill: bool = False) -> None:
        super().__init__()
        self.patch_size, self.fill = patch_size, fill
        strides = STEM_STRIDES[patch_size]
        self.reach = (2, 1) if 1 in strides else (1, 0)
        widths = [dim // 2**i for i in reversed(range(len(strides)))]
        layers: list[nn.Module] = []
        for (c_in, c_out), stride in zip(pairwise((in_channels, *widths)), strides, strict=True):
            conv = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
            layers += [nn.Sequential(conv, nn.BatchNorm2d(c_out)), nn.GELU()]
        self.proj = ConvStack(*layers[:-1])

    def forward(self, x: Tensor, rows: Rows = ALONE) -> Tensor:
        if self.fill:
            x = fill_up(x, self.patch_size)
        if not is_transformed():  # vmap has no memory formats
            x = x.contiguous(memory_format=torch.channels_last)
        return self.proj(x, rows)


class FourierPosition(nn.Module):
    """Sinusoidal encoding of y and x, projected to the channels of the tokens (section 3.3).

    Coordinates 1..H are scaled to (0, 2 pi], so that an encoding stands for the same relative place
    at every resolution. y and x are projected separately and added: H + W projections, not H * W.

    Shape:
        Size (H, W) in tokens to (1, C, H, W), the same for every image of a batch. With a
        ``window``, slices of the rows and columns, only this part is returned.
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


@plays('attn')
class XCA(nn.Module):
    """Cross-covariance attention: channels attend to channels instead of tokens (section 3.2).

    The cost is linear in the number of tokens. Each of the h heads has a learned temperature.
    :func:`.xca` explains ``form``.

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

    def forward(self, x: Tensor, rows: Rows = ALONE) -> Tensor:
        if rows.sum is not None:
            require_unmodified(self.qkv, self.proj)
            return xca_of_part(rows.with_data(x), rows.sum, *self.weights())
        if is_unmodified(self.qkv) and is_unmodified(self.proj):
            return xca(x, *self.weights(), self.form)
        return self.proj(cross_covariance(self.qkv(x), self.temperature))

    def weights(self) -> tuple[Tensor, ...]:
        """Return the parameters, as :func:`.xca` takes them after the tokens."""
        qkv, proj = self.qkv, self.proj
        return qkv.weight, qkv.bias, self.temperature, proj.weight, proj.bias


@plays('local_mp')
class LPI(nn.Module):
    """Local patch interaction of neighboring tokens: two depthwise convolutions (section 3.3).

    Shape:
        (B, N, C) and the size (H, W) in tokens, N = H * W, to (B, N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, H: int, W: int, rows: Rows = ALONE) -> Tensor:
        x = self.act(rows.convolve(self.conv1, tokens_to_map(x, H, W)))  # (B, C, H, W)
        return map_to_tokens(rows.convolve(self.conv2, rows.normalize(self.bn, x)))


@plays('mlp')
class Mlp(nn.Module):
    """Two linear layers with GELU between them, (..., C) to (..., 4 C) to (..., C)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, samples skip a branch with probability p.

    The factors of the branches are drawn beforehand, so that they can be used again. (torchvision's
    layer cannot draw each sample independently under vmap.)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def draw(self, x: Tensor, rows: Rows = ALONE) -> tuple[Tensor | None, ...]:
        """Draw the factors (B, 1, 1) of three branches of tokens (B, N, C); None if they are 1."""
        if not (self.training and self.p):
            return None, None, None
        share = 1 - self.p
        draws = [x.new_empty(x.shape[0], 1, 1).bernoulli_(share).div_(share) for _ in range(3)]
        return tuple(map(rows.agreed, draws))

    def forward(self, y: Tensor, draw: Tensor | None) -> Tensor:
        return y if draw is None else y * draw


class XCABlock(nn.Module):
    """Attention, local interaction and MLP, each normed, scaled and added (figure 1).

    The numbers in the names follow the release, in which the local interaction, the second branch,
    has number 3. LayerScale (Touvron et al., "Going deeper with image transformers") starts at
    ``eta``; ``drop_path`` is the probability that a sample skips a branch in training. ``draws``
    are results of :meth:`DropPath.draw` to use again; by default, new ones are drawn.

    Shape:
        (B, N, C) and the size (H, W) in tokens, N = H * W, to (B, N, C).
    """

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
        draws: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        draws = self.drop_path.draw(x, rows) if draws is None else draws
        if fast := fast_form(self, x, rows):
            return fast.block(self, x, H, W, draws, *rows.passed)
        y = self.gamma1 * self.attn(self.norm1(x), *rows.passed)
        x = x + self.drop_path(y, draws[0])
        y = self.gamma3 * self.local_mp(self.norm3(x), H, W, *rows.passed)
        x = x + self.drop_path(y, draws[1])
        return x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x)), draws[2])
