"""The layers of XCiT: patch embedding, position, attention, local interaction, block.

Paper: XCiT: Cross-Covariance Image Transformers, arXiv 2106.09681, section 3.
Parameter names are those of the authors' release, so that its weights load as they are.

Letters in shapes: B images, N tokens (H * W), C channels, h heads of d = C / h channels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import StochasticDepth

from ..errors import ArgumentError

IMAGE_CHANNELS = 3


class ConvPatchEmbed(nn.Module):
    """Image to feature map by stride-2 convolutions with BatchNorm, GELU between them.

    Paper, section 3.3 ("patch projection", after Graham et al.). Three convolutions for
    patch size 8, four for 16; each doubles the channels, the last one has ``dim``.

    Args:
        dim: Channels C of the tokens, a multiple of 8.
        patch_size: 8 or 16, in pixels.

    Shape:
        (B, 3, H, W) to (B, C, ceil(H / patch_size), ceil(W / patch_size)).
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
        self.proj = nn.Sequential(*layers[:-1])

    @staticmethod
    def _conv_bn(in_channels: int, out_channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class FourierPosition(nn.Module):
    """Sinusoidal position encoding, projected to the channels of the tokens.

    32 dimensions for each of y and x; coordinates 1..H are scaled to (0, 2 pi], so that an
    encoding means the same relative place at every resolution (paper, section 3.3).

    Args:
        dim: Channels C of the tokens.

    Shape:
        A size (H, W) in tokens to (1, C, H, W): it is the same for every image of a batch.
    """

    HIDDEN_DIM = 32
    TEMPERATURE = 10000
    EPS = 1e-6

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.HIDDEN_DIM, dim, kernel_size=1)

    def forward(self, H: int, W: int) -> Tensor:
        y = self._encode(H)[:, None].expand(H, W, -1)
        x = self._encode(W)[None].expand(H, W, -1)
        position = torch.cat((y, x), dim=-1).permute(2, 0, 1)[None]
        return self.token_projection(position.to(self.token_projection.weight.dtype))

    def _encode(self, length: int) -> Tensor:
        """(length, 32): sines at even places, cosines at odd ones, in float32."""
        device = self.token_projection.weight.device
        place = torch.arange(1, length + 1, device=device, dtype=torch.float32)
        place = place / (length + self.EPS) * (2 * math.pi)
        channel = torch.arange(self.HIDDEN_DIM, device=device, dtype=torch.float32)
        wavelength = self.TEMPERATURE ** (2 * (channel // 2) / self.HIDDEN_DIM)
        phase = place[:, None] / wavelength
        return torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=-1).flatten(1)


class XCA(nn.Module):
    """Cross-covariance attention: attention between channels instead of between tokens.

    Paper, section 3.2, equation 2. In each head, q and k are L2-normalised over the tokens;
    the d x d attention is softmax(q^T k * temperature), row by row of q's channels, and
    mixes the channels of v. The cost is linear in the number of tokens.

    Args:
        dim: Channels C, a multiple of ``num_heads``.
        num_heads: Heads h, each with one learnt temperature.
        qkv_bias: Whether the projection to q, k and v has a bias.
        attn_drop: Dropout probability on the attention matrix.
        proj_drop: Dropout probability on the output.

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
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)  # (B, h, d, N) each
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature  # (B, h, d, d)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


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

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        B, N, C = x.shape
        x = x.transpose(1, 2).reshape(B, C, H, W)
        x = self.conv2(self.bn(self.act(self.conv1(x))))
        return x.reshape(B, C, N).transpose(1, 2)


class Mlp(nn.Module):
    """Two linear layers with GELU between them, four times as wide inside.

    Shape:
        (..., C) to (..., C).
    """

    RATIO = 4

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, self.RATIO * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(self.RATIO * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a map.

    Shape:
        (B, C, H, W) to the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


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
        self.drop_path = StochasticDepth(drop_path, mode='row')

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x)))
        x = x + self.drop_path(self.gamma3 * self.local_mp(self.norm3(x), H, W))
        x = x + self.drop_path(self.gamma2 * self.mlp(self.norm2(x)))
        return x
