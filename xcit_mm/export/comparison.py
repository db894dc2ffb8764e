"""Compare what onnxruntime computes from a file with PyTorch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..datasets.shapes import draw_image, spread
from ..errors import UserError
from .graphs import Graph

# Batch, height and width: one has sides that no patch size divides, one has many tokens.
SIZES = ((1, 256, 256), (2, 199, 277), (1, 384, 512))
TOLERANCE = 1e-4  # relative error of an output; of labels, the share that may differ
# Share of objects that only one of both may find: where two boxes overlap as much as NMS allows,
# or have the same score, the last bit decides.
LOST_OBJECTS = 0.02
SAME_BOX = 1e-2  # pixels
CANDIDATES = 300  # boxes to compare of a detector that finds no object

Size = tuple[int, int, int]  # batch, height, width


def compare(graph: Graph, model: bytes) -> tuple[dict[Size, float], int | None]:
    """Compute drawn images of several sizes with a graph and with its ONNX file.

    The best boxes are compared if a detector finds no object in the images. Returns the largest
    relative error of an output by image size, and the number of compared objects of a detector.
    Raises a UserError if the results differ.
    """
    import onnx

    errors, objects = _compare(graph, model)
    if objects == 0:
        with torch.no_grad():
            graph.lower_threshold(_draw(SIZES[0], graph.channels), CANDIDATES)
        proto = onnx.load_from_string(model)
        threshold = next(c for c in proto.graph.initializer if c.name == 'score_thr')
        threshold.CopyFrom(onnx.numpy_helper.from_array(graph.score_thr.numpy(), 'score_thr'))
        errors, objects = _compare(graph, proto.SerializeToString())
    return errors, objects


def _compare(graph: Graph, model: bytes) -> tuple[dict[Size, float], int | None]:
    from onnxruntime import InferenceSession

    session = InferenceSession(model, providers=['CPUExecutionProvider'])
    errors: dict[Size, float] = {}
    objects = None if graph.batched else 0
    for batch, height, width in SIZES:
        size = (batch if graph.batched else 1, height, width)
        image = _draw(size, graph.channels)
        with torch.no_grad():
            expected = graph.reference(image)
        outputs = [torch.from_numpy(a) for a in session.run(None, {'image': image.numpy()})]
        if not graph.batched:
            outputs, expected = _match_objects(outputs, expected, size)
            objects += len(outputs[0])
        by_name = dict(zip(graph.outputs, map(_error, outputs, expected), strict=True))
        worst = max(by_name, key=by_name.get)
        errors[size] = by_name[worst]
        if not errors[size] <= TOLERANCE:  # also if it is NaN
            raise UserError(
                f'nothing is written: for an image of {height}x{width} the output {worst} of '
                f'onnxruntime differs from that of PyTorch (relative error {errors[size]:.1e})'
            )
    return errors, objects


def _draw(size: Size, channels: int) -> Tensor:
    batch, height, width = size
    rng = np.random.default_rng(0)
    images = [draw_image(rng, max(height, width))[0][:height, :width] for _ in range(batch)]
    images = [spread(image, channels) for image in images]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().contiguous()


def _error(output: Tensor, expected: Tensor) -> float:
    if output.shape != expected.shape:
        return float('inf')
    if not expected.is_floating_point():
        return (output != expected).float().sum().item() / max(1, expected.numel())
    return ((output - expected).norm() / expected.norm().clamp_min(1e-12)).item()


def _match_objects(
    outputs: Sequence[Tensor], expected: Sequence[Tensor], size: Size
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the objects that both have found, in the same order."""
    (boxes, _, labels), (expected_boxes, _, expected_labels) = outputs[:3], expected[:3]
    distance = (boxes[:, None] - expected_boxes).abs().amax(-1)
    same = (distance <= SAME_BOX) & (labels[:, None] == expected_labels)
    pairs = same & (same.cumsum(0) == 1) & (same.cumsum(1) == 1)
    i, j = pairs.nonzero(as_tuple=True)
    total = len(boxes) + len(expected_boxes)
    lost = total - 2 * len(i)
    if lost > LOST_OBJECTS * total:
        raise UserError(
            f'nothing is written: in an image of {size[1]}x{size[2]} onnxruntime finds '
            f'{len(boxes)} objects and PyTorch {len(expected_boxes)}, {lost} of them without a '
            'counterpart'
        )
    return [t[i] for t in outputs], [t[j] for t in expected]
