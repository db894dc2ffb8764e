"""The attention masks of PSANet (Zhao et al. 2018, section 3.3)."""

import torch
from torch import Tensor

COLLECT = 0  # psa_type; 1 is distribute


def psamask_forward(input: Tensor, output: Tensor, psa_type: int, num_: int, **sizes: int) -> None:
    """Spread masks (B, h_mask * w_mask, H, W), centered on each pixel, over the whole map.

    ``output`` is (B, H * W, H, W). When collecting, its channel is the pixel that the mask looks
    at; when distributing, it is the pixel that the mask belongs to.
    """
    element, is_inside = _elements(device=input.device, **sizes)
    spread = input.flatten(2).gather(1, element.expand(len(input), -1, -1))
    spread = spread.masked_fill(~is_inside, 0)
    if psa_type != COLLECT:
        spread = spread.transpose(1, 2)
    output.flatten(2).copy_(spread)


def psamask_backward(
    grad_output: Tensor, grad_input: Tensor, psa_type: int, num_: int, **sizes: int
) -> None:
    """Write the gradient of the masks of :func:`psamask_forward` into ``grad_input``."""
    element, is_inside = _elements(device=grad_input.device, **sizes)
    grads = grad_output.flatten(2)
    if psa_type != COLLECT:
        grads = grads.transpose(1, 2)
    grads = grads.masked_fill(~is_inside, 0)
    grad_input.flatten(2).scatter_add_(1, element.expand(len(grads), -1, -1), grads)


def _elements(
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the element of the mask of each pixel (last) that looks at each pixel (first).

    The second tensor says whether it is inside the mask. Both are (H * W, H * W).
    """
    rows, columns = (torch.arange(size, device=device) for size in (h_feature, w_feature))
    y = (rows[:, None] - rows + half_h_mask)[:, None, :, None]
    x = (columns[:, None] - columns + half_w_mask)[None, :, None, :]
    is_inside = (y >= 0) & (y < h_mask) & (x >= 0) & (x < w_mask)
    element = (y * w_mask + x).where(is_inside, 0)
    return element.flatten(2).flatten(0, 1), is_inside.flatten(2).flatten(0, 1)
