"""What a config asks of classes that they do not have, in a sentence instead of a traceback."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry

from ...errors import UserError
from .load import OURS, near

NO_TYPE = re.compile(r'(?P<type>\S+) is not in the \S*?(?P<registry>[\w ]+) registry')
NO_ARGUMENT = re.compile(
    r"(?P<type>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<argument>\w+)'"
)
LACKS_ARGUMENT = re.compile(
    r"(?P<type>\w+)\.__init__\(\) missing \d+ required [\w-]+ arguments?: '(?P<argument>\w+)'"
)


@contextmanager
def config_errors(cfg: Config) -> Iterator[None]:
    """Turn what the registries say of a wrong type or argument in a config into a UserError.

    mmengine builds the parts of a run from its config when it comes to them, and an unknown
    class or argument is a KeyError or TypeError then. Those of code that the config has no part
    in pass.

    Raises:
        UserError: With the place in the config, and the name that is close.
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
    if found := NO_TYPE.search(message):
        place = next((where for where, node in nodes if node.get('type') == found['type']), None)
        slip = near(found['type'].rpartition('.')[2], _registered())
        return place and f"{place} has type='{found['type']}', which no package registers{slip}"
    if found := NO_ARGUMENT.search(message):
        for where, node in nodes:
            if _is_of(node, found['type']) and found['argument'] in node:
                slip = near(found['argument'], _arguments(found['type']))
                return f'{where}: {node["type"]} has no argument {found["argument"]}{slip}'
    if found := LACKS_ARGUMENT.search(message):
        for where, node in nodes:
            if _is_of(node, found['type']) and found['argument'] not in node:
                return f'{where}: {node["type"]} needs the argument {found["argument"]}'
    return None


def _nodes(node: Any, where: str = '') -> Iterator[tuple[str, dict]]:
    """All dicts of a config with their dotted places."""
    if isinstance(node, dict):
        yield where, node
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in children:
        if isinstance(child, (dict, list, tuple)):
            yield from _nodes(child, f'{where}.{name}'.lstrip('.'))


def _is_of(node: dict, name: str) -> bool:
    kind = str(node.get('type')).rpartition('.')[2]
    return name in (kind, OURS.get(kind))


def _arguments(name: str) -> list[str]:
    found = next((r.module_dict[name] for r in _registries() if name in r.module_dict), None)
    return list(inspect.signature(found).parameters) if found else []  # named by its module


def _registered() -> set[str]:
    return {name for registry in _registries() for name in registry.module_dict}


def _registries() -> list[Registry]:
    roots = [r for r in vars(mmengine.registry).values() if isinstance(r, Registry)]
    return roots + [child for root in roots for child in root.children.values()]
