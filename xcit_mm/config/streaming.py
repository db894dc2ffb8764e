"""The edits to the config of a run that streams whole images."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ..base.device import choose_dtype, dtype_name
from ..base.errors import UserError, did_you_mean
from ..base.files import require_writable
from ..base.sizes import bytes_of
from .stream_rules import streams_training
from .tree import class_name

DEFAULTS = dict(memory=None, store=None, shared=False, train=True)
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
WRAPPER = 'StreamedModel'
# Samplers whose order all processes can share.
SHAREABLE = ('DefaultSampler', 'InfiniteSampler', 'SharedSampler')
# Hooks that draw whole images.
DRAWING = ('DetVisualizationHook', 'SegVisualizationHook')
# Seconds that NCCL waits: the image of a process may be much larger than the others.
PATIENCE = 24 * 60 * 60


def use_stream(cfg: Config) -> list[str]:
    """Make a run compute whole images tile by tile, if the config has a ``stream``.

    ``stream`` is a dict with ``memory``, the bytes that the tokens of an image and a tile may take
    (such as '2GiB'; None: half of the free memory), ``store``, a folder for the tokens of images
    that need more, ``shared``, whether several processes share each image, and ``train``, whether
    training computes whole images as well. Edits ``cfg`` and returns sentences for the log.

    Raises:
        UserError: If a value is invalid, or the model has a wrapper already.
    """
    if cfg.get('stream') is None:
        return _without_stream(cfg)
    values = _values(cfg.stream)
    wrapper = cfg.get('model_wrapper_cfg')
    if wrapper and class_name(wrapper.get('type')) != WRAPPER:
        raise UserError(
            f'stream and model_wrapper_cfg={dict(wrapper)} both wrap the model: drop one of them'
        )
    cfg.model_wrapper_cfg = dict(type=WRAPPER, **values)
    cfg.default_hooks.room = dict(type='RoomCheckHook')
    loaders = LOADERS if values['train'] else LOADERS[1:]
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
    if not streams_training(cfg) or not is_mixed or wrapper.get('dtype') not in (None, 'float16'):
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


def _values(stream: Any) -> dict[str, Any]:
    """Return the values of ``stream`` with their defaults, and the memory in bytes."""
    if not isinstance(stream, dict):
        raise UserError(
            f"stream={stream!r} is not a dict, such as dict(memory='2GiB', store=None): on the "
            'command line, write stream.memory=2GiB'
        )
    for name in stream.keys() - DEFAULTS.keys():
        hint = did_you_mean(name, DEFAULTS) or f': it has {", ".join(DEFAULTS)}'
        raise UserError(f'stream has no {name}{hint}')
    values = {**DEFAULTS, **stream}
    for name in ('shared', 'train'):
        if type(values[name]) is not bool:
            raise UserError(f'stream.{name}={values[name]!r} is neither True nor False')
    store = values['store']
    if store is not None:
        if not isinstance(store, str):
            raise UserError(f'stream.store={store!r} is not the path of a folder')
        require_writable(store)
    if values['memory'] is not None:
        values['memory'] = _bytes(values['memory'])
    return values


def _bytes(memory: Any) -> int:
    is_number = type(memory) in (int, float)
    if isinstance(memory, str) or is_number:
        try:
            return bytes_of(f'{memory:.0f}' if is_number else memory)
        except ValueError:
            pass
    raise UserError(f'stream.memory={memory!r} is not a size such as 2GiB or 500MB')


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
    cfg.merge_from_dict({'env_cfg.dist_cfg.timeout': PATIENCE})
    return [f'env_cfg.dist_cfg.timeout={PATIENCE}: images differ in the time that they take.']
