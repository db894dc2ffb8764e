"""The comparison of an exported file with PyTorch."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...base.errors import UserError
from ...data.drawings.shapes import draw_image, spread
from ...predict.folders import VIDEOS
from ...predict.model import Model
from ...predict.sources import find_inputs
from .graphs.graph import Graph
from .graphs.mask2former import INSTANCES

# Batch, height and width: one has sides that no patch size divides, one has many tokens.
SIZES = ((1, 256, 256), (2, 199, 277), (1, 384, 512))
SEGMENTS = 'panoptic'  # the output that is not one of each object
LABELS = ('labels', SEGMENTS)
MOST_IMAGES = 100  # of a user
WORST = 3  # how much more one image may differ than all images on average

Run = Callable[[Tensor], Mapping[str, Tensor]]  # an image to its outputs by name
Images = Mapping[str, Callable[[], Tensor]]  # functions that load (B, channels, H, W), by name


class Tolerance(NamedTuple):
    """How much an exported file may differ from PyTorch."""

    error: float  # relative error of an output; of masks, 1 - IoU
    labels: float  # share of pixels
    overlap: float  # least IoU of the boxes of an object
    score: float  # only objects above it are counted
    lost: float  # share of these objects that only one of the two finds
    remedy: str


# Where boxes overlap as much as NMS allows, or have the same score, the last bit decides, so one
# object in fifty may differ even in float32. On a CPU, OpenVINO computes float16 files in bfloat16.
TOLERANCES = {
    'float32': Tolerance(1e-4, 1e-4, 0.99, 0.0, 0.02, 'use another --format, or --part backbone'),
    'float16': Tolerance(0.1, 0.01, 0.9, 0.3, 0.05, 'use --precision float32'),
    'int8': Tolerance(
        0.3, 0.05, 0.5, 0.5, 0.1, 'use --precision float16, or --calibrate with more images'
    ),
}


class Difference(NamedTuple):
    """How much the outputs for an image differ from the outputs of PyTorch."""

    error: float  # largest of an output, see Tolerance; or share of labels that differ
    objects: int | None  # number of objects that both find; None if the file has no boxes


def drawn_images(graph: Graph) -> Images:
    """Return functions that draw images of several sizes, by names that contain the size."""
    return {
        f'a drawn image of {height}x{width}': partial(
            _draw, graph.channels, batch if graph.batched else 1, height, width
        )
        for batch, height, width in SIZES
    }


def _draw(channels: int, batch: int, height: int, width: int) -> Tensor:
    rng = np.random.default_rng(0)
    drawn = [
        spread(draw_image(rng, max(height, width))[0][:height, :width], channels)
        for _ in range(batch)
    ]
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float().contiguous()


def find_images(model: Model, arguments: Sequence[str]) -> Images:
    """Return functions that load the pixels of images (1, channels, H, W) float32, by their paths.

    These are up to 100 images, spread evenly over all that paths, patterns and URLs name. They are
    resized as the test pipeline of the config does.

    Raises:
        UserError: If an argument is no image; from the functions, if an image cannot be read.
    """
    inputs, problems, _ = find_inputs(arguments, lambda path: False)
    if problems:
        raise UserError(f'{problems[0]}: name images, or a folder of images')
    sources = [s for s in inputs.values() if not s.lower().endswith(VIDEOS)]
    if not sources:
        raise UserError(f'{arguments[0]} holds no image: name images, or a folder of images')
    count = min(MOST_IMAGES, len(sources))
    chosen = [sources[i * len(sources) // count] for i in range(count)]
    return {source: partial(_load, model, source) for source in chosen}


def _load(model: Model, source: str) -> Tensor:
    inputs = model.pack(model.prepare(source))['inputs']
    return pixels(inputs, model.module.data_preprocessor)


def pixels(inputs: Tensor, preprocessor: nn.Module) -> Tensor:
    """Return an image (C, H, W) of mmdet's and mmseg's pipelines as (1, C, H, W) float32.

    The channels are in the order in which the config normalizes them.
    """
    if getattr(preprocessor, '_channel_conversion', False):
        inputs = inputs.flip(0)
    return inputs[None].to(torch.float32).contiguous()


def compare(graph: Graph, run: Run, images: Images, tolerance: Tolerance) -> dict[str, Difference]:
    """Compare the outputs of a graph in PyTorch with the outputs of its exported file, ``run``.

    Raises:
        UserError: If they differ by more than the tolerance.
    """
    differences = {}
    errors_of = defaultdict(dict)  # of each output, by image
    total = lost = 0
    for name, load in images.items():
        image = graph.prepare(load())
        with torch.no_grad():
            expected = dict(zip(graph.outputs, graph.reference(image), strict=True))
        outputs, objects = run(image), None
        outputs, expected = graph.compared(outputs), graph.compared(expected)
        if 'boxes' in expected:
            number, missing, outputs, expected = _match(outputs, expected, tolerance)
            total, lost, objects = total + number, lost + missing, len(outputs['boxes'])
        compared = [key for key in expected if key == SEGMENTS or objects != 0]
        errors = {key: _error(key, outputs[key], expected[key]) for key in compared}
        differences[name] = Difference(max(errors.values(), default=0.0), objects)
        for key, error in errors.items():
            errors_of[key][name] = error
    for key, errors in errors_of.items():
        _require_small(key, errors, tolerance)
    if lost > tolerance.lost * total:
        raise UserError(
            f'nothing is written: {lost} of the {total} objects that the exported file and PyTorch '
            f'find in {len(images)} images have no counterpart: {tolerance.remedy}'
        )
    return differences


def _require_small(key: str, errors: Mapping[str, float], tolerance: Tolerance) -> None:
    """Require that the errors of an output, by image, are small on average and in each image."""
    allowed = tolerance.labels if key in LABELS else tolerance.error
    worst = max(errors, key=errors.get, default=None)
    mean = sum(errors.values()) / max(1, len(errors))
    if errors and not (mean <= allowed and errors[worst] <= WORST * allowed):  # also if one is NaN
        raise UserError(
            f'nothing is written: the output {key} of the exported file differs from '
            f'PyTorch by {mean:.1e} on average and by {errors[worst]:.1e} in {worst}, but at most '
            f'{allowed:.0e} and {WORST * allowed:.0e} are allowed: {tolerance.remedy}'
        )


def _error(name: str, output: Tensor, expected: Tensor) -> float:
    if output.shape != expected.shape:
        return float('inf')
    if name == SEGMENTS:  # segments are in the order of their scores
        output, expected = output % INSTANCES, expected % INSTANCES
    if expected.is_floating_point():
        return ((output - expected).norm() / expected.norm().clamp_min(1e-12)).item()
    is_mask = expected.dtype == torch.bool
    counted = int((output | expected).sum()) if is_mask else expected.numel()
    return int((output != expected).sum()) / max(1, counted)


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
    overlap = box_iou(outputs['boxes'], expected['boxes'])  # NaN for empty boxes
    overlap[outputs['labels'][:, None] != expected['labels']] = 0
    # Of several objects in the same box, those with similar scores are the same.
    similarity = overlap - 0.1 * (outputs['scores'][:, None] - expected['scores']).abs()
    pairs = linear_sum_assignment(similarity.nan_to_num(), maximize=True)
    pairs = torch.from_numpy(np.stack(pairs))
    pairs = pairs[:, overlap[tuple(pairs)] >= tolerance.overlap]
    total = lost = 0
    for side, matched in zip(sides, pairs, strict=True):
        counts = side['scores'] > tolerance.score
        total += int(counts.sum())
        counts[matched] = False
        lost += int(counts.sum())
    certain = expected['scores'][pairs[1]] > tolerance.score
    chosen = [
        {k: v if k == SEGMENTS else v[i[certain]] for k, v in side.items()}
        for side, i in zip(sides, pairs, strict=True)
    ]
    return total, lost, *chosen
