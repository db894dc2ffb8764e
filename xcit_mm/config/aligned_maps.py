"""Edits a config so that predictions on XCiT lie at their pixels in images of any size.

Necks and heads resize maps. This moves a map that reaches beyond the image, or that is not exactly
twice as large as the next one (:mod:`xcit_mm.network.models.aligned_segmentors`).
"""

from math import lcm

from mmengine.config import Config

from ..network.rows import MULTIPLE
from .tree import class_name

# mmseg's classes, and ours, which resize scores to the area that the maps cover.
ALIGNED = {
    'EncoderDecoder': 'AlignedEncoderDecoder',
    'CascadeEncoderDecoder': 'AlignedCascadeEncoderDecoder',
    'DepthEstimator': 'AlignedDepthEstimator',
}
DETECTOR_INPUTS = 'DetDataPreprocessor', 'MultibandPreprocessor'


def is_on_xcit(model: dict) -> bool:
    """Return whether the backbone of a model is an XCiT."""
    backbone = model.get('backbone')
    return isinstance(backbone, dict) and class_name(backbone.get('type')) == 'XCiT'


def align_maps(cfg: Config) -> list[str]:
    """Pad the images of a detector, or the maps of a segmentor, and return sentences for the log.

    Models on other backbones stay as they are.
    """
    model = cfg.get('model')
    detector = model.get('detector', model) if isinstance(model, dict) else None  # of a teacher
    if not isinstance(detector, dict) or not is_on_xcit(detector):
        return []
    if cfg.get('default_scope') == 'mmdet':
        places = (model, detector, cfg)  # where mmdet and mmengine look for a preprocessor
        notes = [_pad_images(place.get('data_preprocessor')) for place in places]
        return [note for note in notes if note]
    if model.get('type') not in ALIGNED.values() or detector.backbone.get('pad_maps'):
        return []
    detector.backbone.pad_maps = True
    return ['model.backbone.pad_maps=True: maps cover the whole image at any size.']


def _pad_images(preprocessor: dict | None) -> str:
    if not isinstance(preprocessor, dict):
        return ''
    if isinstance(preprocessor.get('data_preprocessor'), dict):  # of several branches
        preprocessor = preprocessor.data_preprocessor
    divisor = preprocessor.get('pad_size_divisor', 1)
    is_ours = class_name(preprocessor.get('type')) in DETECTOR_INPUTS and type(divisor) is int
    if not is_ours or divisor < 1 or divisor % MULTIPLE == 0:
        return ''
    preprocessor.pad_size_divisor = lcm(divisor, MULTIPLE)
    return (
        f'data_preprocessor.pad_size_divisor={preprocessor.pad_size_divisor} instead of '
        f'{divisor}: necks would stretch the maps of other sizes.'
    )
