"""Weights from files into our models: all of them, or an error.

A checkpoint is read once (:func:`read_checkpoint`); what it is, is seen from its content, and
pure functions take it from state to state: :func:`model_state`, :func:`backbone_state`,
:func:`detector_state`.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from ..environment import require
from ..errors import DependencyError, UserError, one_line, reason
from ..files import open_regular, write_whole
from .archive import read_records
from .download import PICKLE_START, START, ZIP_START, download, is_safetensors, is_url
from .unpickling import MAX_SIZES, load_plain

TIMM = 'timm://'
HEAD = '_head'  # rpn_head, roi_head, bbox_head, decode_head, auxiliary_head
BACKBONE = 'backbone.'  # how detectors, segmentors and DINO call their backbone
# The classification head of the released ImageNet models, which a dense task has no use for.
CLASSIFIER = ('cls_token', 'cls_attn_blocks.', 'norm.', 'head.')
# What an ImageNet model does not have: the pyramid and the norms behind it start at random.
PYRAMID = ('fpn1.', 'fpn2.', 'out_norms.')
NO_XCIT = 'no XCiT'
NUM_SHOWN = 3  # tensors of each side in an error


def read_checkpoint(path: str | Path, map_location: Any = 'cpu', trusted: bool = False) -> Any:
    """Read a checkpoint without running code that is in it.

    Args:
        path: A file of ``torch.save`` or safetensors, its http(s) URL, or ``timm://`` and the
            name of a pretrained XCiT of timm.
        map_location: A device, by name or not; None: the CPU.
        trusted: Run whatever the file says, as pickle does. By default it is read by
            an unpickler that knows tensors and the classes that mmengine and the authors'
            release put into checkpoints, and no others. Damage is looked for either way.

    Raises:
        UserError: If there is no such file, it is damaged or something else, or it needs more
            than what is allowed.
    """
    path = str(path)
    if path.startswith(TIMM):
        return _timm_state(path)
    file = download(path) if is_url(path) else Path(path).expanduser()
    try:
        with open_regular(file) as stream:
            start = stream.read(START)
        if is_safetensors(start):
            return _read_safetensors(file)
        records = read_records(file) if start.startswith(ZIP_START) else None
        if trusted:
            return torch.load(file, map_location=map_location, weights_only=False)
        if records is None:
            raise BadZipFile('it is no zip archive')
        return load_plain(records, map_location)
    except DependencyError:
        raise
    except OSError as error:
        why = reason(error)
    except Exception as error:  # of zip, pickle and safetensors
        why = _why_unreadable(start, error)
    kept = f' ({file}: delete it to fetch it again)' if is_url(path) else ''
    raise UserError(f'the checkpoint {path}{kept} cannot be read: {why}')


def model_state(checkpoint: Any, path: str | Path) -> dict[str, Tensor]:
    """Take the weights out of what a checkpoint file holds.

    Args:
        checkpoint: A state dict by itself (timm, DINO) or under ``state_dict`` (mmdet, mmseg,
            mmengine), ``model`` (the authors' ImageNet release), ``teacher`` or ``student``
            (DINO, which evaluates the teacher).
        path: Of the file, for the error.

    Raises:
        UserError: If it holds no weights, or something else among them.
    """
    wrappers = ('state_dict', 'model', 'teacher', 'student')
    state = checkpoint
    if isinstance(checkpoint, Mapping):
        wrapped = (checkpoint.get(name) for name in wrappers)
        state = next((value for value in wrapped if isinstance(value, Mapping)), checkpoint)
    if not isinstance(state, Mapping) or not any(isinstance(v, Tensor) for v in state.values()):
        raise UserError(
            f'the checkpoint {path} holds no state dict, by itself or under one of {wrappers}'
        )
    weights: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix('module.') if isinstance(key, str) else key
        if not isinstance(name, str) or not isinstance(value, Tensor) or name in weights:
            what = 'a second time' if name in weights else f'as {_shape(value)}'
            raise UserError(
                f'the checkpoint {path} holds {one_line(str(key))} {what} among its weights, '
                'which are tensors by name'
            )
        weights[name] = value
    return weights


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the weights of the XCiT backbone out of a state dict, under our names.

    Args:
        state: Of a classifier (of the authors or of timm), of a DINO model, of a detector or
            segmentor, or of a backbone.

    Returns:
        The names and tensors of the backbone, without what belongs to the classifier.
    """
    if any(name.startswith(BACKBONE) for name in state):
        state = {k.removeprefix(BACKBONE): v for k, v in state.items() if k.startswith(BACKBONE)}
    return {
        re.sub(r'^pos_embed\.', 'pos_embeder.', name): value  # timm's name
        for name, value in state.items()
        if not name.startswith(CLASSIFIER)
    }


def detector_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a whole detector or segmentor, without what its backbone has no use for."""
    rest = {name: value for name, value in state.items() if not name.startswith(BACKBONE)}
    if len(rest) == len(state):
        return rest
    backbone = {BACKBONE + name: value for name, value in backbone_state(state).items()}
    return {**backbone, **rest}


def load_pretrained(backbone: nn.Module, path: str | Path | None, trusted: bool = False) -> None:
    """Load pretrained weights into an XCiT backbone and log how many tensors came.

    Args:
        backbone: An :class:`xcit_mm.XCiT`.
        path: As of :func:`read_checkpoint`, in one of the formats of :func:`model_state`.
        trusted: As of :func:`read_checkpoint`.

    Raises:
        UserError: If the file cannot be read, or does not hold just the tensors of this
            backbone; only the pyramid and the norms behind it may be missing. Nothing is
            loaded then.
    """
    if not path:
        raise UserError("init_cfg=dict(type='Pretrained', checkpoint=...) names no checkpoint")
    given = backbone_state(model_state(read_checkpoint(path, trusted=trusted), path))
    wanted = backbone.state_dict()
    may_be_missing = {name for name in wanted if name.startswith(PYRAMID)}
    require_same_tensors(given, wanted, path, may_be_missing)
    backbone.load_state_dict(given, strict=False)
    print_log(f'Loaded {len(given)} of the {len(wanted)} tensors of XCiT from {path}', 'current')
    missing = modules_of(wanted.keys() - given.keys())
    if missing:
        print_log(f'They start at random, as {path} has none: {", ".join(missing)}', 'current')


def convert(source: str | Path, target: Path, trusted: bool = False) -> str:
    """Write the weights of a checkpoint under our names, for mmengine to load.

    Args:
        source: As of :func:`read_checkpoint`, in any format of :func:`model_state`.
        target: A new file: ``{'state_dict': ...}`` of the whole detector or segmentor, or of
            the backbone if the source is a classifier or a DINO model.
        trusted: As of :func:`read_checkpoint`.

    Returns:
        What was written.

    Raises:
        UserError: If the source cannot be read or holds no XCiT, or the target is there.
    """
    if target.exists():
        raise UserError(f'{target} is there already; name a new file')
    state = model_state(read_checkpoint(source, trusted=trusted), source)
    whole = any(name.split('.')[0].endswith(HEAD) for name in state)
    state = detector_state(state) if whole else backbone_state(state)
    require_finite(state, source)
    what = _describe(state)
    if what == NO_XCIT:
        raise UserError(f'{source} holds {_summary(state, state)}')
    try:
        with write_whole(target) as file:
            torch.save({'meta': {'source': str(source)}, 'state_dict': state}, file)
    except OSError as error:
        raise UserError(f'{target} cannot be written ({reason(error)})') from None
    return f'{target}: {len(state)} tensors of {"a model on " if whole else ""}{what}'


def require_same_tensors(
    given: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    path: str,
    may_be_missing: Container[str] = (),
) -> None:
    """Compare a state from a file with a model's, by names, shapes and kinds of numbers.

    mmengine loads what fits and logs the rest, so that a model of random weights is evaluated
    or trained where a file belongs to another one. Floats of another size are converted.

    Raises:
        UserError: If they differ, with what both are and their first differences, or a weight
            is infinite or not a number.
    """
    differ = [
        name
        for name in {**given, **wanted}
        if _shape(given.get(name)) != _shape(wanted.get(name))
        and not (name not in given and name in may_be_missing)
    ]
    if differ:
        raise UserError(
            f'{path} does not hold the weights of this model ({len(differ)} tensors differ): '
            f'the file has {_summary(given, differ)}; the model has {_summary(wanted, differ)}'
        )
    require_finite(given, path)


def modules_of(names: Iterable[str]) -> list[str]:
    """The modules that tensors belong to, each once: a.b.weight and a.b.bias are of a.b."""
    return sorted({name.rpartition('.')[0] for name in names})


def require_finite(state: Mapping[str, Tensor], path: str | Path) -> None:
    """Refuse weights of a training that has diverged, which would be trained or evaluated.

    Raises:
        UserError: If one is infinite or not a number, with the tensor that it is in.
    """
    for name, value in state.items():
        numbers = value.float() if value.is_floating_point() else value  # as models have them
        # The sum takes a twentieth of the time, and is finite but where large numbers add up.
        if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
            raise UserError(
                f'{path} holds numbers in {one_line(name)} that are infinite or none (NaN); take '
                'an earlier checkpoint'
            )


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    require('safetensors')
    from safetensors.torch import load_file

    with file.open('rb') as stream:
        length = int.from_bytes(stream.read(8), 'little')
        header = json.loads(stream.read(min(length, file.stat().st_size)))
    if any(len(tensor.get('shape', ())) > MAX_SIZES for tensor in header.values()):
        raise ValueError(f'a tensor has more than {MAX_SIZES} dimensions')
    return load_file(file)


def _timm_state(path: str) -> dict[str, Tensor]:
    require('timm')
    import timm

    name = path.removeprefix(TIMM)
    if name not in (*timm.list_models('xcit_*'), *timm.list_pretrained('xcit_*')):
        raise UserError(
            f"{path}: timm has no XCiT of that name; timm.list_pretrained('xcit_*') lists them, "
            'such as xcit_small_12_p8_384.fb_dist_in1k'
        )
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # of the network, the hub's client, timm's own
        raise UserError(
            f'{path} cannot be fetched ({reason(error)}); fetch it on another machine and name '
            'the file instead'
        ) from None


def _why_unreadable(start: bytes, error: Exception) -> str:
    if not start:
        return 'it is empty'
    if start.lstrip()[:1] == b'<':
        return 'it is a web page, saved under this name'
    if isinstance(error, BadZipFile) and start.startswith(PICKLE_START):
        return (
            'it is not a zip archive as PyTorch writes it since version 1.6; if you trust where it '
            'comes from, write it again with torch.save(torch.load(OLD, weights_only=False), NEW), '
            'or use --trust-checkpoint (trusted=True in init_cfg)'
        )
    refused = re.search(r'GLOBAL\s+(.+)', str(error))
    if refused:
        needed = re.split(r' (?:is not|is called|was asked)', refused[1])[0]
        return (
            f'it needs more than weights ({one_line(needed)}), which could run any code; if you '
            'trust where it comes from: --trust-checkpoint, or trusted=True in init_cfg'
        )
    first_sentence = reason(error).split('. ')[0]
    return f'it is cut off, damaged or no checkpoint ({one_line(first_sentence)})'


def _summary(state: Mapping[str, Tensor], differ: Iterable[str]) -> str:
    """What a state dict is the weights of, and those of its tensors that differ."""
    shown = [f'{one_line(name)} {_shape(state[name])}' for name in differ if name in state]
    more = ', ...' if len(shown) > NUM_SHOWN else ''
    return f'{_describe(state)} ({", ".join(shown[:NUM_SHOWN]) or "nothing else"}{more})'


def _describe(state: Mapping[str, Tensor]) -> str:
    trunk = backbone_state(state)
    depth = len({name.split('.')[1] for name in trunk if name.startswith('blocks.')})
    temperature, gamma = (trunk.get(f'blocks.0.{n}') for n in ('attn.temperature', 'gamma3'))
    if temperature is None or gamma is None or not temperature.ndim or not gamma.ndim:
        return NO_XCIT
    patch_size = 2 ** sum(bool(re.match(r'patch_embed\.proj\.\d\.0\.weight', n)) for n in trunk)
    return (
        f'an XCiT of {depth} layers, {len(gamma)} channels, {len(temperature)} heads and patch '
        f'size {patch_size}'
    )


def _shape(value: Any) -> str:
    """What has to be the same of two tensors for one to be loaded as the other."""
    if value is None:
        return 'absent'
    if not isinstance(value, Tensor):
        return f'a {type(value).__name__}'
    shape = str(tuple(value.shape))
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        return f'{shape}, not stored number by number'
    if value.is_floating_point():
        return shape
    return f'{shape} of {"complex numbers" if value.is_complex() else value.dtype}'
