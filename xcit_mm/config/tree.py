"""A config as a tree of dicts and lists."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mmengine.config import ConfigDict
from mmengine.registry import DATASETS, Registry, root

from ..environment import quiet


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """Yield the datasets that read files, inside those that wrap or join other datasets."""
    inner = dataset.get('dataset') or dataset.get('datasets')
    if not inner:
        yield dataset
    for wrapped in [inner] if isinstance(inner, dict) else inner or []:
        yield from leaf_datasets(wrapped)


def dataset_class(dataset: dict, scope: str) -> type | None:
    """Return the class of a dataset in a config, or None if it is not registered."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        with DATASETS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(kind)
    return kind


def loads_masks(node: Any) -> bool:
    """Return whether a transform in the config of a pipeline loads masks."""
    if isinstance(node, dict):
        return bool(node.get('with_mask')) or any(map(loads_masks, node.values()))
    return isinstance(node, (list, tuple)) and any(map(loads_masks, node))


def replace_nodes(node: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a part of a config, with a function applied to its dicts and values."""
    if isinstance(node, (list, tuple)):
        return type(node)(replace_nodes(value, function) for value in node)
    if isinstance(node, dict):
        node = ConfigDict({k: replace_nodes(value, function) for k, value in node.items()})
    return function(node)


def typed_nodes(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts with a ``type`` in a part of a config, with their dotted places."""
    return (pair for pair in dicts(node, place) if 'type' in pair[1])


def class_name(kind: Any) -> str:
    """Return the name of a class in a config, which may be the class, without its scope."""
    return str(getattr(kind, '__name__', kind)).rpartition('.')[2]


def dicts(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts in a part of a config, with their dotted places."""
    return (pair for pair in nodes(node, place) if isinstance(pair[1], dict))


def leaves(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield all values in a part of a config, and its empty parts, with their dotted places."""
    parts = (dict, list, tuple)
    return (pair for pair in nodes(node) if not isinstance(pair[1], parts) or not pair[1])


def nodes(node: Any, place: str = '') -> Iterator[tuple[str, Any]]:
    """Yield a part of a config, and then all parts and values in it, with their dotted places."""
    yield place, node
    for name, child in children(node) if isinstance(node, (dict, list, tuple)) else ():
        yield from nodes(child, f'{place}.{name}'.lstrip('.'))


def children(node: dict | list | tuple) -> Iterable[tuple[Any, Any]]:
    """Return the names or indices of the items of a part of a config, and the items."""
    return node.items() if isinstance(node, dict) else enumerate(node)


def registered_class(kind: Any, scope: str) -> Any:
    """Return the class or function with a name in any registry, or None."""
    registries = [value for value in vars(root).values() if isinstance(value, Registry)]
    for registry in registries if isinstance(kind, str) else ():
        # mmengine warns about registries that a package does not have.
        with quiet(), registry.switch_scope_and_registry(scope) as of_scope:
            if (found := of_scope.get(kind)) is not None:
                return found
    return kind


def arguments_of(kind: Any) -> set[str]:
    """Return the names of the arguments of a class, with those that it passes on to its bases."""
    names: set[str] = set()
    for cls in inspect.getmro(kind) if inspect.isclass(kind) else ():
        if '__init__' not in vars(cls) or cls is object:
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names - {'self'}
