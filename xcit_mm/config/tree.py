"""A config as a tree of dicts and lists: the walk over it, and what its parts are called."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, Registry, root

from ..base.environment import quiet
from ..base.errors import UserError

CONTAINERS = (dict, list, tuple)
FRAMEWORKS = ('mmdet', 'mmseg')


def nodes(node: Any, place: str = '') -> Iterator[tuple[str, Any]]:
    """Yield a part of a config and everything in it, with dotted places, outside in."""
    yield place, node
    if isinstance(node, CONTAINERS):
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from nodes(child, f'{place}.{name}'.lstrip('.'))


def dicts(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts in a part of a config, with their dotted places."""
    return (pair for pair in nodes(node, place) if isinstance(pair[1], dict))


def typed_nodes(node: Any, place: str = '') -> Iterator[tuple[str, dict]]:
    """Yield all dicts with a ``type`` in a part of a config, with their dotted places."""
    return (pair for pair in dicts(node, place) if 'type' in pair[1])


def leaves(node: Any, place: str = '') -> Iterator[tuple[str, Any]]:
    """Yield all values in a part of a config, and its empty parts, with their dotted places."""
    pairs = nodes(node, place)
    return (pair for pair in pairs if not isinstance(pair[1], CONTAINERS) or not pair[1])


def replace_nodes(node: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a part of a config, with a function applied to its dicts and values."""
    if isinstance(node, (list, tuple)):
        return type(node)(replace_nodes(value, function) for value in node)
    if isinstance(node, dict):
        node = ConfigDict({k: replace_nodes(value, function) for k, value in node.items()})
    return function(node)


def split_datasets(cfg: Config, split: str) -> list[dict]:
    """Return the datasets that read files for a split, such as 'train'; none without the split."""
    dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset')
    return [*leaf_datasets(dataset)] if dataset else []


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """Yield the datasets that read files, inside those that wrap or join other datasets."""
    inner = dataset.get('dataset') or dataset.get('datasets')
    if not inner:
        yield dataset
    for wrapped in [inner] if isinstance(inner, dict) else inner or []:
        yield from leaf_datasets(wrapped)


def sampled_datasets(dataset: dict) -> Iterator[dict]:
    """Yield the outermost datasets with a pipeline, whose pipelines return the final samples."""
    inner = dataset.get('dataset') or dataset.get('datasets')
    if not inner or dataset.get('pipeline'):
        yield dataset
        return
    for wrapped in [inner] if isinstance(inner, dict) else inner:
        yield from sampled_datasets(wrapped)


def pipeline_of_test_set(cfg: Config) -> list[dict]:
    """Return the transforms of the images that are evaluated, or raise a UserError."""
    dataset = cfg.test_dataloader.dataset
    transforms = dataset.get('pipeline') or next(leaf_datasets(dataset)).get('pipeline')
    if not transforms:
        raise UserError(f'{cfg.filename}: the test dataset has no pipeline')
    return list(transforms)


def loads_masks(pipeline: Any) -> bool:
    """Return whether a transform in the config of a pipeline loads masks."""
    return any(node.get('with_mask') for _, node in dicts(pipeline))


def class_name(kind: Any) -> str:
    """Return the name of a class in a config, which may be the class, without its scope."""
    return str(getattr(kind, '__name__', kind)).rpartition('.')[2]


def dataset_class(dataset: dict, scope: str) -> type | None:
    """Return the class of a dataset in a config, or None if it is not registered."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        with quiet(), DATASETS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(kind)
    return kind


def registered_names(registry: Registry) -> list[str]:
    """Return the names of the classes in a registry and in the registries of other packages."""
    names = [*registry.module_dict, *registry.root.module_dict]
    for scope, child in registry.root.children.items():
        names += [f'{scope}.{name}' for name in child.module_dict if child is not registry]
    return names


def registered_class(kind: Any, scope: str) -> Any:
    """Return the class or function with a name in any registry, or None."""
    registries = [value for value in vars(root).values() if isinstance(value, Registry)]
    for registry in registries if isinstance(kind, str) else ():
        # mmengine warns about registries that a package does not have.
        with quiet(), registry.switch_scope_and_registry(scope) as of_scope:
            if (cls := of_scope.get(kind)) is not None:
                return cls
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


def default_of(kind: type, argument: str) -> Any:
    """Return the default of an argument of a class, or of the first base that has it."""
    for cls in inspect.getmro(kind):
        parameter = inspect.signature(cls.__init__).parameters.get(argument)
        if parameter is not None:
            return parameter.default
    raise KeyError(argument)
