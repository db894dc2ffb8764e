"""Errors of other packages about a config, as one sentence that names the part of the config.

mmengine builds the parts of a run when it needs them, and mmdet, mmseg and PyTorch check few of
their arguments. A wrong value can cause any error, often in another part. The traceback shows
which part was built or run when the error was raised.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import OPTIMIZERS, Registry
from mmengine.runner import BaseLoop, Runner

from ..base.console import log_file
from ..base.errors import (
    ConfigError,
    Interrupted,
    UserError,
    did_you_mean,
    is_out_of_memory,
    one_line,
    reason,
)
from ..base.files import DISK_FULL
from .tree import arguments_of, class_name, dicts, leaves, registered_names

WRONG_ARGUMENT = re.compile(
    r'(?P<type>\w+)(?:\.__init__)?\(\) (?P<unknown>got an unexpected)?(missing \d+ required)? '
    r"[\w-]+ arguments?:? '(?P<argument>\w+)'"
)
MAX_REASON = 400  # characters of an error of another package
MAX_NAMED = 3  # values of a config that a sentence names
MIN_TELLING = 16  # smaller numbers are in any message


@contextmanager
def config_errors(
    cfg: Config,
    options: Mapping[str, Any] | None = None,
    has_predicted: Callable[[], bool] = bool,
) -> Iterator[None]:
    """Turn an error while parts of a config are built, or first used, into a UserError.

    It names the part, its values, and the ``options`` of the command line that changed it. Errors
    after the first training step or after ``has_predicted`` returns true, and errors of a full
    disk, pass unchanged.
    """
    try:
        yield
    except (UserError, Interrupted):
        raise
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        owners = [frame.f_locals.get('self') for frame in frames]
        loops = [owner for owner in owners if isinstance(owner, BaseLoop)]
        # A loop has run when a step has been taken, or an evaluation in it has ended.
        is_later = has_predicted() or (loops and getattr(loops[-1], 'has_run', False))
        if is_later or getattr(error, 'errno', None) in DISK_FULL:
            raise
        parts = dict(dicts(cfg.to_dict()))
        place = _responsible(parts, [*frames, *_replaced_frames(error)])
        sentence = _misspelled(error, parts, place, frames)
        if sentence is not None:
            raise UserError(f'the config {cfg.filename}: {sentence}') from error
        loggers = [vars(o).get('logger') for o in owners if isinstance(o, Runner)]
        log = next(map(log_file, filter(None, loggers)), None)
        message = _message(error, parts, place, options or {})
        raise ConfigError(f'the config {cfg.filename}: {message}', log and Path(log)) from error


def _replaced_frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of the error that another one replaces, as mmengine does with a hook's."""
    while error := error.__context__:
        yield from (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _responsible(parts: Mapping[str, dict], frames: Iterable[FrameType]) -> str:
    """Return the place of the innermost part of a config in a traceback, or ''."""
    place = ''
    for frame in frames:
        places = _places(parts, frame)
        below = [p for p in places if f'{p}.'.startswith(f'{place}.' if place else '')]
        place = _common_place(parts, below or places) or place
    return place


def _places(parts: Mapping[str, dict], frame: FrameType) -> list[str]:
    """Return the parts of a config that a frame builds or computes, or that are its arguments."""
    values = frame.f_locals
    built = values.get('cfg')
    if 'build' in frame.f_code.co_name and isinstance(built, dict) and 'type' in built:
        name = class_name(built['type'])
        equal = {p: _num_equal(built, part) for p, part in parts.items() if _name(part) == name}
        if equal:
            return [p for p, number in equal.items() if number == max(equal.values())]
    name = type(values.get('self')).__name__
    places = [p for p, part in parts.items() if p and _name(part) == name]
    arguments = map(values.get, inspect.getargs(frame.f_code).args)
    given = [value for value in arguments if isinstance(value, ConfigDict) and value]
    return places or [p for p, part in parts.items() if p and any(value == part for value in given)]


def _name(part: Mapping[str, Any]) -> str | None:
    return class_name(part['type']) if 'type' in part else None


def _num_equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    number = 0
    for name in a.keys() & b.keys():
        with suppress(Exception):  # arrays have no truth value
            number += bool(a[name] == b[name])
    return number


def _common_place(parts: Mapping[str, dict], places: list[str]) -> str:
    """Return the innermost part that holds all places, such as the parent of a list of heads."""
    names = [place.split('.') for place in places]
    shared = []
    for level in zip(*names, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    while '.'.join(shared) not in parts:
        shared.pop()
    return '.'.join(shared)


def _misspelled(
    error: Exception, parts: Mapping[str, dict], place: str, frames: list[FrameType]
) -> str | None:
    """Return a sentence about a type or an argument that does not exist, or None."""
    match = WRONG_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return _unknown_type(parts, place, frames)
    nearest_first = (place, parts.get(place, {})), *parts.items()
    typed = [(p, part) for p, part in nearest_first if 'type' in part]
    for where, part in typed:
        # MultibandPreprocessor passes its arguments on to its base.
        is_meant = match['type'] in (class_name(part['type']), part.get('base'))
        if not is_meant or (match['argument'] in part) != bool(match['unknown']):
            continue
        argument = f'argument {match["argument"]}'
        if not match['unknown']:
            return f'{where}: {part["type"]} needs the {argument}'
        built = next((f.f_locals['obj_cls'] for f in frames[::-1] if 'obj_cls' in f.f_locals), None)
        hint = did_you_mean(match['argument'], arguments_of(built))
        return f'{where}: {part["type"]} has no {argument}: remove it{hint}'
    return None


def _unknown_type(parts: Mapping[str, dict], place: str, frames: list[FrameType]) -> str | None:
    """Return a sentence about a type that no package registers, or None."""
    held = frames[-1].f_locals.values()
    looked_up = [(place, value) for value in held if isinstance(value, Registry)]
    if place.startswith('optim_wrapper'):  # mmengine calls the optimizer without a check
        looked_up.append(('optim_wrapper.optimizer', OPTIMIZERS))
    for where, registry in looked_up:
        key = 'constructor' if 'constructor' in registry.name else 'type'
        kind = parts.get(where, {}).get(key)
        if isinstance(kind, str) and registry.get(kind) is None:
            hint = did_you_mean(kind, registered_names(registry)) or ': check custom_imports'
            return f'{where} has {key}={kind!r}, which no package registers{hint}'
    return None


def _message(
    error: Exception, parts: Mapping[str, dict], place: str, options: Mapping[str, Any]
) -> str:
    """Return the part, what was raised, and the values that may be the cause."""
    text = one_line(reason(error), MAX_REASON)
    if not str(error):  # an assertion without a message
        text += one_line(traceback.extract_tb(error.__traceback__)[-1].line or '')
    kind = parts.get(place, {}).get('type')  # a list, such as a pipeline, has none
    part = f'{place}{f" ({class_name(kind)})" if kind else ""}' if place else 'a part'
    sentence = f'{part} fails ({text})'
    if changed := _changed_values(options, place, text):
        sentence += f'; the cause may be --cfg-options {one_line(changed, MAX_REASON)}'
    elif values := _own_values(parts, place, text):
        sentence += f'; the config has {one_line(values)}'
    if is_out_of_memory(error):
        sentence += '; use fewer images at a time (batch_size), smaller ones, or a smaller model'
    return sentence


def _changed_values(options: Mapping[str, Any], place: str, text: str) -> str:
    """Return the options that changed a part, or that a message quotes, the nearest first."""
    own = {name: value for name, value in options.items() if name != 'data_root'}
    top = place.split('.')[0]
    changed = {name: v for name, v in own.items() if name.split('.')[0] == top or not top}
    quoted = {n: v for n, v in (changed or own).items() if _is_quoted(n, v, text)} or changed
    nearest = sorted(quoted, key=lambda name: not name.startswith(place))
    return ' '.join(f'{name}={quoted[name]}' for name in nearest)


def _own_values(parts: Mapping[str, dict], place: str, text: str) -> str:
    """Return the values around a part that a message quotes, or all values of the part, or ''."""
    if not place:
        return ''
    top = place.split('.')[0]
    around = {p: v for p, v in leaves(parts[''].get(top), top) if not p.endswith('.type')}
    quoted = [f'{p}={value!r}' for p, value in around.items() if _is_quoted(p, value, text)]
    values = quoted[:MAX_NAMED] or [
        f'{place}.{name}={value!r}'
        for name, value in parts.get(place, {}).items()
        if name != 'type' and not isinstance(value, dict)
    ]
    return ', '.join(values)


def _is_quoted(place: str, value: Any, text: str) -> bool:
    """Return whether a message contains the name of a value, or the value if that is rare."""
    words = [place.rpartition('.')[2]]
    is_number = isinstance(value, (int, float))
    if value not in ('', None) and (not is_number or abs(value) >= MIN_TELLING):
        words.append(str(value))
    return any(re.search(rf'(?<![\w.]){re.escape(word)}(?![\w.])', text) for word in words)
