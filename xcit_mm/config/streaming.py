"""The edits to the config of a run that streams whole images."""

from collections.abc import Sequence

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ..base.device import choose_dtype, dtype_name
from ..base.errors import UserError
from ..base.files import require_writable
from ..base.sizes import bytes_of
from .tree import class_name

DEFAULTS = dict(memory=None, store=None, shared=False, train=True)
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
WRAPPER = 'StreamedModel'
# Samplers whose order all processes can share.
SHAREABLE = ('DefaultSampler', 'InfiniteSampler', 'SharedSampler')
# Hooks that draw whole images.
DRAWING = ('DetVisualizationHook', 'SegVisualizationHook')
# Seconds that NCCL waits: the image of a process may be much larger than the others.
TIMEOUT = 24 * 60 * 60


def is_streamed(cfg: Config, split: str) -> bool:
    """Return whether a run computes the images of a split as whole images, tile by tile."""
    stream = cfg.get('stream')
    return stream is not None and (split != 'train' or stream.get('train', True))


def use_stream(cfg: Config) -> list[str]:
    """Make a run compute whole images tile by tile, if the config has a ``stream``.

    ``stream`` is a dict with ``memory``, the bytes that the tokens of an image and a tile may take
    (such as '2GiB'; None: half of the free memory), ``store``, a folder for the tokens of images
    that need more, ``shared``, whether several processes share each image, and ``train``, whether
    training computes whole images as well. Edits ``cfg`` and returns sentences for the log.

    Raises:
        UserError: If the store cannot be written, or the model has a wrapper already.
        ValueError: If the memory is not a size.
    """
    if cfg.get('stream') is None:
        return _without_stream(cfg)
    values = {**DEFAULTS, **cfg.stream}
    memory = values['memory']
    if memory is not None:
        values['memory'] = bytes_of(memory) if isinstance(memory, str) else int(memory)
    if values['store'] is not None:
        require_writable(values['store'])
    wrapper = cfg.get('model_wrapper_cfg')
    if wrapper and class_name(wrapper.get('type')) != WRAPPER:
        raise UserError(
            f'stream and model_wrapper_cfg={dict(wrapper)} both wrap the model: drop one of them'
        )
    cfg.model_wrapper_cfg = dict(type=WRAPPER, **values)
    cfg.default_hooks.room = dict(type='RoomCheckHook')
    loaders = DATALOADERS if values['train'] else DATALOADERS[1:]
    if not values['train']:
        notes = ['Whole images are streamed in evaluations; training computes what is loaded.']
        if cfg.get('find_unused_parameters'):
            cfg.model_wrapper_cfg.find_unused_parameters = True
    else:
        notes = ['Whole images are streamed, and BatchNorm stays in evaluation mode.']
        if cfg.pop('sync_bn', None):
            notes.append('sync_bn is unset: BatchNorm in evaluation mode has nothing to share.')
    notes += _in_this_process(cfg, loaders) + _without_drawing(cfg)
    if values['shared']:
        notes += _share(cfg, loaders)
    return notes + _wait_longer(cfg)


def stream_in_dtype(cfg: Config) -> list[str]:
    """Replace float16 in training, because gradients of tiles would need their own scale."""
    wrapper = cfg.get('optim_wrapper') or {}
    is_mixed = class_name(wrapper.get('type')) == 'AmpOptimWrapper'
    is_float16 = is_mixed and wrapper.get('dtype') in (None, 'float16')
    if not is_float16 or not is_streamed(cfg, 'train'):
        return []
    wrapper.pop('dtype', None)
    wrapper.pop('loss_scale', None)
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False):
        wrapper.dtype = 'bfloat16'
        return ['optim_wrapper.dtype=bfloat16: gradients of tiles are too small for float16.']
    wrapper.type = 'OptimWrapper'
    return [f'Training in float32: the {get_device()} has no bfloat16, and float16 is too narrow.']


def predict_in_dtype(cfg: Config, dtype: str | None, compiled: bool) -> list[str]:
    """Set the dtype in which a test streams images. Default: float32."""
    if compiled:
        raise UserError('--compile does not speed up streamed images: leave it out')
    computed = dtype_name(choose_dtype(dtype or 'float32', torch.device(get_device())))
    cfg.model_wrapper_cfg.dtype = computed
    return [f'The model computes in {computed}.']


def _without_stream(cfg: Config) -> list[str]:
    """Remove what an earlier run added to the config that it wrote."""
    if class_name((cfg.get('model_wrapper_cfg') or {}).get('type')) != WRAPPER:
        return []
    cfg.pop('model_wrapper_cfg')
    cfg.default_hooks.pop('room', None)
    return [f'{WRAPPER} is removed: stream is None.']


def _in_this_process(cfg: Config, loaders: Sequence[str]) -> list[str]:
    """Open the files in this process: open files cannot be sent to data workers."""
    changed = [name for name in loaders if (cfg.get(name) or {}).get('num_workers', 0) != 0]
    for name in changed:
        cfg[name].num_workers = 0
    names = ', '.join(changed)
    return [f'{names}: num_workers=0, because windows are read in this process.'] if names else []


def _without_drawing(cfg: Config) -> list[str]:
    hooks = cfg.default_hooks.items()
    drawing = [name for name, hook in hooks if hook and class_name(hook.get('type')) in DRAWING]
    for name in drawing:
        cfg.default_hooks.pop(name)
    names = ', '.join(f'default_hooks.{name}' for name in drawing)
    return [f'{names} is removed: it draws whole images; PictureHook reduces them.'] * bool(names)


def _share(cfg: Config, loaders: Sequence[str]) -> list[str]:
    """Give all processes the same images in the same order."""
    for name in loaders:
        sampler = (cfg.get(name) or {}).get('sampler')
        if sampler is None:
            continue
        if class_name(sampler.get('type')) not in SHAREABLE:
            raise UserError(
                f'{name}.sampler: stream.shared=True cannot share the order of a '
                f'{class_name(sampler.get("type"))}: use DefaultSampler'
            )
        sampler.type = 'SharedSampler'
    return ['The processes share each image: SharedSampler has one order for all of them.']


def _wait_longer(cfg: Config) -> list[str]:
    """Make processes with GPUs wait longer for processes with larger images."""
    settings = (cfg.get('env_cfg') or {}).get('dist_cfg') or {}
    if cfg.launcher == 'none' or not torch.cuda.is_available() or 'timeout' in settings:
        return []
    cfg.merge_from_dict({'env_cfg.dist_cfg.timeout': TIMEOUT})
    return [f'env_cfg.dist_cfg.timeout={TIMEOUT}: images differ in the time that they take.']
