"""The part of a config in front of the error of the package that cannot build it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.config import Config
from mmengine.registry import build_from_cfg

from ..base.errors import ConfigError, UserError, did_you_mean, reason
from ..base.files import is_disk_full
from .load import READ
from .tree import registered_names, typed_nodes


@contextmanager
def config_errors(cfg: Config) -> Iterator[None]:
    """Name the part of a config in an error of another package that builds it.

    All other errors pass unchanged.

    Raises:
        UserError: If a part has a type that no package registers.
        ConfigError: If a part cannot be built. The error of the package is its ``__cause__``.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place, build = _part_being_built(cfg, error)
        if place is None or is_disk_full(error):
            raise
        kind, registry = build['cfg']['type'], build['registry']
        if isinstance(error, KeyError) and f'{kind} is not in the ' in str(error):
            hint = did_you_mean(kind, registered_names(registry)) or ': check custom_imports'
            problem = f'{place} has type={kind!r}, which no package registers{hint}'
            raise UserError(f'the config {cfg.filename}: {problem}') from error
        raise ConfigError(f'the config {cfg.filename}: {place}: {reason(error)}') from error


def _part_being_built(cfg: Config, error: Exception) -> tuple[str | None, dict[str, Any]]:
    """Return the place of the innermost part in a traceback of mmengine's ``build_from_cfg``.

    Also returns the local values of that call. Without such a part, the place is None.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    calls = [frame.f_locals for frame in frames if frame.f_code is build_from_cfg.__code__]
    for call in reversed(calls):
        for place, part in typed_nodes({name: cfg[name] for name in cfg if name in READ}):
            # mmdet adds arguments to some parts.
            if all(call['cfg'].get(name) == value for name, value in part.items()):
                return place, call
    return None, {}
