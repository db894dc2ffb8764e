"""The losses of a detector on maps of a whole image of any size, tile by tile.

The image is divided evenly into tiles of at most :data:`TILE` pixels. The losses treat each tile as
they treat an image in ordinary training: the config says how many of its anchors and proposals are
sampled. The loss of the image is the mean over its tiles, as if ``DistributedDataParallel`` had one
process for each tile. The maps are computed from the whole image. For an image that fits into one
tile, the loss is therefore mmdet's loss.

Nothing is cut at the borders of the tiles:

- Coordinates are relative to the image. The proposals of a tile are clipped at the borders of the
  image, and their features and masks may lie in other tiles.
- Anchors and proposals of a tile are compared with all objects that touch the tile. An object gets
  its best anchor even if their overlap is small, but only in the tile that holds the center of the
  object, because the best anchor of another tile may hardly touch it.
- An object that touches several tiles may be sampled for the RoI heads in each of them.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from itertools import chain, product
from typing import Any

import numpy as np
import torch
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...base.errors import UserError
from ...base.geometry import Window, evenly_cut
from ...base.progress import Progress, silent
from ..maps.anchors import DenseOutputs
from ..maps.detect import TILE
from ..maps.known_models import keeps
from ..maps.lazy import LazyMap
from ..maps.rois import HeldRoISource, borrow_around, number_of_stages, reading_windows
from ..maps.streamed_maps import Pyramid
from ..tokens.passes import Passes
from ..tokens.shards import Shards
from ..tokens.tape import Tape

ROI_METHODS = ['bbox_loss', 'mask_loss', '_bbox_forward', '_mask_forward']
ANCHOR_METHODS = ['loss', 'predict_by_feat', 'loss_by_feat_single']
ANCHOR_METHODS += ['get_anchors', 'get_targets', '_get_targets_single']


def require_trainable_detector(model: nn.Module) -> None:
    """Refuse a detector whose losses are not known to be sums over anchors and boxes.

    Raises:
        UserError: If a part of the model computes losses in its own way, or if its anchors are not
            assigned by their overlap with objects.
    """
    from mmdet.models import SingleStageDetector, TwoStageDetector
    from mmdet.models.dense_heads import AnchorHead, RPNHead
    from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
    from mmdet.models.task_modules import MaxIoUAssigner

    from ...network.heads.batched_roi_head import BatchedRoIHead

    with_rois = isinstance(model, TwoStageDetector)
    head = getattr(model, 'rpn_head' if with_rois else 'bbox_head', model)
    of_model, of_rois = ['loss', 'extract_feat'], ['loss', *ROI_METHODS]
    rules = [(model, [TwoStageDetector if with_rois else SingleStageDetector], of_model)]
    if with_rois:
        of_regions = [StandardRoIHead, BatchedRoIHead, CascadeRoIHead]
        rules.append((model.roi_head, of_regions, of_rois))
    rules.append((head, [AnchorHead], ANCHOR_METHODS))
    rules.append((head, [RPNHead if with_rois else AnchorHead], ['loss_by_feat']))
    rules.append((getattr(head, 'assigner', head), [MaxIoUAssigner], ['assign_wrt_overlaps']))
    for part, bases, methods in rules:
        if not any(keeps(type(part), base, *methods) for base in bases):
            raise UserError(
                'the model cannot be trained on images of any size: which pixels of its maps the '
                f'losses of {type(part).__name__} read is not known; train on crops, without stream'
            )


def losses(
    model: nn.Module,
    pyramid: Pyramid,
    passes: Passes,
    sample: Any,
    size: tuple[int, int],
    progress: Progress = silent,
) -> dict[str, Tensor]:
    """Compute the losses of an image, and the gradients of their sum.

    The gradients of the neck and the heads are added to their ``grad``, and the gradients of the
    tokens to the pyramid. Each process adds the gradients of its own rows of tiles.

    Args:
        model: A detector that :func:`require_trainable_detector` accepts.
        pyramid: The maps of the image, with a tape.
        passes: The finished passes that the maps are computed from.
        sample: A DetDataSample with ``gt_instances`` and perhaps ``ignored_instances``, whose boxes
            (n, 4) and masks are in pixels of the whole image.
        size: (H, W) of the image without padding.
        progress: A display of the tiles.

    Returns:
        The means over the tiles of the entries of mmdet's log, such as ``loss_rpn_cls`` and
        ``s0.acc``, without gradients. They are the same in all processes.

    Raises:
        UserError: If it is not known which pixels of a map the neck or a head reads.
    """
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    shards, tape, logged = passes.shards, pyramid.maps[0].tape, []
    detector = _Detector(model, maps, sample, size, passes.image.shape[1:])
    rows, columns = detector.cuts
    own = [Window(*spans) for spans in product(rows[shards.share(len(rows))], columns)]
    count = len(rows) * len(columns)
    seed = _common_seed(shards) if count > 1 else None
    progress.expect(1 + (shards.count > 1 and detector.has_rois))
    reach = detector.outputs.borrow_for(pyramid, own)
    proposals: list[InstanceData | None] = [None] * len(own)
    if shards.count > 1 and detector.has_rois:
        proposals = detector.borrow(own, pyramid, passes, reach, progress)
    with reading_windows(model.roi_head, passes.dtype) if detector.has_rois else nullcontext():
        for tile, of_tile in progress(list(zip(own, proposals, strict=True)), 'losses'):
            with _drawn_from(seed, tile):
                for parts in detector.losses_of(tile, of_tile):
                    _backward(parts, count, tape)
                    logged += ((name, value.item()) for name, value in parts.items())
    tape.finish()
    return _means(logged, count, shards)


def _backward(parts: dict[str, Tensor], count: int, tape: Tape) -> None:
    """Compute the gradients of losses for their mean over tiles, and free the graphs."""
    loss = sum(value for name, value in parts.items() if 'loss' in name) / count
    if loss.requires_grad:  # not if there are no boxes, and the head is frozen
        loss.backward()
    tape.collect()


class _Detector:
    """A detector on the maps of an image.

    Attributes:
        outputs: The outputs of the head that has anchors.
        cuts: The rows and the columns of the tiles.
    """

    def __init__(
        self,
        model: nn.Module,
        maps: Sequence[LazyMap],
        sample: Any,
        size: tuple[int, int],
        padded: tuple[int, int],
    ) -> None:
        self.has_rois = hasattr(model, 'roi_head')
        self._model, self._maps, self._sample = model, maps, sample
        self._size, self._padded = size, padded
        self._dense = model.rpn_head if self.has_rois else model.bbox_head
        self.outputs = DenseOutputs(self._dense, maps)
        unit = max(self.outputs.strides)
        self.cuts = tuple(evenly_cut(n, TILE, unit) for n in self.outputs.size)
        self._device = maps[0].device

    def losses_of(
        self, tile: Window, proposals: InstanceData | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the losses of the heads of a tile, each with a graph of its own.

        The ``proposals`` of the tile are computed unless they are known.
        """
        values, meta = self._read(tile), self._meta(tile)
        objects, is_own = self._touching('gt_instances', tile)
        ignored, _ = self._touching('ignored_instances', tile)
        targets = objects
        if self.has_rois:  # the RPN assigns anchors to objects of any class
            targets = copy(objects)
            targets.labels = torch.zeros_like(objects.labels)
        head = _head_of_tile(self._dense, tile, is_own)
        parts = _summed(head.loss_by_feat(*values, [targets], [meta], [ignored]))
        if self.has_rois and proposals is None:
            proposals = self._propose(tile, values)
        del values
        yield parts
        if self.has_rois:
            sample = type(self._sample)(metainfo=meta)
            sample.gt_instances = objects
            if ignored is not None:
                sample.ignored_instances = ignored
            maps = tuple(map(HeldRoISource, self._maps))
            yield _summed(self._model.roi_head.loss(maps, [proposals], [sample]))

    def borrow(
        self,
        tiles: Sequence[Window],
        pyramid: Pyramid,
        passes: Passes,
        reach: int,
        progress: Progress,
    ) -> list[InstanceData]:
        """Copy the rows of other processes that the heads read, and return the proposals.

        Rows cannot be copied later, because processes may have different numbers of tiles.
        """
        with torch.no_grad():
            proposals = [
                self._propose(tile, self._read(tile)) for tile in progress(tiles, 'proposals')
            ]
        boxes = [instances.bboxes for instances in proposals]
        boxes += [self._touching('gt_instances', tile)[0].bboxes for tile in tiles]
        stages = number_of_stages(self._model.roi_head)
        borrow_around(pyramid, passes, boxes, reach, stages)
        return proposals

    def _read(self, tile: Window) -> list[list[Tensor]]:
        """Compute the outputs for a tile; 16 bits are too few for coordinates and losses."""
        return [
            [value.to(torch.promote_types(value.dtype, torch.float32)) for value in levels]
            for levels in self.outputs.read(tile)
        ]

    def _propose(self, tile: Window, values: list[list[Tensor]]) -> InstanceData:
        model = self._model
        cfg = model.train_cfg.get('rpn_proposal', model.test_cfg.rpn)
        head = _head_of_tile(self._dense, tile)
        return head.predict_by_feat(*values, batch_img_metas=[self._meta(tile)], cfg=cfg)[0]

    def _meta(self, tile: Window) -> dict[str, Any]:
        """Return what the heads know of the image: boxes are clipped at its borders.

        Anchors beyond the padded shape, which is relative to the first anchor, are not valid.
        """
        rest = tuple(n - span.start for n, span in zip(self._padded, tile, strict=True))
        return self._sample.metainfo | dict(img_shape=self._size, pad_shape=rest)

    def _touching(self, name: str, tile: Window) -> tuple[InstanceData | None, Tensor | None]:
        """Return the instances that touch a tile, and which of them have their center in it."""
        from mmdet.structures.bbox import get_box_tensor

        instances = self._sample.get(name)
        if instances is None:
            return None, None
        boxes = get_box_tensor(instances.bboxes).to(self._device)
        touches, is_own = _places(boxes, tile, self.outputs.size)
        touching = InstanceData(bboxes=boxes[touches])
        touching.labels = instances.labels.to(self._device)[touches]
        if 'masks' in instances:
            touching.masks = instances.masks[touches.nonzero()[:, 0].cpu().numpy()]
        return touching, is_own[touches]


