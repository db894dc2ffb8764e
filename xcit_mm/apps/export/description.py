"""The metadata of an exported model, for programs without xcit_mm."""

import json
from typing import Any

from ...base.errors import UserError
from ...data.transforms.draft_resize import FromWholeSize
from ...predict.model import Model


def describe(model: Model) -> dict[str, str]:
    """Return the metadata that a program needs to predict with a trained model, as JSON by name.

    The names are ``palette``, a color for each class; ``resizing`` of the test pipeline, see
    :func:`resizing`, unless the pipeline has other transforms; ``threshold``, for the probabilities
    of masks, or of the foreground if it is the only class; and ``align_corners``, with which the
    logits of a segmentor are resized to the image.
    """
    content = {'palette': model.palette}
    if not _others(model):
        content['resizing'] = resizing(model)
    module = model.module
    if model.task == 'segmentation':
        content['align_corners'] = getattr(module, 'align_corners', False)
        if getattr(module, 'out_channels', None) == 1:
            content['threshold'] = module.decode_head.threshold
    elif getattr(getattr(module, 'roi_head', None), 'with_mask', False):
        content['threshold'] = module.test_cfg.rcnn.mask_thr_binary
    return {name: json.dumps(value) for name, value in content.items()}


def resizing(model: Model) -> dict[str, Any] | None:
    """Return how the test pipeline resizes images, or None if it does not.

    With ``keep_ratio``, the image becomes as large as possible while its longer side is at most the
    longer side of ``scale`` and its shorter side at most the shorter side of ``scale``. Without
    ``keep_ratio``, ``scale`` is the width and height. OpenCV's bilinear interpolation is used.

    Raises:
        UserError: If the pipeline changes the image in another way.
    """
    others = _others(model)
    if others:
        raise UserError(
            f'the test pipeline has {others[0]}, but predict.py can only resize RGB images of 8 '
            'bits bilinearly: use --out instead of --folder'
        )
    resizes = model.pipeline.transforms[1:-1]
    return dict(scale=[*resizes[0].scale], keep_ratio=resizes[0].keep_ratio) if resizes else None


def _others(model: Model) -> list[str]:
    """Return the transforms of the test pipeline that :func:`resizing` cannot describe."""
    loader, *transforms = model.pipeline.transforms[:-1]
    others = [type(transform).__name__ for transform in transforms if not _is_plain(transform)]
    if len(transforms) > 1 and not others:
        others = [f'{len(transforms)} transforms that resize']
    if model.bands is not None or loader.to_float32:
        others.append(type(loader).__name__)
    return others


def _is_plain(transform: Any) -> bool:
    return (
        (type(transform).__name__ == 'Resize' or isinstance(transform, FromWholeSize))
        and transform.scale is not None
        and (transform.interpolation, transform.backend) == ('bilinear', 'cv2')
    )
