"""What the graphs of detectors share: outputs, padding, thresholds, mmdet's own prediction."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....base.errors import UserError
from .graph import Graph

CANDIDATES = 300  # boxes to compare of a detector that finds no object


class DetectorGraph(Graph):
    """The objects of one image (1, 3, H, W) in the order of their scores.

    They are boxes (n, 4) (left, top, right, bottom in pixels), scores (n,) and labels (n,).
    """

    batched = False
    outputs = ('boxes', 'scores', 'labels')
    HEADS: dict[str, tuple[str, ...]]  # names of the classes of heads, by attribute of the model

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the objects with mmdet."""
        objects = self.predict(image).pred_instances
        return objects.bboxes, objects.scores, objects.labels

    def predict(self, image: Tensor):
        """Return mmdet's ``DetDataSample`` of an image."""
        from mmdet.structures import DetDataSample

        x = self.pad(self.normalize(image))
        sizes = dict.fromkeys(('img_shape', 'ori_shape'), tuple(image.shape[2:]))
        sizes |= dict.fromkeys(('batch_input_shape', 'pad_shape'), tuple(x.shape[2:]))
        sample = DetDataSample(metainfo=dict(**sizes, scale_factor=(1.0, 1.0)))
        return self.model.predict(x, [sample], rescale=False)[0]

    def pad(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Pad images (B, C, H, W) at the bottom and at the right as the config says."""
        divisor = getattr(self.model.data_preprocessor, 'pad_size_divisor', 1)
        H, W = x.shape[2:]
        bottom = (H + divisor - 1) // divisor * divisor - H
        right = (W + divisor - 1) // divisor * divisor - W
        return F.pad(x, (0, right, 0, bottom), value=value)


class ThresholdGraph(DetectorGraph):
    """A detector that drops the boxes below a score, and those that overlap a better one."""

    def __init__(self, model: nn.Module, test_cfg: dict) -> None:
        super().__init__(model)
        self.test_cfg = test_cfg  # of the last stage
        require_nms(test_cfg)
        self.register_buffer('score_thr', torch.tensor(float(test_cfg.score_thr)))

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        configured = self.test_cfg.score_thr
        self.test_cfg.score_thr = self.score_thr.item()
        try:
            return super().reference(image)
        finally:
            self.test_cfg.score_thr = configured

    def scores(self, image: Tensor) -> Tensor:
        """Return the scores of all boxes before NMS (n,)."""
        raise NotImplementedError

    def with_more_objects(self, image: Tensor) -> 'ThresholdGraph':
        graph = copy.deepcopy(self)
        graph.lower_threshold(image, CANDIDATES)
        return graph

    @torch.no_grad()
    def lower_threshold(self, image: Tensor, number: int) -> None:
        """Lower the threshold of scores until a number of boxes is above it, before NMS."""
        scores = self.scores(image)
        self.score_thr.copy_(scores.topk(min(number, len(scores) - 1) + 1).values[-1])


def require_nms(test_cfg: dict) -> None:
    """Refuse a kind of NMS that the graphs do not have."""
    if test_cfg.nms.type != 'nms':
        raise UserError(
            f'{test_cfg.nms.type} cannot be exported: set its type in test_cfg to nms, or use '
            '--part backbone'
        )
