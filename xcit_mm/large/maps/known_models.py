"""Which models of mmdet and mmseg can be computed on windows of their maps."""

from torch import nn

from ...base.errors import UserError


def require_detector(model: nn.Module, remedy: str = 'use --sliced') -> None:
    """Refuse a detector that cannot find objects on windows of its maps."""
    from mmdet.models import SingleStageDetector, TwoStageDetector
    from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
    from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead

    kind = part = type(model)
    if keeps(kind, TwoStageDetector, 'predict', 'extract_feat'):
        part = type(model.roi_head)
        known_heads = StandardRoIHead, CascadeRoIHead
        if any(keeps(part, known, 'predict_bbox', 'predict_mask') for known in known_heads):
            part = type(getattr(model, 'rpn_head', model))
            if keeps(part, BaseDenseHead, 'predict_by_feat'):
                return
    elif keeps(kind, SingleStageDetector, 'predict', 'extract_feat'):
        part = type(model.bbox_head)
        names = 'predict', 'predict_by_feat', '_bbox_post_process'
        if keeps(part, BaseDenseHead, *names) and not model.with_mask:
            return
    raise UserError(
        f'the model cannot be streamed: which pixels of its maps {part.__name__} reads is not '
        f'known; {remedy}'
    )


def keeps(kind: type, base: type, *methods: str) -> bool:
    """Return whether a class keeps these methods of a base class."""
    return all(getattr(kind, name, None) is getattr(base, name) for name in methods)


def predicts_heights(model: nn.Module) -> bool:
    """Return whether a model predicts a number for each pixel instead of a class."""
    return any(kind.__name__ == 'DepthEstimator' for kind in type(model).__mro__)


def has_unmodified_head(model: nn.Module) -> bool:
    """Return whether mmseg's own code computes labels or heights, only from the map of the head."""
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from mmseg.models.segmentors import DepthEstimator, EncoderDecoder

    from ...network.models.aligned_segmentors import AlignedDepthEstimator, AlignedEncoderDecoder

    aligned = AlignedEncoderDecoder, AlignedDepthEstimator
    if type(model) not in (*aligned, EncoderDecoder, DepthEstimator):
        return False
    head = type(model.decode_head)
    return (
        head.predict is BaseDecodeHead.predict
        and head.predict_by_feat is BaseDecodeHead.predict_by_feat
    )


def require_segmentor(model: nn.Module, remedy: str = 'use --sliced') -> None:
    """Refuse a segmentor whose labels depend on more than the maps of its head."""
    from ...network.models.aligned_segmentors import AlignedSegmentor

    if not (isinstance(model, AlignedSegmentor) and has_unmodified_head(model)):
        kind = type(getattr(model, 'decode_head', model)).__name__
        raise UserError(
            f'the model cannot be streamed: which pixels of its maps {kind} reads is not known; '
            f'{remedy}'
        )
