"""The class of every pixel, as any segmentor of mmseg computes it."""

import torch
from torch import Tensor, nn

from ....base.errors import UserError
from ....network.pyramid import covered_size
from .graph import Graph


class SegmentorGraph(Graph):
    """The class of every pixel: (B, 3, H, W) to logits (B, K, H, W) and labels (B, H, W)."""

    outputs = ('logits', 'labels')
    NARROW = ('backbone', 'neck', 'decode_head')

    def __init__(self, model: nn.Module) -> None:
        from ....network.models.aligned_segmentors import AlignedSegmentor  # needs mmseg

        super().__init__(model)
        self.is_aligned = isinstance(model, AlignedSegmentor)
        mode = model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise UserError(
                f'test_cfg.mode={mode!r} cannot be exported, because a file gets the whole image: '
                '--cfg-options model.test_cfg.mode=whole'
            )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        H, W = size = image.shape[2:]
        covered = covered_size(size) if self.is_aligned else tuple(size)
        maps = self.model.extract_feat(self.normalize(image))
        logits = self.logits(maps, covered)[..., :H, :W]
        return logits, self.labels(logits)

    def logits(self, maps: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
        """Return logits (B, K, H, W) of the size (H, W) that maps (B, C, h, w) cover.

        The head is called, and not its ``predict``, because the hooks of narrow parts need a call.
        """
        head = self.model.decode_head
        return head.predict_by_feat(head(maps), [dict(img_shape=size)])

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
