"""The class of each pixel without the scores of all classes at the size of the image."""

import math
from typing import Any

import torch
from torch import Tensor, nn

NUMBERS = 2**27  # that the scores of all classes may be: 512 MiB


def label_maps(model: nn.Module, data: dict[str, Any]) -> list[Tensor]:
    """Segment images of one size, in memory that hardly grows with the number of classes.

    mmseg resizes the scores of all classes to the size of the image and takes the largest: of
    150 classes and 24 megapixels 14 GB. Where that is too much, one class at a time goes through
    the same two resizings, and the largest score so far is kept. That gives the same labels,
    except where two scores differ by less than their rounding. Models with steps of their own
    and sliding windows are left to mmseg at any size.

    Args:
        model: A segmentor of mmseg in evaluation mode.
        data: ``inputs``, images (3, H, W) of one size, and ``data_samples``, as pipelines give
            them.

    Returns:
        Of each image the labels, (H, W) integers, at its original size.
    """
    pixels = sum(
        max(math.prod(sample.ori_shape), math.prod(sample.img_shape))
        for sample in data['data_samples']
    )
    if pixels * model.out_channels <= NUMBERS or not _is_plain(model):
        return [sample.pred_sem_seg.data[0] for sample in model.test_step(data)]
    data = model.data_preprocessor(data, False)
    samples = data['data_samples']
    logits = model(data.pop('inputs'), samples, mode='tensor')  # (B, classes, H/4, W/4)
    return [
        _label_map(model, one, sample.metainfo)
        for one, sample in zip(logits.split(1), samples, strict=True)
    ]


def _label_map(model: nn.Module, logits: Tensor, meta: dict[str, Any]) -> Tensor:
    from mmseg.models.utils import resize

    best = logits.new_full(meta['ori_shape'], -torch.inf)
    labels = torch.zeros(meta['ori_shape'], dtype=torch.int16, device=logits.device)
    for label, one in enumerate(logits.split(1, dim=1)):
        # As mmseg: to the size that the model has seen, and from there to the image's own.
        seen = model.decode_head.predict_by_feat(one.contiguous(), [meta])
        scores = resize(
            seen,
            size=meta['ori_shape'],
            mode='bilinear',
            align_corners=model.align_corners,
            warning=False,
        )[0, 0]
        labels.masked_fill_(scores > best, label)
        torch.maximum(best, scores, out=best)
    return labels


def _is_plain(model: nn.Module) -> bool:
    """Whether whole images go through mmseg's own steps, each class by itself."""
    from mmseg.models import EncoderDecoder
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    head = type(getattr(model, 'decode_head', None))
    return (
        type(model) is EncoderDecoder
        and issubclass(head, BaseDecodeHead)
        and head.predict is BaseDecodeHead.predict
        and head.predict_by_feat is BaseDecodeHead.predict_by_feat
        and model.test_cfg.get('mode', 'whole') == 'whole'
        and getattr(model.data_preprocessor, 'test_cfg', None) is None  # no padding
        and model.out_channels > 1
    )
