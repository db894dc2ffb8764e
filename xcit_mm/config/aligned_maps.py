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


def align_maps(cfg: Config) -> list[str]:
    """Pad the images of a detector, or the maps of a segmentor, and return sentences for the log.

    Models on other backbones stay as they are.
    """
    model = cfg.get('model')
    detector = model.get('detector', model) if isinstance(model, dict) else None  # of a teacher
    backbone = detector.get('backbone') if isinstance(detector, dict) else None
    if not isinstance(backbone, dict) or class_name(backbone.get('type')) != 'XCiT':
        return []
    if cfg.get('default_scope') == 'mmdet':
        places = (model, detector, cfg)  # where mmdet and mmengine look for a preprocessor
        notes = [_pad_images(place.get('data_preprocessor')) for place in places]
        return [note for note in notes if note]
    kind, notes = class_name(model.get('type')), []
    if kind in ALIGNED:
        model.type = ALIGNED[kind]
        notes.append(f'model.type={model.type}: labels lie at the pixels of the image.')
    if model.type in ALIGNED.values() and not backbone.get('pad_maps'):
        backbone.pad_maps = True
        notes.append('model.backbone.pad_maps=True: maps cover the whole image at any size.')
    return notes


def _pad_images(preprocessor: dict | None) -> str:
    if not isinstance(preprocessor, dict):
        return ''
    if isinstance(preprocessor.get('data_preprocessor'), dict):  # of several branches
        preprocessor = preprocessor.data_preprocessor
    divisor = preprocessor.get('pad_size_divisor', 1)
    is_known = class_name(preprocessor.get('type')) in DETECTOR_INPUTS and type(divisor) is int
    if not is_known or divisor < 1 or divisor % MULTIPLE == 0:
        return ''
    preprocessor.pad_size_divisor = lcm(divisor, MULTIPLE)
    return (
        f'data_preprocessor.pad_size_divisor={preprocessor.pad_size_divisor} instead of '
        f'{divisor}: necks would stretch the maps of other sizes.'
    )
