"""Detect the objects of an image of any size on maps that saw the whole image.

The anchors are divided among the tiles. Each anchor belongs to one tile, and its scores and deltas
are those of the whole image. The proposals of a tile may extend beyond it and read the maps there.
The boxes of all tiles go through one non-maximum suppression, so that no seam hides an object or
shows it twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ..errors import UserError
from ..models.xcit import STRIDES
from .geometry import Window, tiles
from .lazy import LazyMap
from .passes import Passes
from .progress import Progress, silent
from .shards import Bands
from .streamed_maps import Pyramid

TILE = 1024  # pixels; configs limit the number of proposals for images of about this size
MAX_OBJECTS = 2**31  # for each tile, after its proposals
CHUNK = 256  # number of objects whose masks are computed together
MARGIN = 3  # pixels of a map beyond a box that the samples of the box may read


class Objects(NamedTuple):
    """The n objects of an image, by decreasing score.

    Attributes:
        boxes: (n, 4); left, top, right and bottom in pixels.
        scores: (n,).
        labels: (n,).
        masks: For each object, the window of its mask and the mask (h, w) in that window; None
            for a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[tuple[Window, np.ndarray]] | None


def require_detector(model: nn.Module) -> None:
    """Refuse a detector that cannot find objects on windows of its maps."""
    from mmdet.models import SingleStageDetector, TwoStageDetector
    from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
    from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead

    kind = part = type(model)
    if _is(kind, TwoStageDetector, 'predict', 'extract_feat'):
        part = type(model.roi_head)
        known_heads = StandardRoIHead, CascadeRoIHead
        if any(_is(part, known, 'predict_bbox', 'predict_mask') for known in known_heads):
            part = type(getattr(model, 'rpn_head', model))
            if _is(part, BaseDenseHead, 'predict_by_feat'):
                return
    elif _is(kind, SingleStageDetector, 'predict', 'extract_feat'):
        part = type(model.bbox_head)
        names = 'predict', 'predict_by_feat', '_bbox_post_process'
        if _is(part, BaseDenseHead, *names) and not model.with_mask:
            return
    raise UserError(
        f'the model cannot be streamed: which pixels of its maps {part.__name__} reads is not '
        'known; use --sliced'
    )


def _is(kind: type, base: type, *methods: str) -> bool:
    """Return whether a class has these methods of a base class."""
    return all(getattr(kind, name, None) is getattr(base, name) for name in methods)


@torch.inference_mode()
def detect(
    model: nn.Module,
    passes: Passes,
    size: tuple[int, int],
    score_thr: float = 0.0,
    progress: Progress = silent,
) -> Objects | None:
    """Detect the objects of an image whose tokens are in the stores of ``passes``.

    Args:
        model: A detector of mmdet that :func:`require_detector` accepts.
        passes: The passes, after :meth:`.Passes.run`.
        size: (H, W) of the image without padding.
        score_thr: The lowest score of objects, unless the config has a higher threshold.
        progress: The display of the progress.

    Returns:
        The objects on the first process, None on the others.
    """
    pyramid = Pyramid(passes)
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    has_rois = hasattr(model, 'roi_head')
    cfg = model.test_cfg.rcnn if has_rois else model.test_cfg
    cfg = ConfigDict(cfg)
    cfg.update(score_thr=max(score_thr, cfg.get('score_thr', 0.0)), max_per_img=MAX_OBJECTS)
    head = model.rpn_head if has_rois else model.bbox_head
    dense_cfg = model.test_cfg.rpn if has_rois else cfg
    progress.expect(2 + model.roi_head.with_mask if has_rois else 1)
    # Without RoIs, the boxes of all tiles are suppressed together at the end.
    found, reach = _on_anchors(head, maps, pyramid, passes.bands, dense_cfg, has_rois, progress)
    found = [_clipped(instances, size, dense_cfg) for instances in found]
    if not has_rois:
        return _merged(passes.bands, found, cfg)

    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    without_nms = ConfigDict(cfg, nms=dict(type='nms', iou_threshold=1.0))
    maps = tuple(map(_RoISource, maps))
    with _reading_windows(model.roi_head, passes.dtype):
        cascade = model.roi_head.bbox_head
        stages = len(cascade) if isinstance(cascade, nn.ModuleList) else 1
        _borrow_around(passes, pyramid, [i.bboxes for i in found], reach, stages)
        found = [
            model.roi_head.predict_bbox(maps, [meta], [proposals], without_nms)[0]
            for proposals in progress(found, 'boxes')
        ]
        objects = _merged(passes.bands, found, cfg)
        if not model.roi_head.with_mask:
            return objects
        objects = passes.bands.broadcast(objects)
        groups = _groups_of(passes.bands, objects.boxes, size)
        boxes = [torch.from_numpy(objects.boxes[group]).to(passes.device) for group in groups]
        _borrow_around(passes, pyramid, boxes, reach)
        masks = {}
        for group, group_boxes in progress(list(zip(groups, boxes, strict=True)), 'masks'):
            labels = torch.from_numpy(objects.labels[group]).to(passes.device)
            of_group = _masks(model.roi_head, maps, group_boxes, labels, size)
            masks.update(zip(group.tolist(), of_group, strict=True))
    parts = passes.bands.gather(masks)
    if not parts:
        return None
    masks = {number: mask for part in parts for number, mask in part.items()}
    return objects._replace(masks=[masks[i] for i in range(len(objects.scores))])


