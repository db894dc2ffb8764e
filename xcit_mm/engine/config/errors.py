"""Turn what mmengine says of a wrong class or argument in a config into one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.config import Config

from ...errors import UserError

UNKNOWN_TYPE = re.compile(r'(?P<type>\S+) is not in the .* registry')
WRONG_ARGUMENT = re.compile(
    r'(?P<type>\w+)(?:\.__init__)?\(\) (?P<unknown>got an unexpected)?(missing \d+ required)? '
    r"[\w-]+ arguments?:? '(?P<argument>\w+)'"
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
        message = str(error.args[0]) if error.args else ''
        sentences = (_sentence(message, *pair) for pair in typed_nodes(cfg.to_dict()))
        sentence = next(filter(None, sentences), None)
        if sentence is None:
            raise
        raise UserError(f'the config {cfg.filename}: {sentence}') from error


def _sentence(message: str, place: str, node: dict[str, Any]) -> str | None:
    """Return what an error says of a part of a config, or None if it is about another."""
    match = UNKNOWN_TYPE.search(message)
    if match and node['type'] == match['type']:
        return (
            f"{place} has type='{match['type']}', which no package registers: check custom_imports"
        )
    match = WRONG_ARGUMENT.search(message)
    names = str(node['type']).rpartition('.')[2], node.get('base')  # of MultibandPreprocessor
    if not match or match['type'] not in names:
        return None
    if (match['argument'] in node) != bool(match['unknown']):
        return None
    argument = f'argument {match["argument"]}'
    problem = f'has no {argument}: remove it' if match['unknown'] else f'needs the {argument}'
    return f'{place}: {node["type"]} {problem}'


def typed_nodes(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts with a ``type`` in a part of a config, with their dotted places."""
    if isinstance(node, dict) and 'type' in node:
        yield place, node
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in children:
        if isinstance(child, (dict, list, tuple)):
            yield from typed_nodes(child, f'{place}.{name}'.lstrip('.'))
