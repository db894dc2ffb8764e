"""What a model expects of images, and what else describes it, in its checkpoints."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...config.tree import split_datasets
from ..distributed import unwrapped


@HOOKS.register_module()
class DescribeHook(Hook):
    """Add to ``meta`` of a checkpoint what its model needs to be used without its config.

    ``images`` are the ``channels``, ``mean``, ``std`` and ``bgr_to_rgb`` of the preprocessor, the
    ``size`` of the pictures of an evaluation, and the loader of images with other bands as
    ``bands``. ``patch_size`` is that of an XCiT, whose weights do not tell 4 from 16. ``classes``
    are the names of the classes. A ``description`` of the model is added, such as the teacher of a
    distillation.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        model, meta = unwrapped(runner.model), checkpoint['meta']
        preprocessor = model.data_preprocessor
        dataset, *_ = split_datasets(runner.cfg, 'train')  # inside those that wrap or join others
        pipeline = dataset.get('pipeline') or []
        loaders = (loader for transform in pipeline if (loader := _loader_of_bands(transform)))
        meta['images'] = dict(  # which network/weights/image_network.py reads
            channels=model.backbone.in_channels,
            mean=preprocessor.mean.flatten().tolist(),
            std=preprocessor.std.flatten().tolist(),
            bgr_to_rgb=preprocessor.bgr_to_rgb,
            size=getattr(model, 'image_size', None),
            bands=next(loaders, None),
        )
        meta['patch_size'] = getattr(model.backbone, 'patch_size', None)
        classes = runner.train_dataloader.dataset.metainfo.get('classes')
        if classes:
            meta['classes'] = list(classes)
        meta |= getattr(model, 'description', {})


def _loader_of_bands(transform: dict) -> dict[str, Any] | None:
    """Return the config of the loader of other bands than RGB that a transform is or has."""
    if transform.get('type') == 'LoadMultiband':
        return dict(transform)
    bands = transform.get('bands') if transform.get('type') == 'ReadWindow' else None
    return dict(type='LoadMultiband', **bands) if bands else None
