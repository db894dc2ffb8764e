"""Detection of the objects of an image of any size, on maps of the whole image.

The anchors are divided among the tiles. Each anchor belongs to one tile, and its scores and deltas
are the same as for the whole image. The proposals of a tile may extend beyond it and read the maps
there. The boxes of all tiles go through one non-maximum suppression, so that no seam hides an
object or shows it twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ..errors import UserError
from ..models.xcit import STRIDES
from ..progress import Progress, silent
from .geometry import Window, tiles
from .lazy import LazyMap
from .objects import Objects
from .passes import Passes
from .shards import Shards
from .streamed_maps import Pyramid

TILE = 1024  # pixels; configs limit the number of proposals for images of about this size
MAX_OBJECTS = 2**31  # for each tile, after its proposals
CHUNK = 256  # number of objects whose masks are computed together
MARGIN = 3  # pixels of a map beyond a box that the samples of the box may read


def require_detector(model: nn.Module, remedy: str = 'use --sliced') -> None:
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
        f'known; {remedy}'
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
) -> Objects:
    """Detect the objects of an image whose tokens are in the stores of ``passes``.

    The model is one that :func:`require_detector` accepts, and ``size`` is (H, W) without padding.
    The config may have a higher threshold than ``score_thr``.

    Returns:
        The objects whose centers are in the rows of this process, by decreasing score.
    """
    pyramid = Pyramid(passes)
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    steps = _Steps(maps, pyramid, passes, size, progress)
    with_rois = hasattr(model, 'roi_head')
    cfg = ConfigDict(model.test_cfg.rcnn if with_rois else model.test_cfg)
    cfg.update(score_thr=max(score_thr, cfg.get('score_thr', 0.0)), max_per_img=MAX_OBJECTS)
    progress.expect(2 + model.roi_head.with_mask if with_rois else 1)
    if not with_rois:
        # The boxes of all tiles are suppressed together at the end.
        found, _ = steps.propose(model.bbox_head, cfg, with_nms=False)
        return _own(_suppressed(found, passes.shards, cfg), passes.shards, size)
    proposals, reach = steps.propose(model.rpn_head, model.test_cfg.rpn, with_nms=True)
    with _reading_windows(model.roi_head, passes.dtype):
        found = steps.refine(model.roi_head, proposals, cfg, reach)
        objects = _own(_suppressed(found, passes.shards, cfg), passes.shards, size)
        return steps.mask(model.roi_head, objects, reach) if model.roi_head.with_mask else objects


@dataclass(frozen=True)
class _Steps:
    """The steps of a detection on the maps of an image; ``size`` is (H, W) of the image."""

    maps: Sequence[LazyMap]
    pyramid: Pyramid
    passes: Passes
    size: tuple[int, int]
    progress: Progress

    def propose(
        self, head: nn.Module, cfg: ConfigDict, with_nms: bool
    ) -> tuple[list[InstanceData], int]:
        """Return the boxes of a dense head for each tile of anchors of this process.

        The second value is the number of rows of tokens that the head reads beyond its anchors.
        """
        outputs = head(tuple(self.maps))  # lists of maps, one for each level
        strides = [max(stride) for stride in head.prior_generator.strides]
        side = -(-TILE // max(strides)) * max(strides)
        own_tiles = self._tiles_of_anchors(outputs[0], strides, side)

        reads = [  # of each tile, the windows of the levels of each output
            [
                [(m, _on_level(tile, side, s, m)) for m, s in zip(output, strides, strict=True)]
                for output in outputs
            ]
            for tile in own_tiles
        ]
        reach = self.pyramid.borrow_for([list(chain(*of_tile)) for of_tile in reads])
        found = []
        for tile, of_tile in self.progress(list(zip(own_tiles, reads, strict=True)), 'anchors'):
            known: dict[tuple, Tensor] = {}
            values = [[m.read(window, known) for m, window in levels] for levels in of_tile]
            metas = [dict(img_shape=None)]  # boxes are clipped later, at the borders of the image
            options = dict(batch_img_metas=metas, cfg=cfg, with_nms=with_nms)
            instances = head.predict_by_feat(*values, **options)[0]
            corner = torch.tensor([tile.columns.start, tile.rows.start] * 2)
            instances.bboxes = instances.bboxes.float() + corner.to(instances.bboxes.device)
            found.append(_clipped(instances, self.size, cfg))
        return found, reach

    def _tiles_of_anchors(
        self, levels: Sequence[LazyMap], strides: list[int], side: int
    ) -> list[Window]:
        height, width = (
            max(n * stride for n, stride in zip(sizes, strides, strict=True))
            for sizes in zip(*(level.shape[2:] for level in levels), strict=True)
        )
        rows = self.passes.shards.share(-(-height // side))
        area = Window(slice(rows.start * side, rows.stop * side), slice(0, width))
        return list(tiles(area, (side, side)))

    def refine(
        self, head: nn.Module, proposals: list[InstanceData], cfg: ConfigDict, reach: int
    ) -> list[InstanceData]:
        """Return the boxes of a RoI head for the proposals of each tile, with their duplicates."""
        stages = head.bbox_head
        stages = len(stages) if isinstance(stages, nn.ModuleList) else 1
        self._borrow_around([instances.bboxes for instances in proposals], reach, stages)
        maps = tuple(map(_RoISource, self.maps))
        meta = dict(img_shape=self.size, ori_shape=self.size, scale_factor=(1.0, 1.0))
        without_nms = ConfigDict(cfg, nms=dict(type='nms', iou_threshold=1.0))
        return [
            head.predict_bbox(maps, [meta], [instances], without_nms)[0]
            for instances in self.progress(proposals, 'boxes')
        ]

    def mask(self, head: nn.Module, objects: Objects, reach: int) -> Objects:
        """Return the objects of this process with the masks of a RoI head."""
        device, maps = self.passes.device, tuple(map(_RoISource, self.maps))
        groups = _by_tile(objects.boxes)
        boxes = [torch.from_numpy(objects.boxes[group]).to(device) for group in groups]
        self._borrow_around(boxes, reach)
        masks = {}
        for group, group_boxes in self.progress(list(zip(groups, boxes, strict=True)), 'masks'):
            labels = torch.from_numpy(objects.labels[group]).to(device)
            of_group = _masks(head, maps, group_boxes, labels, self.size)
            masks.update(zip(group.tolist(), of_group, strict=True))
        return replace(objects, masks=[masks[i] for i in range(len(objects))])

    def _borrow_around(self, boxes: list[Tensor], reach: int, stages: int = 1) -> None:
        """Copy the rows of other processes that are needed to compute the maps within boxes.

        Each further stage of a cascade may move a box by the height of the box.
        """
        shards, patch = self.passes.shards, self.passes.backbone.patch_size
        rows = torch.cat([b[:, 1::2].cpu() for b in boxes]) if boxes else torch.zeros(0, 2)
        if shards.count == 1 or not len(rows):
            self.pyramid.borrow(shards.rows)
            return
        tallest = int((rows[:, 1] - rows[:, 0]).max())
        margin = reach + (4 * STRIDES[-1] + (stages - 1) * tallest) // patch
        needed = slice(int(rows.min()) // patch - margin, int(rows.max()) // patch + margin)
        self.pyramid.borrow(needed)


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


def _suppressed(found: list[InstanceData], shards: Shards, cfg: ConfigDict) -> Objects:
    """Return the objects of the tiles of all processes without duplicates, by decreasing score."""
    names = ('bboxes', 'scores', 'labels')
    own = [torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long)]
    if found:  # there may be fewer tiles than processes
        own = [torch.cat([instances[name] for instances in found]).cpu() for name in names]
    everyone, objects = shards.gather(own), None
    if everyone:
        boxes, scores, labels = (torch.cat(arrays) for arrays in zip(*everyone, strict=True))
        objects = _without_duplicates(boxes.float(), scores.float(), labels, cfg.nms)
    return shards.broadcast(objects)


def _without_duplicates(boxes: Tensor, scores: Tensor, labels: Tensor, nms: ConfigDict) -> Objects:
    from mmcv.ops import batched_nms

    # For all classes at once, mmcv moves their boxes far apart, and large coordinates lose digits.
    is_agnostic = nms.get('class_agnostic', False)
    classes = [labels >= 0] if is_agnostic else [labels == i for i in labels.unique()]
    parts = [Objects(*(values.numpy() for values in (boxes, scores, labels)))[:0]]
    for group in classes if len(boxes) else ():
        detections, indices = batched_nms(
            boxes[group], scores[group], torch.zeros_like(labels[group]), nms
        )
        kept = detections[:, :4], detections[:, 4], labels[group][indices]
        parts.append(Objects(*(values.numpy() for values in kept)))
    return Objects.cat(parts).by_score()


def _own(objects: Objects, shards: Shards, size: tuple[int, int]) -> Objects:
    """Return the objects whose centers are in the rows of this process."""
    y = _centers(objects.boxes)[:, 0]
    rows = shards.share(size[0])
    is_last = shards.rank == shards.count - 1  # which has the centers on the lower border
    return objects[(y >= rows.start) & ((y < rows.stop) | is_last)]


def _by_tile(boxes: np.ndarray) -> list[np.ndarray]:
    """Group the indices of boxes by the tile that holds their center."""
    tile = (_centers(boxes) // TILE).astype(int)
    order = np.lexsort(tile.T[::-1])
    starts = np.flatnonzero(np.diff(tile[order], axis=0).any(1)) + 1
    return [group for group in np.split(order, starts) if len(group)]


def _centers(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 1::-1] + boxes[:, :1:-1]) / 2  # y and x


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
