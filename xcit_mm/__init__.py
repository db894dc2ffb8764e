"""XCiT backbones for mmdetection and mmsegmentation.

Most programs need only the names that this package exports:

- :func:`~xcit_mm.predict.model.load_model` loads a trained model for prediction.
- :class:`~xcit_mm.predict.embedder.Embedder` computes an embedding of an image.
- :class:`~xcit_mm.network.xcit.XCiT` is the backbone.
- :func:`~xcit_mm.network.accelerate.accelerate` speeds up an XCiT of timm.
- :func:`~xcit_mm.network.fast.xca_operator.xca` is the attention as a function.
- :func:`~xcit_mm.large.stream.stream` computes the maps of an image of any size, and
  :func:`~xcit_mm.large.stream.stream_backward` their gradients.
- :func:`~xcit_mm.large.shared_images.shared_images` trains on images that several processes share.
- :class:`~xcit_mm.base.errors.UserError` is the error for a wrong input.

Importing this package registers the backbone and the image loaders of our configs with mmengine,
and replaces the compiled operators of mmcv if they are missing. Importing :mod:`xcit_mm.train`
registers the runner, loops and hooks of our configs.
"""

import os
from importlib import import_module

from .base import environment

# PyTorch reads it when it is imported: the CPU computes what Apple's GPUs cannot, with a warning.
os.environ.setdefault('PYTORCH_ENABLE_MPS_FALLBACK', '1')
environment.require('torch')
environment.require('cv2')  # mmengine imports it, and it is what a slim machine cannot load
environment.require('mmengine')

from . import mmcv_ops  # noqa: E402  needs the packages that are checked above
from .base import old_mmengine  # noqa: E402

old_mmengine.mend()
mmcv_ops.install()
environment.require('mmcv')  # the image loaders import it

from . import data  # noqa: E402, F401  registers image loaders
from .base.errors import UserError  # noqa: E402
from .base.version import __version__  # noqa: E402
from .network import XCiT, models  # noqa: E402, F401  registers preprocessors

environment.BUILT_ON.update(
    mmdet=(
        'xcit_mm.data.datasets.coco',
        'xcit_mm.data.transforms.draft_resize_with_masks',
        'xcit_mm.data.datasets.panoptic',
        'xcit_mm.train.metrics.coco_metric',
        'xcit_mm.train.instance_tta',
        'xcit_mm.train.metrics.panoptic_metric',
        'xcit_mm.network.heads.batched_roi_head',
        'xcit_mm.network.heads.batched_rpn_head',
        'xcit_mm.large.data.read_window',
        'xcit_mm.large.data.scene_transforms',
        'xcit_mm.large.data.scene_windows',
    ),
    mmseg=(
        'xcit_mm.data.datasets.height_dataset',
        'xcit_mm.data.datasets.segmentation_folders',
        'xcit_mm.train.metrics.height_metric',
        'xcit_mm.train.metrics.iou_metric',
        'xcit_mm.large.data.read_window',
        'xcit_mm.large.data.scene_transforms',
        'xcit_mm.large.data.scene_windows',
        'xcit_mm.network.models.aligned_segmentors',
        'xcit_mm.network.models.height_head',
        'xcit_mm.network.models.height_losses',
    ),
    mmengine=(
        'xcit_mm.data.datasets.image_folders',
        'xcit_mm.data.transforms.image_transforms',
        'xcit_mm.data.transforms.multi_crop',
        'xcit_mm.data.transforms.timm_augment',
        'xcit_mm.train.distillation.feature_distillation',
        'xcit_mm.train.distillation.module_teacher',
        'xcit_mm.train.distillation.timm_teacher',
        'xcit_mm.train.metrics.accuracy_metric',
        'xcit_mm.train.metrics.knn_metric',
        'xcit_mm.large.data.read_window',
        'xcit_mm.large.data.drawn_windows',
        'xcit_mm.network.models.image_classifier',
        'xcit_mm.network.models.self_distillation',
    ),
)
_LOADED_LATER = {
    'Embedder': 'xcit_mm.predict.embedder',
    'accelerate': 'xcit_mm.network.accelerate',
    'load_model': 'xcit_mm.predict.model',
    'shared_images': 'xcit_mm.large.shared_images',
    'stream': 'xcit_mm.large.stream',
    'stream_backward': 'xcit_mm.large.stream',
    'xca': 'xcit_mm.network.fast.xca_operator',
}

__all__ = [
    'Embedder',
    'UserError',
    'XCiT',
    '__version__',
    'accelerate',
    'load_model',
    'shared_images',
    'stream',
    'stream_backward',
    'xca',
]


def __getattr__(name: str) -> object:
    if name in _LOADED_LATER:
        return getattr(import_module(_LOADED_LATER[name]), name)
    module = f'{__name__}.{name}'
    try:
        return import_module(module)  # a folder of the package, such as xcit_mm.large
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_LATER})
