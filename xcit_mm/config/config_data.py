"""Configs as data: the parts of a config that a prediction needs, as JSON without any code.

A config file is a program. Models from other people come with a JSON file instead. It is parsed,
and all its content is checked before anything is built from it.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.fileio.handlers import file_handlers
from mmengine.registry import MODELS, TASK_UTILS, TRANSFORMS

from ..base.environment import require, require_framework
from ..base.errors import UserError, one_line, reason
from ..base.files import read_regular
from ..base.version import __version__
from ..network.weights.hub import CONFIG, find_file
from .tree import FRAMEWORKS, class_name, nodes, pipeline_of_test_set, registered_names

KEYS = {
    'xcit_mm': str,
    'default_scope': str,
    'model': dict,
    'pipeline': list,
    'classes': list,
    'palette': list,
}
MAX_BYTES = 2**20
MAX_DEPTH = 40  # levels of values in each other; our configs have ten
START = 'init_cfg', 'pretrained'  # arguments for weights that a training starts from
TUPLE = '__tuple__'  # JSON has lists only, but some transforms need tuples
NOT_ALLOWED = (
    'but a config that is data may contain only registered types and plain values, because '
    'nothing in it may run or reach other files: use a config file, and load the weights as '
    'its checkpoint'
)
VALUES = (str, bool, int, float, type(None))
# Neither a path nor an address, a dotted name or an expression.
PLAIN = re.compile(r'[\w -]*', re.ASCII)
KEY = re.compile(r'[a-zA-Z]\w*', re.ASCII)
REGISTRIES = (MODELS, TASK_UTILS, TRANSFORMS)
# Arguments and classes through which a model or a transform reads files when it is built. A name
# without a dot may be a file, too: mmengine reads "pickle" as one.
LOADING = re.compile(
    r'init_cfg|trusted|backend_args|file_client_args|\w*(pretrained|checkpoint|ckpt|teacher)\w*'
)
LOADING_IF_TEXT = re.compile(r'class_weight|lang_model_name|tokenizer_name|\w*_(file|path)')
LOADING_TYPES = 'BertModel', 'FeatureDistillation', 'ModuleTeacher', 'TimmTeacher'


def describe(cfg: Config, classes: tuple[str, ...], palette: tuple) -> str:
    """Return the JSON of a config with the names and the colors of the classes.

    It contains the model and the pipeline of the test dataset. The data, the training recipe and
    the weights that training starts from are left out.

    Raises:
        UserError: If the config needs values that such a file may not contain.
    """
    content = {
        'xcit_mm': __version__,
        'default_scope': cfg.default_scope,
        'model': _encode(cfg.model),
        'pipeline': _encode(pipeline_of_test_set(cfg)),
        'classes': list(classes),
        'palette': [list(color) for color in palette],
    }
    try:
        text = json.dumps(content, indent=2)
        _check(_decode(json.loads(text)), cfg.filename)
    except TypeError as error:  # an object that is no data
        raise UserError(f'{cfg.filename} cannot be written as data: {reason(error)}') from None
    return text + '\n'


def read_description(name: str | Path) -> Config:
    """Read the config of a model on the hub or in a folder without running any code in it.

    Args:
        name: ``hf://owner/name``, ``hf://owner/name@revision`` or a folder.

    Raises:
        UserError: If the file cannot be read, or contains anything other than registered types of
            xcit_mm, mmdet, mmseg and mmcv and plain values.
    """
    file = find_file(name, file=CONFIG)
    try:
        text = read_regular(file, MAX_BYTES).decode()
        content = _decode(json.loads(text))
        _check(content, str(name))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'the config of {name} cannot be read ({reason(error)})') from None
    names = {key: content[key] for key in ('classes', 'palette') if content[key]}
    dataset = dict(metainfo=names, pipeline=content['pipeline'])
    parts = dict(
        default_scope=content['default_scope'],
        model=content['model'],
        test_dataloader=dict(dataset=dataset),
    )
    return Config(parts, cfg_text=text, filename=str(name))


def _encode(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _encode(value) for key, value in node.items() if key not in START}
    if isinstance(node, (list, tuple)):
        values = [_encode(value) for value in node]
        return {TUPLE: values} if isinstance(node, tuple) else values
    return node


def _decode(node: Any) -> Any:
    if isinstance(node, dict):
        if node.keys() == {TUPLE} and isinstance(node[TUPLE], list):
            return tuple(map(_decode, node[TUPLE]))
        return {key: _decode(value) for key, value in node.items()}
    return list(map(_decode, node)) if isinstance(node, list) else node


def _check(content: Any, name: str) -> None:
    """Refuse content that is not a description, or that could reach anything outside of it."""
    if not isinstance(content, dict) or 'xcit_mm' not in content:
        raise UserError(
            f'the config of {name} does not belong to a model of xcit_mm: name a model that '
            'tools/push.py has written'
        )
    for key, kind in KEYS.items():
        if not isinstance(content.get(key), kind):
            raise UserError(f'the config of {name} has no {key} of type {kind.__name__}')
    if more := content.keys() - KEYS.keys():
        raise UserError(f'the config of {name} has {one_line(min(more))}, {NOT_ALLOWED}')
    if not all(isinstance(value, str) for value in content['classes']):
        raise UserError(f'the classes in the config of {name} are not a list of names')
    scope = content['default_scope']
    if scope not in FRAMEWORKS:
        raise UserError(
            f'the config of {name}: default_scope={one_line(scope)} is not one of '
            f'{", ".join(FRAMEWORKS)}'
        )
    parts = {key: content[key] for key in ('model', 'pipeline')}
    types = _registered_types(parts, scope)
    for place, value in nodes(parts):
        is_deep = place.count('.') > MAX_DEPTH
        if is_deep or not _is_allowed(place.rpartition('.')[2], value, types):
            raise UserError(
                f'the config of {name}: {one_line(place)}={one_line(repr(value))}, {NOT_ALLOWED}'
            )


def _is_allowed(key: str, value: Any, types: set[str]) -> bool:
    """Return whether a value under a key can neither run code nor reach another file."""
    if _reads_files(key, value):
        return False
    if key == 'type':
        return isinstance(value, str) and value in types and not _is_module(value)
    if isinstance(value, dict):
        return all(KEY.fullmatch(inner) for inner in value)
    if isinstance(value, str):
        return PLAIN.fullmatch(value) is not None and not _is_module(value)
    return isinstance(value, (list, tuple, *VALUES))


def _reads_files(key: str, value: Any) -> bool:
    """Return whether a value would make mmengine, mmdet, mmseg or xcit_mm read another file."""
    if LOADING.fullmatch(key):
        return value not in (None, False)
    if not isinstance(value, str):
        return False
    if key == 'type':
        return class_name(value) in LOADING_TYPES
    return LOADING_IF_TEXT.fullmatch(key) is not None or value in file_handlers


def _registered_types(parts: dict[str, Any], scope: str) -> set[str]:
    """Return the names of all types that a config of a framework may build."""
    types = (str(value) for place, value in nodes(parts) if place.endswith('.type'))
    used = {scope, *(kind.partition('.')[0] for kind in types)}
    for framework in FRAMEWORKS:
        if framework in used:
            require_framework(framework)
    require('mmcv.ops')
    import mmcv.ops

    # RoI layers and NMS have names of functions and classes there.
    names = {name for name, value in vars(mmcv.ops).items() if callable(value)}
    for registry in REGISTRIES:
        names |= {*registered_names(registry), *registry.children[scope].module_dict}
    return names


def _is_module(value: str) -> bool:
    """Return whether a value would be imported by mmengine, which looks for types everywhere."""
    spec = find_spec(value) if value and value not in sys.modules else None
    return spec is not None and spec.origin is not None  # not a folder of this name, which is empty
