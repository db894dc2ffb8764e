"""Detection of the objects of an image of any size, on maps of the whole image.

The anchors are divided among the tiles. Each anchor belongs to one tile, and its scores and deltas
are the same as for the whole image. The proposals of a tile may extend beyond it and read the maps
there. The boxes of all tiles go through one non-maximum suppression, so that no seam hides an
object or shows it twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...base.geometry import Window, tiles
from ...base.progress import Progress, silent
from ..files.validity import NONE
from ..tokens.passes import Passes
from ..tokens.shards import Shards
from .anchors import DenseOutputs
from .lazy import LazyMap
from .objects import Objects
from .rois import RoISource, borrow_around, number_of_stages, reading_windows
from .streamed_maps import Pyramid

TILE = 1024  # pixels; configs limit the number of proposals for images of about this size
MAX_OBJECTS = 2**31  # for each tile, after its proposals
CHUNK = 256  # number of objects whose masks are computed together


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
        boxes, _ = steps.propose(model.bbox_head, cfg, with_nms=False)
        return _own(_suppressed(boxes, passes.shards, cfg), passes.shards, size)
    proposals, reach = steps.propose(model.rpn_head, model.test_cfg.rpn, with_nms=True)
    with reading_windows(model.roi_head, passes.dtype):
        boxes = steps.refine(model.roi_head, proposals, cfg, reach)
        objects = _own(_suppressed(boxes, passes.shards, cfg), passes.shards, size)
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
        outputs = DenseOutputs(head, self.maps)
        own_tiles = self._tiles_of_anchors(outputs)
        reach = outputs.borrow_for(self.pyramid, own_tiles)
        boxes = []
        for tile in self.progress(own_tiles, 'anchors'):
            with_data = self.passes.pixels_with_data(tile.clipped(self.size))
            if with_data is not None and not with_data.any():
                continue
            values = outputs.read(tile)
            metas = [dict(img_shape=None)]  # boxes are clipped later, at the borders of the image
            options = dict(batch_img_metas=metas, cfg=cfg, with_nms=with_nms)
            instances = head.predict_by_feat(*values, **options)[0]
            corner = torch.tensor([tile.columns.start, tile.rows.start] * 2)
            instances.bboxes = instances.bboxes.float() + corner.to(instances.bboxes.device)
            boxes.append(self._with_data(_clipped(instances, self.size, cfg)))
        return boxes, reach

    def _with_data(self, instances: InstanceData) -> InstanceData:
        """Return the instances whose center is in a patch with data."""
        cells, P = self.passes.cells, self.passes.backbone.patch_size
        if cells is None:
            return instances
        places = (_centers(instances.bboxes.cpu().numpy()) // P).astype(int)
        rows, columns = np.clip(places, 0, np.array(cells.states.shape) - 1).T
        has_data = torch.from_numpy(cells.states[rows, columns] > NONE)
        return instances[has_data.to(instances.bboxes.device)]

    def _tiles_of_anchors(self, outputs: DenseOutputs) -> list[Window]:
        largest = max(outputs.strides)
        side = -(-TILE // largest) * largest
        height, width = outputs.size
        rows = self.passes.shards.share(-(-height // side))
        area = Window(slice(rows.start * side, rows.stop * side), slice(0, width))
        return list(tiles(area, (side, side)))

    def refine(
        self, head: nn.Module, proposals: list[InstanceData], cfg: ConfigDict, reach: int
    ) -> list[InstanceData]:
        """Return the boxes of a RoI head for the proposals of each tile, with their duplicates."""
        boxes = [instances.bboxes for instances in proposals]
        borrow_around(self.pyramid, self.passes, boxes, reach, number_of_stages(head))
        maps = tuple(map(RoISource, self.maps))
        meta = dict(img_shape=self.size, ori_shape=self.size, scale_factor=(1.0, 1.0))
        without_nms = ConfigDict(cfg, nms=dict(type='nms', iou_threshold=1.0))
        refined = (
            head.predict_bbox(maps, [meta], [instances], without_nms)[0]
            for instances in self.progress(proposals, 'boxes')
        )
        return [self._with_data(instances) for instances in refined]

    def mask(self, head: nn.Module, objects: Objects, reach: int) -> Objects:
        """Return the objects of this process with the masks of a RoI head."""
        device, maps = self.passes.device, tuple(map(RoISource, self.maps))
        groups = _by_tile(objects.boxes)
        boxes = [torch.from_numpy(objects.boxes[group]).to(device) for group in groups]
        borrow_around(self.pyramid, self.passes, boxes, reach)
        masks = {}
        for group, group_boxes in self.progress(list(zip(groups, boxes, strict=True)), 'masks'):
            labels = torch.from_numpy(objects.labels[group]).to(device)
            of_group = _masks(head, maps, group_boxes, labels, self.size)
            masks.update(zip(group.tolist(), of_group, strict=True))
        objects = replace(objects, masks=[masks[i] for i in range(len(objects))])
        return objects.with_data(self.passes.pixels_with_data)


def _clipped(instances: InstanceData, size: tuple[int, int], cfg: ConfigDict) -> InstanceData:
    """Clip boxes at the borders of the image, and drop those that become too small."""
    boxes = instances.bboxes
    boxes[:, 0::2].clamp_(0, size[1])
    boxes[:, 1::2].clamp_(0, size[0])
    sides = boxes[:, 2:] - boxes[:, :2]
    return instances[(sides > max(0, cfg.get('min_bbox_size', 0))).all(1)]


def _suppressed(boxes_of_tiles: list[InstanceData], shards: Shards, cfg: ConfigDict) -> Objects:
    """Return the objects of the tiles of all processes without duplicates, by decreasing score."""
    names = ('bboxes', 'scores', 'labels')
    own = [torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long)]
    if boxes_of_tiles:  # there may be fewer tiles than processes
        own = [torch.cat([instances[name] for instances in boxes_of_tiles]).cpu() for name in names]
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
        remaining = detections[:, :4], detections[:, 4], labels[group][indices]
        parts.append(Objects(*(values.numpy() for values in remaining)))
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
    maps: tuple['RoISource', ...],
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
