"""Compare what an exported file computes with PyTorch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..datasets.shapes import draw_image, spread
from ..errors import UserError
from .graphs import Graph
from .mask2former import INSTANCES
from .runtime import Runtime

# Batch, height and width: one has sides that no patch size divides, one has many tokens.
SIZES = ((1, 256, 256), (2, 199, 277), (1, 384, 512))
CANDIDATES = 300  # boxes to compare of a detector that finds no object


class Tolerance(NamedTuple):
    """How much an exported file may differ from PyTorch."""

    error: float  # relative error of an output
    labels: float  # share of pixels
    overlap: float  # least IoU of the boxes of an object
    score: float  # only objects above it are counted
    lost: float  # share of these objects that only one of the two finds


# Where boxes overlap as much as NMS allows, or have the same score, the last bit decides, so one
# object in fifty may differ even in float32. On a CPU, OpenVINO computes float16 files in bfloat16.
TOLERANCES = {
    'float32': Tolerance(error=1e-4, labels=1e-4, overlap=0.99, score=0.0, lost=0.02),
    'float16': Tolerance(error=0.1, labels=0.01, overlap=0.9, score=0.3, lost=0.05),
    'int8': Tolerance(error=0.3, labels=0.05, overlap=0.5, score=0.5, lost=0.1),
}


class Difference(NamedTuple):
    """How much the outputs for an image differ from those of PyTorch."""

    error: float  # largest relative error of an output, or share of labels that differ
    objects: int | None  # number of objects that both find; None if the file has no boxes


def drawn_images(graph: Graph) -> dict[str, Tensor]:
    """Draw images (B, channels, H, W) of several sizes, by names that contain the size."""
    images = {}
    for batch, height, width in SIZES:
        rng = np.random.default_rng(0)
        drawn = [
            spread(draw_image(rng, max(height, width))[0][:height, :width], graph.channels)
            for _ in range(batch if graph.batched else 1)
        ]
        pixels = torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float().contiguous()
        images[f'a drawn image of {height}x{width}'] = pixels
    return images


def compare(
    graph: Graph, run: Runtime, images: Mapping[str, Tensor], tolerance: Tolerance
) -> dict[str, Difference]:
    """Compare the outputs of a graph in PyTorch with those of its exported file.

    Args:
        graph: What was exported.
        run: See :func:`xcit_mm.export.load_runtime`.
        images: (B, channels, H, W) by name.
        tolerance: How much the outputs may differ.

    Raises:
        UserError: If they differ more.
    """
    differences = {}
    by_output = dict.fromkeys(graph.outputs, 0.0)  # sums of errors
    total = lost = 0
    for name, image in images.items():
        with torch.no_grad():
            expected = dict(zip(graph.outputs, graph.reference(image), strict=True))
        outputs, objects = run(image), None
        if 'boxes' in expected:
            number, missing, outputs, expected = _match(outputs, expected, tolerance)
            total, lost, objects = total + number, lost + missing, len(outputs['boxes'])
        errors = {key: _error(key, outputs[key], expected[key]) for key in expected}
        differences[name] = Difference(max(errors.values()), objects)
        for key, error in errors.items():
            by_output[key] += error / len(images)
    for key, error in by_output.items():
        allowed = tolerance.error if expected[key].is_floating_point() else tolerance.labels
        if not error <= allowed:  # also if it is NaN
            worst = max(differences, key=lambda name: differences[name].error)
            raise UserError(
                f'nothing is written: the output {key} of the exported file differs from that of '
                f'PyTorch by {error:.1e}, but at most {allowed:.0e} is allowed (mean of '
                f'{len(images)} images; the worst is {worst})'
            )
    if lost > tolerance.lost * total:
        raise UserError(
            f'nothing is written: {lost} of the {total} objects that the exported file and PyTorch '
            f'find in {len(images)} images have no counterpart'
        )
    return differences


def _error(name: str, output: Tensor, expected: Tensor) -> float:
    if output.shape != expected.shape:
        return float('inf')
    if name == 'panoptic':  # the order of the segments is that of their scores
        output, expected = output % INSTANCES, expected % INSTANCES
    if not expected.is_floating_point():
        return (output != expected).float().sum().item() / max(1, expected.numel())
    return ((output - expected).norm() / expected.norm().clamp_min(1e-12)).item()


def _match(
    outputs: dict[str, Tensor], expected: dict[str, Tensor], tolerance: Tolerance
) -> tuple[int, int, dict[str, Tensor], dict[str, Tensor]]:
    """Match the objects that both have found.

    Returns:
        The number of objects above the score of the tolerance; how many of them have no
        counterpart; and the outputs and the expected outputs for those that have one, in the same
        order.
    """
    from scipy.optimize import linear_sum_assignment
    from torchvision.ops import box_iou

    sides = outputs, expected
    overlap = box_iou(outputs['boxes'], expected['boxes']).nan_to_num()  # NaN for empty boxes
    overlap[outputs['labels'][:, None] != expected['labels']] = 0
    # Of several objects in the same box, those with similar scores are the same.
    similarity = overlap - 0.1 * (outputs['scores'][:, None] - expected['scores']).abs()
    pairs = torch.from_numpy(np.stack(linear_sum_assignment(similarity, maximize=True)))
    pairs = pairs[:, overlap[tuple(pairs)] >= tolerance.overlap]
    total = lost = 0
    for side, matched in zip(sides, pairs, strict=True):
        counts = side['scores'] > tolerance.score
        total += int(counts.sum())
        counts[matched] = False
        lost += int(counts.sum())
    certain = expected['scores'][pairs[1]] > tolerance.score
    of_objects = {k for k, v in expected.items() if len(v) == len(expected['boxes'])} - {'panoptic'}
    chosen = [
        {k: v[i[certain]] if k in of_objects else v for k, v in side.items()}
        for side, i in zip(sides, pairs, strict=True)
    ]
    return total, lost, *chosen
