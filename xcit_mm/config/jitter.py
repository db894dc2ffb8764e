"""Large-scale jitter with copy-paste for the training data of any config with masks."""

from pathlib import Path

from mmengine.config import Config

from ..base.errors import UserError
from ..base.shipped import CONFIGS
from .tree import class_name, loads_masks

SOURCE = CONFIGS / '_base_/coco_instance_lsj.py'


def use_jitter(cfg: Config, size: int, path: Path) -> None:
    """Augment the training data as ``configs/_base_/coco_instance_lsj.py`` does.

    The dataset and the transforms that load an image and its masks are kept. ``size`` is the height
    and width of the augmented images in pixels, ``path`` the file of the config, for errors.

    Raises:
        UserError: If the training data is not one dataset with masks.
    """
    loader = cfg.get('train_dataloader') or {}
    dataset = loader.get('dataset') or {}
    if class_name(dataset.get('type')) == 'MultiImageMixDataset':
        dataset = dataset.dataset
    pipeline = dataset.get('pipeline', ())
    loading = [t for t in pipeline if class_name(t.get('type')).startswith('Load')]
    if not loads_masks(loading) or any(t.get('with_seg') for t in loading):
        raise UserError(
            f'--cfg-options lsj: the training data of {path} is not a single dataset that loads '
            'boxes and masks, which copy-paste needs: train without lsj, or on instance masks'
        )
    source = Config.fromfile(SOURCE)
    mixed = source.train_dataloader.dataset
    jitter = mixed.dataset.pipeline[2:]
    for transform in jitter:
        sizes = {k: (size, size) for k, v in transform.items() if v == source.image_size}
        transform.update(sizes)
    mixed.dataset = {**dataset, 'pipeline': [*loading, *jitter]}
    loader.batch_sampler, loader.dataset = None, mixed
