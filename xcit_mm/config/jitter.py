"""Large-scale jitter with copy-paste for the training data of any config with masks."""

from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..errors import UserError
from .tree import loads_masks

SOURCE = Path(__file__).parents[1] / '.mim' / 'configs' / '_base_' / 'coco_instance_lsj.py'


def use_jitter(cfg: Config, size: Any, path: Path) -> None:
    """Augment the training data as ``configs/_base_/coco_instance_lsj.py`` does.

    The dataset and the transforms that load an image and its masks are kept.

    Args:
        cfg: Config to edit.
        size: Height and width of the augmented images in pixels.
        path: File of the config, for errors.

    Raises:
        UserError: If the size is not a number of pixels, or the training data is not one dataset
            with masks.
    """
    if type(size) is not int or size < 32:
        raise UserError(f'--cfg-options lsj={size!r} is not a size in pixels, such as 1024')
    loader = cfg.get('train_dataloader') or {}
    dataset = loader.get('dataset') or {}
    if _name(dataset) == 'MultiImageMixDataset':
        dataset = dataset.dataset
    loading = [t for t in dataset.get('pipeline', ()) if _name(t).startswith('Load')]
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


def _name(node: dict) -> str:
    return str(node.get('type')).rpartition('.')[2]
