"""A batch in a file of tensors, numbers and strings, to look at it and to compute it again.

The weights are in it, too, as in a checkpoint, so that one file is all that is needed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor

from ...errors import UserError
from ...files import write_whole
from ...weights.read import read_checkpoint
from ..data.seeding import seed_all

INSTANCES = ('gt_instances', 'ignored_instances')  # of mmdet's samples
PIXELS = ('gt_sem_seg',)  # of mmseg's


def save_batch(
    path: Path,
    batch: dict[str, Any],
    place: tuple[int, ...],
    losses: str,
    weights: dict[str, Tensor],
) -> None:
    """Write a batch of a detector or a segmentor.

    Args:
        path: A new file for :func:`losses_of_batch`, also for ``torch.load``.
        batch: As a loader gives it: ``inputs``, a list of images (3, H, W), and ``data_samples``.
        place: What the random numbers of its step follow from.
        losses: The loss terms that it gave.
        weights: Of the model that gave them.
    """
    content = {
        'inputs': list(batch.get('inputs', [])),
        'samples': [_plain(sample) for sample in batch.get('data_samples', [])],
        'place': place,
        'losses': losses,
        'state_dict': weights,
        'meta': {},  # which mmdet and mmseg look for beside weights
    }
    with write_whole(path) as file:
        torch.save(content, file)


def losses_of_batch(model: BaseModel, path: Path) -> dict[str, Tensor]:
    """Compute the losses of a batch in a file again, in training mode.

    Args:
        model: With the weights of that step, which are in the file, too: as
            ``mmdet.apis.init_detector(config, path, device='cpu')`` or mmseg's ``init_model``
            builds it.
        path: Of :func:`save_batch`.

    Returns:
        The loss terms, connected with the weights, so that their gradients can be looked at.

    Raises:
        UserError: If the file is no such batch.
    """
    content = read_checkpoint(path)
    if not isinstance(content, dict) or not {'inputs', 'samples', 'place'} <= content.keys():
        raise UserError(f'{path} holds no batch, as a run leaves it where a loss is not finite')
    samples = [_sample(plain) for plain in content['samples']]
    model.train()
    seed_all(*content['place'])
    data = model.data_preprocessor({'inputs': content['inputs'], 'data_samples': samples}, True)
    return model(**data, mode='loss')


def image_files(batch: dict[str, Any]) -> list[str]:
    """The files that the images of a batch come from."""
    samples = batch.get('data_samples', [])
    return [str(sample.get('img_path', 'an image without a file')) for sample in samples]


def _plain(sample: BaseDataElement) -> dict[str, Any]:
    plain: dict[str, Any] = {'metainfo': {k: _simple(v) for k, v in sample.metainfo.items()}}
    for name in INSTANCES:
        if name in sample:
            plain[name] = {key: _tensor(value) for key, value in sample.get(name).items()}
    for name in PIXELS:
        if name in sample:
            plain[name] = sample.get(name).data
    return plain


def _sample(plain: dict[str, Any]) -> BaseDataElement:
    sample = BaseDataElement(metainfo=plain['metainfo'])
    for name in set(INSTANCES) & plain.keys():
        values = dict(plain[name])
        if 'masks' in values:
            from mmdet.structures.mask import BitmapMasks

            masks = values['masks'].numpy()
            values['masks'] = BitmapMasks(masks, *masks.shape[1:])
        sample.set_data({name: InstanceData(**values)})
    for name in set(PIXELS) & plain.keys():
        sample.set_data({name: PixelData(data=plain[name])})
    return sample


def _tensor(value: Any) -> Tensor:
    """Of a tensor, mmdet's boxes, its masks (N, H, W) or an array."""
    if hasattr(value, 'to_ndarray'):
        return torch.from_numpy(value.to_ndarray())
    return torch.as_tensor(getattr(value, 'tensor', value))


def _simple(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