def _places(boxes: Tensor, tile: Window, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return which boxes (n, 4) touch a tile, and which have their center in it.

    At the borders of the image, tiles extend to infinity, so that no box is left out.
    """
    (top, bottom), (left, right) = (
        (span.start or -math.inf, span.stop if span.stop < n else math.inf)
        for span, n in zip(tile, size, strict=True)
    )
    start, stop = boxes.new_tensor([left, top]), boxes.new_tensor([right, bottom])
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    is_own = ((centers >= start) & (centers < stop)).all(1)
    touches = is_own | ((boxes[:, 2:] > start) & (boxes[:, :2] < stop)).all(1)
    return touches, is_own


def _summed(parts: dict[str, Tensor | list[Tensor]]) -> dict[str, Tensor]:
    """Add up the losses of the levels of a head, as mmengine's models do."""
    return {
        name: value.mean() if isinstance(value, Tensor) else sum(v.mean() for v in value)
        for name, value in parts.items()
    }


def _head_of_tile(head: nn.Module, tile: Window, is_own: Tensor | None = None) -> nn.Module:
    """Return a head with the same parameters and the anchors of a tile."""
    of_tile, priors = copy(head), copy(head.prior_generator)
    corner = [tile.columns.start, tile.rows.start] * 2
    priors.base_anchors = [anchors + anchors.new_tensor(corner) for anchors in priors.base_anchors]
    of_tile.prior_generator = priors
    if is_own is not None and not is_own.all():
        of_tile.assigner = _assigner_of_tile(head.assigner, is_own)
    return of_tile


def _assigner_of_tile(assigner: Any, is_own: Tensor) -> Any:
    """Return an assigner that matches anchors of low overlap only with the tile's own objects.

    Other objects have their best anchor in another tile. An additional column of the overlaps
    stands for that anchor.
    """
    from mmdet.models.task_modules.assigners import AssignResult

    def assign_wrt_overlaps(overlaps: Tensor, labels: Tensor) -> AssignResult:
        elsewhere = torch.where(is_own, -1, 2).to(overlaps)  # no overlap is larger than 1
        overlaps = torch.cat([overlaps, elsewhere[:, None]], 1)
        assigned = assigner.assign_wrt_overlaps(overlaps, labels)
        values = assigned.gt_inds, assigned.max_overlaps, assigned.labels
        return AssignResult(assigned.num_gts, *(value[:-1] for value in values))

    of_tile = copy(assigner)
    of_tile.assign_wrt_overlaps = assign_wrt_overlaps
    return of_tile


def _common_seed(shards: Shards) -> int:
    """Draw a number from PyTorch's generator; all processes get the number of the first."""
    return shards.broadcast(int(torch.randint(2**31, ())))


@contextmanager
def _drawn_from(seed: int | None, tile: Window) -> Iterator[None]:
    """Draw the same samples for a tile in any process and order, from a seed and its place.

    Without a seed, they are drawn from PyTorch's generator, as in ordinary training.
    """
    if seed is None:
        yield
        return
    place = np.random.SeedSequence([seed, tile.rows.start, tile.columns.start])
    with torch.random.fork_rng(devices=[]):  # mmdet draws on the CPU
        torch.default_generator.manual_seed(int(place.generate_state(1)[0]))
        yield


def _means(logged: list[tuple[str, float]], count: int, shards: Shards) -> dict[str, Tensor]:
    """Return the means of the values from the tiles of all processes, by name.

    A loss that is missing in a tile without boxes counts as 0. The mean of an accuracy is over the
    tiles that have it.
    """
    values = defaultdict(list)
    for name, value in chain(*shards.gather(logged)):
        values[name].append(value)
    numbers = {name: count if 'loss' in name else len(v) for name, v in values.items()}
    means = shards.broadcast({name: sum(v) / numbers[name] for name, v in values.items()})
    return {name: torch.tensor(mean, dtype=torch.float64) for name, mean in means.items()}