def _on_anchors(
    head: nn.Module,
    maps: Sequence[LazyMap],
    pyramid: Pyramid,
    bands: Bands,
    cfg: ConfigDict,
    with_nms: bool,
    progress: Progress,
) -> tuple[list[InstanceData], int]:
    """Return the results of the dense head for each tile, and the reach of the head in tokens."""
    outputs = head(tuple(maps))  # lists of maps, one for each level
    strides = [max(stride) for stride in head.prior_generator.strides]
    side = -(-TILE // max(strides)) * max(strides)
    extent = [
        max(n * s for n, s in zip(sizes, strides, strict=True))
        for sizes in zip(*(m.shape[2:] for m in outputs[0]), strict=True)
    ]
    rows = bands.share(-(-extent[0] // side))
    area = Window(slice(rows.start * side, rows.stop * side), slice(0, extent[1]))
    own_tiles = list(tiles(area, (side, side)))
    reads = [  # of each tile, the windows of the levels of each output
        [
            [(m, _on_level(tile, side, s, m)) for m, s in zip(o, strides, strict=True)]
            for o in outputs
        ]
        for tile in own_tiles
    ]
    reach = pyramid.borrow_for([list(chain(*of_tile)) for of_tile in reads])
    found = []
    for tile, of_tile in progress(list(zip(own_tiles, reads, strict=True)), 'anchors'):
        known: dict[tuple, Tensor] = {}
        values = [[m.read(window, known) for m, window in levels] for levels in of_tile]
        metas = [dict(img_shape=None)]  # boxes are clipped later, at the borders of the image
        options = dict(batch_img_metas=metas, cfg=cfg, with_nms=with_nms)
        instances = head.predict_by_feat(*values, **options)[0]
        corner = torch.tensor([tile.columns.start, tile.rows.start] * 2)
        instances.bboxes = instances.bboxes.float() + corner.to(instances.bboxes.device)
        found.append(instances)
    return found, reach


def _on_level(tile: Window, side: int, stride: int, level: LazyMap) -> Window:
    """Return the window of a level that holds the anchors of a tile."""
    return Window(
        *(
            slice(span.start // stride, min(n, (span.start + side) // stride))
            for span, n in zip(tile, level.shape[2:], strict=True)
        )
    )


def _clipped(instances: InstanceData, size: tuple[int, int], cfg: ConfigDict) -> InstanceData:
    """Clip boxes at the borders of the image, and drop those that become too small."""
    boxes = instances.bboxes
    boxes[:, 0::2].clamp_(0, size[1])
    boxes[:, 1::2].clamp_(0, size[0])
    sides = boxes[:, 2:] - boxes[:, :2]
    return instances[(sides > max(0, cfg.get('min_bbox_size', 0))).all(1)]


def _merged(bands: Bands, found: list[InstanceData], cfg: ConfigDict) -> Objects | None:
    """Suppress duplicates among the boxes of all tiles; None if this is not the first process."""
    names = ('bboxes', 'scores', 'labels')
    arrays = [torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long)]
    if found:  # there may be fewer tiles than processes
        arrays = [torch.cat([instances[name] for instances in found]).cpu() for name in names]
    parts = bands.gather(arrays)
    if not parts:
        return None
    from mmcv.ops import batched_nms

    boxes, scores, labels = (torch.cat(arrays) for arrays in zip(*parts, strict=True))
    boxes, scores = boxes.float(), scores.float()
    if len(boxes):
        # For all classes at once, mmcv moves their boxes far apart, which costs digits.
        is_agnostic = cfg.nms.get('class_agnostic', False)
        classes = [labels >= 0] if is_agnostic else [labels == i for i in labels.unique()]
        kept = []
        for group in classes:
            detections, indices = batched_nms(
                boxes[group], scores[group], torch.zeros_like(labels[group]), cfg.nms
            )
            kept.append((detections[:, :4], detections[:, 4], labels[group][indices]))
        boxes, scores, labels = (torch.cat(arrays) for arrays in zip(*kept, strict=True))
        order = scores.argsort(descending=True, stable=True)
        boxes, scores, labels = boxes[order], scores[order], labels[order]
    return Objects(boxes.numpy(), scores.numpy(), labels.numpy(), None)


def _groups_of(bands: Bands, boxes: np.ndarray, size: tuple[int, int]) -> list[np.ndarray]:
    """Group the objects of this process by the tile that holds their centre."""
    centres = (boxes[:, 1::-1] + boxes[:, :1:-1]) / 2  # y and x
    own = bands.share(size[0])
    is_own = (centres[:, 0] >= own.start) & (centres[:, 0] < own.stop)
    if bands.rank == bands.count - 1:
        is_own |= centres[:, 0] >= own.stop  # centres on the lower border
    numbers = np.flatnonzero(is_own)
    tile = (centres[numbers] // TILE).astype(int)
    order = np.lexsort(tile.T[::-1])
    starts = np.flatnonzero(np.diff(tile[order], axis=0).any(1)) + 1
    return [group for group in np.split(numbers[order], starts) if len(group)]


def _borrow_around(
    passes: Passes, pyramid: Pyramid, boxes: list[Tensor], reach: int, stages: int = 1
) -> None:
    """Copy the rows of other processes that are needed to compute the maps within boxes.

    Each further stage of a cascade may move a box by the height of the box.
    """
    rows = torch.cat([b[:, 1::2].cpu() for b in boxes]) if boxes else torch.zeros(0, 2)
    if passes.bands.count == 1 or not len(rows):
        pyramid.borrow(passes.bands.rows)
        return
    patch = passes.backbone.patch_size
    tallest = int((rows[:, 1] - rows[:, 0]).max())
    margin = reach + (4 * STRIDES[-1] + (stages - 1) * tallest) // patch
    pyramid.borrow(slice(int(rows.min()) // patch - margin, int(rows.max()) // patch + margin))


def _masks(
    roi_head: nn.Module,
    maps: tuple['_RoISource', ...],
    boxes: Tensor,
    labels: Tensor,
    size: tuple[int, int],
) -> Iterator[tuple[Window, np.ndarray]]:
    """Predict the masks of boxes, each in a window that is slightly larger than its box."""
    from mmdet.structures.bbox import bbox2roi

    heads = roi_head.mask_head
    stages = [(i,) for i in range(len(heads))] if isinstance(heads, nn.ModuleList) else [()]
    head = heads[-1] if isinstance(heads, nn.ModuleList) else heads
    for chunk, chunk_labels in zip(boxes.split(CHUNK), labels.split(CHUNK), strict=True):
        rois = bbox2roi([chunk])
        shares = [
            roi_head._mask_forward(*stage, maps, rois)['mask_preds'].float().sigmoid()
            for stage in stages
        ]
        shares = torch.stack(shares).mean(0).cpu()  # over the stages of a cascade
        for i, (box, label) in enumerate(zip(chunk.cpu(), chunk_labels.cpu(), strict=True)):
            window = Window.around(box.tolist(), size)
            corner = box.new_tensor([window.columns.start, window.rows.start])
            meta = dict(ori_shape=window.size, scale_factor=(1.0, 1.0))
            instances = InstanceData(bboxes=box[None] - corner.repeat(2), labels=label[None])
            options = dict(rcnn_test_cfg=roi_head.test_cfg, activate_map=True)
            pasted = head.predict_by_feat(
                [shares[i : i + 1].numpy()], [instances], [meta], **options
            )
            yield window, pasted[0].masks[0].numpy()


class _RoISource:
    """A map for a RoI extractor of mmdet, which only creates tensors of the type of the map."""

    def __init__(self, level: LazyMap) -> None:
        self.level = level
        self.new_zeros = level.new_zeros

    def sum(self) -> float:
        """Return 0, because extractors add 0 times the sum of a map that no box reads."""
        return 0.0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Tensor:
        boxes, source = args  # boxes.type_as(map), but 16 bits are too few for coordinates
        return boxes.to(source.level.device, torch.promote_types(boxes.dtype, source.level.dtype))


@contextmanager
def _reading_windows(roi_head: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Make the RoI layers of a head read only the windows of the maps around their boxes.

    They compute in the dtype of the boxes, and return the ``dtype`` of the maps.
    """
    with ExitStack() as stack:
        for module in roi_head.modules():
            for layer in getattr(module, 'roi_layers', ()):
                stack.enter_context(layer.register_forward_pre_hook(_window_around))
                narrow = layer.register_forward_hook(lambda *args: args[2].to(dtype))
                stack.enter_context(narrow)
        yield


def _window_around(layer: nn.Module, inputs: tuple[_RoISource, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the window of a map around the boxes (n, 5), and the boxes relative to it."""
    source, rois = inputs
    boxes = rois[:, 1:] * layer.spatial_scale
    start = (boxes[:, :2].amin(0).floor() - MARGIN).int().tolist()
    stop = (boxes[:, 2:].amax(0).ceil() + MARGIN).int().tolist()
    height, width = source.level.shape[2:]
    columns, rows = (
        slice(max(0, min(a, n - 1)), max(1, min(b, n)))
        for a, b, n in zip(start, stop, (width, height), strict=True)
    )
    corner = rois.new_tensor([0, *[columns.start, rows.start] * 2]) / layer.spatial_scale
    return source.level.read(Window(rows, columns)).to(rois.dtype), rois - corner
