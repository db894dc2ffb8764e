"""Cross-covariance attention (XCA), equation 2 of the paper (XCiT, arXiv 2106.09681, section 3.2).

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

from torch import Tensor
from torch.nn import functional as F

EPS = 1e-12  # smallest norm by which a query or key is divided, as in F.normalize


def cross_covariance(qkv: Tensor, temperature: Tensor) -> Tensor:
    """Compute equation 2 of the paper from q, k and v, (B, N, 3 C), without the projections."""
    B, N, _ = qkv.shape
    h = temperature.shape[0]
    q, k, v = qkv.reshape(B, N, 3, h, -1).permute(2, 0, 3, 4, 1)  # (B, h, d, N) each
    q, k = F.normalize(q, dim=-1, eps=EPS), F.normalize(k, dim=-1, eps=EPS)
    attn = (q @ k.transpose(-2, -1)) * temperature  # (B, h, d, d)
    return (attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(B, N, -1)
