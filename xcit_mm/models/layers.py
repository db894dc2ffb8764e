"""The layers of XCiT: patch embedding, position, attention, local interaction, block.

Paper: XCiT: Cross-Covariance Image Transformers, arXiv 2106.09681, section 3.
Parameter names are those of the authors' release, so that its weights load as they are.

Letters in shapes: B images, N tokens (H * W), C channels, h heads of d = C / h channels.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ArgumentError
from ..ops import computed_dtype, gelu_, is_intercepted, mlp, recompute, token_chunks, xca

IMAGE_CHANNELS = 3
CONVS = (nn.Conv2d, nn.ConvTranspose2d)


class ConvStack(nn.Sequential):
    """Convolutions, plain or transposed, each but the last followed by BatchNorm and GELU.

    Layers may be grouped in Sequentials. For the backward pass the outputs of the convolutions
    alone are kept; what lies between two of them is computed anew. In inference BatchNorm is
    folded into the convolution before it, which is exact: it is an affine map of each channel.

    Shape:
        (B, C, H, W) to (B, C', H', W').
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = [m for m in self.modules() if not isinstance(m, nn.Sequential)]
        convs = [i for i, layer in enumerate(layers) if isinstance(layer, CONVS)]
        if not torch.is_grad_enabled() and not self.training:
            for i, end in zip(convs, [*convs[1:], len(layers)], strict=True):
                x = _conv_and_norm(x, *layers[i:end])
            return x
        start = 0
        for i in convs:
            x = recompute(_compose(layers[start : i + 1]), x, within=self)
            start = i + 1
        return _compose(layers[start:])(x)


def _compose(layers: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    return lambda x: reduce(lambda y, layer: layer(y), layers, x)


def _conv_and_norm(
    x: Tensor,
    conv: nn.Conv2d | nn.ConvTranspose2d,
    norm: nn.BatchNorm2d | None = None,
    act: nn.Module | None = None,
) -> Tensor:
    transposed = isinstance(conv, nn.ConvTranspose2d)
    convolve = F.conv_transpose2d if transposed else F.conv2d
    weight, bias = conv.weight, conv.bias
    if _is_plain_norm(norm):
        factor, shift = _affine(norm)
        weight = weight * factor.view((1, -1, 1, 1) if transposed else (-1, 1, 1, 1))
        bias = shift if bias is None else bias * factor + shift
        norm = None
    x = convolve(
        x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), conv.stride, conv.padding
    )
    if norm is not None:
        x = norm(x)
    return x if act is None else gelu_(x)


def _is_plain_norm(norm: nn.Module | None) -> bool:
    """Whether a layer is BatchNorm in evaluation that nobody watches: hooks see calls alone."""
    return (
        isinstance(norm, _BatchNorm)
        and not norm.training
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
    )


def _affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Factor and shift (C,) of BatchNorm in evaluation, in at least float32."""
    wide = torch.promote_types(norm.weight.dtype, torch.float32)
    factor = norm.weight.to(wide) * (norm.running_var.to(wide) + norm.eps).rsqrt()
    return factor, norm.bias.to(wide) - norm.running_mean.to(wide) * factor


class ConvPatchEmbed(nn.Module):
    """Image to feature map by stride-2 convolutions with BatchNorm, GELU between them.

    Paper, section 3.3 ("patch projection", after Graham et al.). Three convolutions for
    patch size 8, four for 16; each doubles the channels, the last one has ``dim``.

    Args:
        dim: Channels C of the tokens, a multiple of 8.
        patch_size: 8 or 16, in pixels.

    Shape:
        (B, 3, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size)), channels last in
        memory: its tokens (B, N, C) are a view.
    """

    def __init__(self, dim: int, patch_size: int) -> None:
        super().__init__()
        num_convs = int(math.log2(patch_size))
        layers: list[nn.Module] = []
        in_channels = IMAGE_CHANNELS
        for i in reversed(range(num_convs)):
            out_channels = dim // 2**i
            layers += [self._conv_bn(in_channels, out_channels), nn.GELU()]
            in_channels = out_channels
        self.proj = ConvStack(*layers[:-1])

    @staticmethod
    def _conv_bn(in_channels: int, out_channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x.contiguous(memory_format=torch.channels_last))


class FourierPosition(nn.Module):
    """Sinusoidal position encoding, projected to the channels of the tokens.

    32 dimensions for each of y and x; coordinates 1..H are scaled to (0, 2 pi], so that an
    encoding means the same relative place at every resolution (paper, section 3.3). The
    projection of (y, x) is the sum of a projection of y and one of x: it is done for H + W
    places instead of H * W.

    Args:
        dim: Channels C of the tokens.

    Shape:
        A size (H, W) in tokens to (1, C, H, W): it is the same for every image of a batch.
    """

    HIDDEN_DIM = 32

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.HIDDEN_DIM, dim, kernel_size=1)

    def forward(self, H: int, W: int) -> Tensor:
        # Not kept: a fake tensor, or one that belongs to a graph.
        encode = _encode.__wrapped__ if is_intercepted() else _encode
        weight = self.token_projection.weight.flatten(1)  # (C, 64)
        y_weight, x_weight = weight.split(self.HIDDEN_DIM, dim=1)
        y = F.linear(encode(H, weight.device).to(weight.dtype), y_weight)  # (H, C)
        x = F.linear(encode(W, weight.device).to(weight.dtype), x_weight)  # (W, C)
        position = y[:, None] + (x + self.token_projection.bias)  # (H, W, C)
        return position.permute(2, 0, 1)[None]


@lru_cache(maxsize=256)  # a few hundred bytes each; one an image side
def _encode(length: int, device: torch.device) -> Tensor:
    """(length, 32): sines at even places, cosines at odd ones, in float32."""
    with torch.inference_mode(False):  # a cached tensor may be used in training later
        place = torch.arange(1, length + 1, device=device, dtype=torch.float32)
        place = place / (length + 1e-6) * (2 * math.pi)
        channel = torch.arange(FourierPosition.HIDDEN_DIM, device=device, dtype=torch.float32)
        wavelength = 10000 ** (2 * (channel // 2) / FourierPosition.HIDDEN_DIM)
        phase = place[:, None] / wavelength
        return torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=-1).flatten(1)


class XCA(nn.Module):
    """Cross-covariance attention: attention between channels instead of between tokens.

    Paper, section 3.2, equation 2. The cost is linear in the number of tokens. The parameters
    of :func:`xcit_mm.ops.xca`, which computes it.

    Args:
        dim: Channels C, a multiple of ``num_heads``.
        num_heads: Heads h, each with one learnt temperature.
        qkv_bias: Whether the projection to q, k and v has a bias.
        attn_drop: Dropout probability on the attention matrix.
        proj_drop: Dropout probability on the output.

    Attributes:
        form: As of :func:`xcit_mm.ops.xca`; None, unless it is set.

    Shape:
        (B, N, C) to (B, N, C).

    Raises:
        ValueError: If ``dim`` is not a multiple of ``num_heads``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ArgumentError(f'dim={dim} is not a multiple of num_heads={num_heads}')
        self.num_heads = num_heads
        self.form: str | None = None
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Attend; ``scale`` (C,) multiplies the output's channels (LayerScale)."""
        x = xca(
            x,
            self.qkv.weight,
            self.qkv.bias,
            self.temperature,
            *_scaled(self.proj, scale),
            attn_drop=self.attn_drop.p if self.training else 0.0,
            form=self.form,
        )
        return self.proj_drop(x)


