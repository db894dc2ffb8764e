"""What an exported file computes: from pixels, which it normalises, to maps or labels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..models import XCiT


class Graph(nn.Module):
    """A model of mmdet or mmseg, or a part of it, that takes images as they are loaded."""

    outputs: tuple[str, ...]  # names
    batched = True  # takes several images at once
    # Parts of the model that may compute in float16. Heads with transformers compute coordinates,
    # which it would round to whole pixels.
    NARROW: tuple[str, ...] = ('backbone', 'neck')

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        backbone = model.backbone
        self.channels = backbone.in_channels if isinstance(backbone, XCiT) else 3

    def normalize(self, image: Tensor) -> Tensor:
        """Normalise images (B, channels, H, W) as the config says."""
        preprocessor = self.model.data_preprocessor
        if not hasattr(preprocessor, 'mean'):  # the config does not normalise
            return image
        return (image - preprocessor.mean) / preprocessor.std

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs as mmdet or mmseg does."""
        return self(image)


class BackboneGraph(Graph):
    """The maps of the backbone, (B, 3, H, W) to each (B, C, H_i, W_i)."""

    outputs = ('stride4', 'stride8', 'stride16', 'stride32')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        if isinstance(model.backbone, XCiT):
            self.outputs = self.outputs[model.backbone.start_level :]
        else:
            with torch.no_grad():
                maps = model.backbone(torch.zeros(1, 3, 64, 64))
            self.outputs = tuple(f'map{i}' for i in range(len(maps)))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.model.backbone(self.normalize(image))


class SegmentorGraph(Graph):
    """The class of every pixel: (B, 3, H, W) to logits (B, K, H, W) and labels (B, H, W)."""

    outputs = ('logits', 'labels')
    NARROW = ('backbone', 'neck', 'decode_head')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        mode = model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise UserError(
                f'test_cfg.mode={mode!r} cannot be exported, because a file sees the whole image: '
                '--cfg-options model.test_cfg.mode=whole'
            )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        size = dict(img_shape=tuple(image.shape[2:]))
        head = self.model.decode_head
        maps = self.model.extract_feat(self.normalize(image))
        logits = head.predict_by_feat(head(maps), [size])
        return logits, self.labels(logits)

    def labels(self, logits: Tensor) -> Tensor:
        """Return the labels (B, H, W) of logits (B, K, H, W); K is 1 for a foreground alone."""
        if logits.shape[1] > 1:
            return logits.argmax(dim=1)
        return (logits[:, 0].sigmoid() > self.model.decode_head.threshold).long()

    def reference(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits and labels with mmseg's own inference of whole images."""
        size = dict(img_shape=tuple(image.shape[2:]))
        logits = self.model.encode_decode(self.normalize(image), [size])
        samples = self.model.postprocess_result(logits)
        return logits, torch.cat([sample.pred_sem_seg.data.long() for sample in samples])


class DetectorGraph(Graph):
    """The objects of one image (1, 3, H, W) in the order of their scores.

    They are boxes (n, 4) (left, top, right, bottom in pixels), scores (n,) and labels (n,).
    """

    batched = False
    outputs = ('boxes', 'scores', 'labels')

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
