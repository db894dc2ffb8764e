"""Does onnxruntime compute from a file what PyTorch does?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.shapes import draw_image
from ..errors import UserError
from .graphs import Graph

# Batch, height and width: a side that no patch size divides, and many tokens.
SIZES = ((1, 256, 256), (2, 199, 277), (1, 384, 512))
TOLERANCE = 1e-4  # of the norm of an output; of labels, the share that may differ
# Objects that only one of both finds: where two boxes overlap as much as NMS allows, or have the
# same score, the last bit decides.
LOST_OBJECTS = 0.02
SAME_BOX = 1e-2  # pixels
CANDIDATES = 300  # boxes to compare of a detector that finds no object
PROVIDERS = ['CPUExecutionProvider']

Size = tuple[int, int, int]


def compare(graph: Graph, path: str) -> tuple[dict[Size, float], int | None]:
    """Compute drawn images of several sizes by both.

    Where a detector finds no object in them, its best boxes are compared.

    Args:
        graph: In PyTorch.
        path: The ONNX file.

    Returns:
        The largest relative error of an output by the size, and of detectors how many objects
        were compared.

    Raises:
        UserError: If they differ.
    """
    import onnx
    from onnxruntime import InferenceSession

    errors, objects = _compare(graph, InferenceSession(path, providers=PROVIDERS))
    if objects == 0:
        with torch.no_grad():
            graph.lower_threshold(_drawn(SIZES[0]), CANDIDATES)
        proto = onnx.load(path)
        threshold = next(c for c in proto.graph.initializer if c.name == 'score_thr')
        threshold.CopyFrom(onnx.numpy_helper.from_array(graph.score_thr.numpy(), 'score_thr'))
        session = InferenceSession(proto.SerializeToString(), providers=PROVIDERS)
        errors, objects = _compare(graph, session)
    return errors, objects


def _compare(graph: Graph, session: Any) -> tuple[dict[Size, float], int | None]:
    errors: dict[Size, float] = {}
    objects = None if graph.batched else 0
    for batch, height, width in SIZES:
        size = (batch if graph.batched else 1, height, width)
        image = _drawn(size)
        with torch.no_grad():
            wanted = graph.reference(image)
        given = [torch.from_numpy(a) for a in session.run(None, {'image': image.numpy()})]
        if not graph.batched:
            given, wanted = _same_objects(given, wanted, size)
            objects += len(given[0])
        by_name = dict(zip(graph.outputs, map(_error, given, wanted), strict=True))
        worst = max(by_name, key=by_name.get)
        errors[size] = by_name[worst]
        if not errors[size] <= TOLERANCE:  # nan is not
            raise UserError(
                f'nothing is written: for an image of {height}x{width} onnxruntime computes '
                f'another output {worst} than PyTorch (relative error {errors[size]:.1e})'
            )
    return errors, objects


def _drawn(size: Size) -> Tensor:
    batch, height, width = size
    rng = np.random.default_rng(0)
    images = [draw_image(rng, max(height, width))[0][:height, :width] for _ in range(batch)]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().contiguous()


def _error(given: Tensor, wanted: Tensor) -> float:
    if given.shape != wanted.shape:
        return float('inf')
    if not wanted.numel():
        return 0.0
    if not wanted.is_floating_point():
        return (given != wanted).float().mean().item()
    return ((given - wanted).norm() / wanted.norm().clamp_min(1e-12)).item()


def _same_objects(
    given: Sequence[Tensor], wanted: Sequence[Tensor], size: Size
) -> tuple[list[Tensor], list[Tensor]]:
    """The objects that both have found, in one order."""
    (boxes, _, labels), (wanted_boxes, _, wanted_labels) = given[:3], wanted[:3]
    apart = (boxes[:, None] - wanted_boxes).abs().amax(-1)
    same = (apart <= SAME_BOX) & (labels[:, None] == wanted_labels)
    pairs = same & (same.cumsum(0) == 1) & (same.cumsum(1) == 1)
    mine, theirs = pairs.nonzero(as_tuple=True)
    lost = len(boxes) + len(wanted_boxes) - 2 * len(mine)
    if lost > LOST_OBJECTS * (len(boxes) + len(wanted_boxes)):
        raise UserError(
            f'nothing is written: in an image of {size[1]}x{size[2]} onnxruntime finds '
            f'{len(boxes)} objects, PyTorch {len(wanted_boxes)}, and {lost} only one of both'
        )
    return [t[mine] for t in given], [t[theirs] for t in wanted]