class LPI(nn.Module):
    """Local patch interaction: depthwise 3x3, GELU, BatchNorm, depthwise 3x3.

    Paper, section 3.3: lets neighbouring tokens communicate, which XCA does only through
    its channel statistics.

    Shape:
        (B, N, C) and the size (H, W) in tokens, N = H * W, to (B, N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, H: int, W: int, scale: Tensor | None = None) -> Tensor:
        """Interact; ``scale`` (C,) multiplies the output's channels (LayerScale)."""
        weight, bias = _scaled(self.conv2, scale)

        def rest(x: Tensor) -> Tensor:
            x = self.bn(self.act(x))
            return F.conv2d(x, weight, bias, padding=1, groups=self.conv2.groups)

        x = self.conv1(tokens_to_map(x, H, W))
        if torch.is_grad_enabled() or not _is_plain_norm(self.bn):
            return map_to_tokens(recompute(rest, x, within=self))
        # Not folded into the second convolution: that pads with zeros, not with shifts.
        factor, shift = (t.to(x.dtype) for t in _affine(self.bn))
        x = torch.addcmul(shift[:, None, None], gelu_(x), factor[:, None, None], out=x)
        return map_to_tokens(F.conv2d(x, weight, bias, padding=1, groups=self.conv2.groups))


class Mlp(nn.Module):
    """Two linear layers with GELU between them, four times as wide inside.

    The parameters of :func:`xcit_mm.ops.mlp`, which computes it.

    Shape:
        (..., C) to (..., C).
    """

    RATIO = 4

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, self.RATIO * dim)
        self.fc2 = nn.Linear(self.RATIO * dim, dim)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Transform; ``scale`` (C,) multiplies the output's channels (LayerScale)."""
        return mlp(x, self.fc1.weight, self.fc1.bias, *_scaled(self.fc2, scale))


