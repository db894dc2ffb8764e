"""Operators of mmcv by their definitions: plain loops over single numbers, in float64."""

import math
from itertools import product

import torch
from torch import Tensor


def sampled(image: Tensor, y: float, x: float) -> Tensor:
    """Sample an image (C, H, W) with its border repeated for one pixel, and zero beyond."""
    H, W = image.shape[1:]
    total = image.new_zeros(len(image))
    if not (-1 <= y <= H and -1 <= x <= W):
        return total
    y, x = min(max(y, 0), H - 1), min(max(x, 0), W - 1)
    for row, column in product(
        (math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)
    ):
        if row < H and column < W:
            total += (1 - abs(y - row)) * (1 - abs(x - column)) * image[:, row, column]
    return total


def deform_roi_pool(input, rois, size, scale, ratio, offset=None, gamma=0.0):
    output = input.new_zeros(len(rois), input.shape[1], *size)
    for n, py, px in product(range(len(rois)), *map(range, size)):
        batch, *corners = rois[n].tolist()
        x1, y1, x2, y2 = (corner * scale - 0.5 for corner in corners)
        height, width = y2 - y1, x2 - x1
        if offset is not None:
            x1 += gamma * width * offset[n, 0, py, px].item()
            y1 += gamma * height * offset[n, 1, py, px].item()
        bin_h, bin_w = height / size[0], width / size[1]
        rows, columns = ratio or math.ceil(bin_h), ratio or math.ceil(bin_w)
        samples = [
            sampled(
                input[int(batch)],
                y1 + (py + (row + 0.5) / rows) * bin_h,
                x1 + (px + (column + 0.5) / columns) * bin_w,
            )
            for row, column in product(range(rows), range(columns))
        ]
        if samples:
            output[n, :, py, px] = torch.stack(samples).mean(0)
    return output


def carafe(features, masks, kernel_size, groups, scale):
    B, C, H, W = features.shape
    output = features.new_zeros(B, C, H * scale, W * scale)
    reach = kernel_size // 2
    for c, y, x, i, j in product(*map(range, (*output.shape[1:], kernel_size, kernel_size))):
        row, column = y // scale + i - reach, x // scale + j - reach
        if 0 <= row < H and 0 <= column < W:
            k = (c // (C // groups) * kernel_size + i) * kernel_size + j
            output[:, c, y, x] += features[:, c, row, column] * masks[:, k, y, x]
    return output


def softmax_focal_loss(logits, target, gamma, alpha, weight):
    losses = []
    for row, label in zip(logits, target.tolist(), strict=True):
        p = (row[label] - row.logsumexp(0)).exp()
        losses.append(-alpha * (1 - p) ** gamma * p.log() * weight[label] if label >= 0 else 0 * p)
    return torch.stack(losses)


def line_nms(lanes, scores, overlap, top_k):
    offsets = lanes.shape[1] - 5

    def is_close(a, b):
        starts = [int(lane[2] * (offsets - 1) + 0.5) for lane in (a, b)]
        ends = [start + int(lane[4]) - 1 for start, lane in zip(starts, (a, b), strict=True)]
        first, last = max(starts), min(*ends, offsets - 1)
        if last < first:
            return False
        apart = sum(abs(float(a[5 + i] - b[5 + i])) for i in range(first, last + 1))
        return apart < overlap * (last - first + 1)

    kept = []
    for i in scores.argsort(descending=True).tolist():
        if len(kept) < top_k and not any(is_close(lanes[k], lanes[i]) for k in kept):
            kept.append(i)
    return kept
