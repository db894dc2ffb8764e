"""The columns of a convolution at some pixels only, for guided anchoring."""

import torch
from torch import Tensor
from torch.nn import functional as F


def masked_im2col_forward(
    im: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Copy the windows of a map (1, C, H, W) at n pixels into ``col`` (C * kernel, n)."""
    padded = F.pad(im[0], (pad_w, pad_w, pad_h, pad_h))
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device)[:, None, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device)[:, None]
    col.copy_(padded[:, rows, columns].flatten(0, 2))


def masked_col2im_forward(
    col: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    im: Tensor,
    height: int,
    width: int,
    channels: int,
) -> None:
    """Write n columns (C, n) to their pixels of a map (1, C, H, W)."""
    im[0, :, mask_h_idx, mask_w_idx] = col