def _scaled(layer: nn.Linear | nn.Conv2d, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer whose output channels are multiplied by ``scale`` (C,)."""
    if scale is None:
        return layer.weight, layer.bias
    return scale.view(-1, *[1] * (layer.weight.ndim - 1)) * layer.weight, scale * layer.bias


def tokens_to_map(x: Tensor, H: int, W: int) -> Tensor:
    """(B, N, C) to (B, C, H, W), a view with the channels last in memory."""
    return x.unflatten(1, (H, W)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) to (B, N, C), a view where the channels are last in memory."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a map.

    Shape:
        (B, C, H, W) to the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class DropPath(nn.Module):
    """Set a branch to zero for some of the samples, in training (stochastic depth).

    torchvision has the same as ``StochasticDepth``, but takes a second to import.

    Args:
        p: Probability of a sample to be dropped, in [0, 1).

    Shape:
        (B, ...) to the same.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = x.new_empty((len(x),) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.p)
        return x * kept.div_(1 - self.p)


class XCABlock(nn.Module):
    """A layer of XCiT: attention, local interaction, MLP, each normed, scaled and added.

    Paper, figure 1 and section 3.3. The numbers in the names follow the release, where the
    local interaction, drawn second, is number 3.

    Args:
        dim: Channels C.
        num_heads: Heads of the attention.
        eta: Initial value of LayerScale (Touvron et al., "Going deeper with image
            transformers"), which lets 24 layers train.
        drop_path: Probability with which a sample skips a branch in training.

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

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        if not torch.is_grad_enabled() and not self.training:
            return self._infer(x, H, W)
        x = x + self._branch(self.gamma1, self.attn, self.norm1(x))
        x = x + self._branch(self.gamma3, self.local_mp, self.norm3(x), H, W)
        x = x + self._branch(self.gamma2, self.mlp, self.norm2(x))
        return x

    def _branch(self, gamma: Tensor, branch: nn.Module, x: Tensor, *size: int) -> Tensor:
        """Scaled by gamma in its last projection, whose output then need not be kept.

        Not in float16, in which an initial gamma of 1e-5 times a weight vanishes.
        """
        if computed_dtype(x) == torch.float16:
            return self.drop_path(gamma * branch(x, *size))
        return self.drop_path(branch(x, *size, scale=gamma))

    def _infer(self, x: Tensor, H: int, W: int) -> Tensor:
        """The same without a gradient: one new tensor, in which the branches are summed up.

        LayerScale costs nothing here: it is a factor of an addition that is done anyway.
        """
        y = self.attn(self.norm1(x)).to(x.dtype)
        y = torch.addcmul(x, self.gamma1, y, out=y)
        y.addcmul_(self.gamma3, self.local_mp(self.norm3(y), H, W).to(y.dtype))
        for tokens in token_chunks(y):
            tokens.addcmul_(self.gamma2, self.mlp(self.norm2(tokens)).to(y.dtype))
        return y
