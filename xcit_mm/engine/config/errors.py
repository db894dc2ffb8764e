"""Turn what mmengine says of a wrong class or argument in a config into one sentence."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry

from ...errors import UserError, did_you_mean

UNKNOWN_TYPE = re.compile(r'(?P<type>\S+) is not in the \S*?(?P<registry>[\w ]+) registry')
UNKNOWN_ARGUMENT = re.compile(
    r"(?P<type>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<argument>\w+)'"
)
MISSING_ARGUMENT = re.compile(
    r"(?P<type>\w+)\.__init__\(\) missing \d+ required [\w-]+ arguments?: '(?P<argument>\w+)'"
)


@contextmanager
def config_errors(cfg: Config) -> Iterator[None]:
    """Turn an error about a wrong type or argument in a config into a UserError with the place.

    mmengine builds the parts of a run when it needs them, and raises KeyError or TypeError. Such
    errors that have nothing to do with the config pass unchanged.
    """
    try:
        yield
    except (KeyError, TypeError) as error:
        sentence = _sentence(str(error.args[0]) if error.args else '', cfg)
        if sentence is None:
            raise
        raise UserError(f'the config {cfg.filename}: {sentence}') from error


def _sentence(message: str, cfg: Config) -> str | None:
    nodes = list(_nodes(cfg.to_dict()))
    if match := UNKNOWN_TYPE.search(message):
        place = next((place for place, node in nodes if node.get('type') == match['type']), None)
        hint = did_you_mean(match['type'].rpartition('.')[2], _registered())
        return place and f"{place} has type='{match['type']}', which no package registers{hint}"
    if match := UNKNOWN_ARGUMENT.search(message):
        for place, node in nodes:
            if _has_type(node, match['type']) and match['argument'] in node:
                hint = did_you_mean(match['argument'], _arguments(match['type']))
                return f'{place}: {node["type"]} has no argument {match["argument"]}{hint}'
    if match := MISSING_ARGUMENT.search(message):
        for place, node in nodes:
            if _has_type(node, match['type']) and match['argument'] not in node:
                return f'{place}: {node["type"]} needs the argument {match["argument"]}'
    return None


def _nodes(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts of a config with their dotted places."""
    if isinstance(node, dict):
        yield place, node
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in children:
        if isinstance(child, (dict, list, tuple)):
            yield from _nodes(child, f'{place}.{name}'.lstrip('.'))


def _has_type(node: dict, name: str) -> bool:
    return str(node.get('type')).rpartition('.')[2] == name


def _arguments(name: str) -> list[str]:
    cls = next((r.module_dict[name] for r in _registries() if name in r.module_dict), None)
    return list(inspect.signature(cls).parameters) if cls else []  # it is named by its module


def _registered() -> set[str]:
    return {name for registry in _registries() for name in registry.module_dict}


def _registries() -> list[Registry]:
    roots = [r for r in vars(mmengine.registry).values() if isinstance(r, Registry)]
    return roots + [child for root in roots for child in root.children.values()]
