"""A config file as it is read, with the options of the command line."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from mmengine.config import Config
from mmengine.runner import Runner

from ..base.environment import BUILT_ON, quiet, remedy, require, require_framework
from ..base.errors import DependencyError, UserError, did_you_mean, looked_in, one_line, reason
from ..base.shipped import CONFIGS, find_config
from ..network.weights.hub import is_folder
from .config_data import read_description
from .draft import use_draft
from .jitter import use_jitter
from .tree import CONTAINERS, arguments_of, nodes, registered_class, replace_nodes

# Names that a config may leave out although they are read.
RUNNER_ARGUMENTS = {
    *inspect.signature(Runner.__init__).parameters,
    'activation_checkpointing',
    'compile',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'sync_bn',
} - {'self', 'cfg'}
# Names that xcit_mm reads; the others in a config have done their part when it is read.
READ = RUNNER_ARGUMENTS | {
    *('custom_imports', 'data_help', 'data_root', 'max_bad_share', 'pretrained', 'runner_type'),
    *('graphs', 'stream', 'trust_checkpoint', 'tta_model', 'tta_pipeline'),
}
# The similarity to a part of a run at which another name is a misspelling of it. The helpers in the
# configs of both zoos, such as val_evaluator_full, are less similar.
MISSPELLED = 0.91
LIMITS = ('max_iters', 'max_epochs')  # of train_cfg; a recipe has one of them


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config file and apply the options of the command line.

    Four options do more than replace a value, because the value alone would leave the config
    contradicting itself: ``data_root=DIR`` moves every path that starts with the config's
    ``data_root``, ``pretrained=WEIGHTS`` sets the weights that the backbone starts from
    (None: random weights), ``lsj=SIZE`` augments by large-scale jitter with copy-paste, and
    ``draft=True`` decodes JPEG files at the size that they are resized to.

    Args:
        path: Path of a config file, or the name of a config of this package; or ``hf://owner/name``
            or a folder, with a config that is data and holds what a prediction needs.
        options: Dotted names and values, as from ``--cfg-options``.
        work_dir: Folder that the run writes to. Default: ``work_dirs/<name of the config>``.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        UserError: If the file does not exist or cannot be read, or if an option names a value
            that nothing reads.
        DependencyError: If the file needs a package that is missing.
    """
    is_description = is_folder(path)
    path = path if is_description else find_config(path)
    cfg = read_description(path) if is_description else _read(path)
    options = dict(options or {})
    if 'lsj' in options:  # first: other options may name a transform of it
        use_jitter(cfg, options.pop('lsj'), path)
    if 'draft' in options:
        use_draft(cfg, options.pop('draft'), path)
    for option in options:
        _require_read(option, cfg, path)
        _require_known(option, cfg, path)
    data_root = options.pop('data_root', None)
    _merge(options, cfg, path)
    _require_spelled(cfg, path)
    _check_types(cfg, path)
    if data_root is not None:
        _move_data(cfg, data_root, path)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or str(Path('work_dirs') / Path(path).stem)
    return cfg


def _read(path: Path) -> Config:
    if not path.is_file():
        files = [
            *path.parent.glob('*.py'),
            *(CONFIGS.glob('*.py') if path.parent == Path() else ()),
        ]
        hint = did_you_mean(path.name, [file.name if path.suffix else file.stem for file in files])
        raise UserError(f'the config {path} does not exist{looked_in(path)}{hint}')
    try:
        with quiet():  # custom_imports import mmdet or mmseg
            return Config.fromfile(path)
    except (ImportError, AssertionError) as error:  # mmdet and mmseg assert versions
        cause = error
        while True:  # mmengine hides the cause
            if isinstance(cause, DependencyError):
                raise cause from None
            package = (getattr(cause, 'name', None) or '').partition('.')[0]
            if package in ('mmcv', 'mmdet', 'mmseg'):
                require(package)
            if (earlier := cause.__cause__ or cause.__context__) is None:
                break
            cause = earlier
        # Without mmengine's "please install mmsegmentation manually": onedl renames the package.
        missing = str(error.__cause__ or error).split(', please')[0]
        if getattr(cause, 'name', None) and cause.name not in missing:  # a module needs another
            missing, error = f'{missing} ({reason(cause)})', cause
        raise DependencyError(
            f'the config {path} cannot be read: {missing}. {remedy(error)}'
        ) from None
    except Exception as error:  # a config is code: it can raise anything
        base = _base_now(error) if isinstance(error, FileNotFoundError) else ''
        raise UserError(f'the config {path} cannot be read ({reason(error)}){base}') from None


def _base_now(error: FileNotFoundError) -> str:
    """Return the end of a sentence that says where a config of this package is now."""
    names = re.findall(r'[\w-]+\.py', str(error))
    base = next((CONFIGS / name for name in names if (CONFIGS / name).is_file()), None)
    return f'; its _base_ is now {base}' if base else ''


def _require_read(option: str, cfg: Config, path: Path) -> None:
    """Refuse an option that only the config file itself reads, to compute other values."""
    top = option.split('.')[0]
    if top not in cfg or top in READ:
        return
    read = {name: cfg[name] for name in READ if name in cfg}
    value = cfg[top]
    # Whether it is so rare that an equal value was computed from it.
    is_rare = bool(value) if isinstance(value, (*CONTAINERS, str)) else value not in range(-1, 16)
    places = sorted(place for place, node in nodes(read) if is_rare and node == value)
    listed = f': {", ".join(places)}' if places else ', such as train_cfg.max_iters'
    raise UserError(
        f'--cfg-options {option} would change nothing: {path} reads {top} to compute other '
        f'values; name those{listed}'
    )


def _require_known(option: str, cfg: Config, path: Path) -> None:
    """Refuse a misspelled option, which mmengine would add as a new value that nothing reads.

    Below the top level a new name may be an argument that the config leaves out, so it is an error
    only if it resembles an existing name.
    """
    node, known = cfg, {*cfg.keys(), *READ}
    names = option.split('.')
    while names:
        name = names.pop(0)
        choices = known - {'type'}  # which is not meant by dtype
        if name not in known and node is not cfg:
            choices |= _arguments(node, cfg)
        hint = did_you_mean(name, choices, cutoff=0.6 if node is cfg else 0.85)
        if node is cfg and not hint:
            below = [place for place, _ in nodes(cfg.to_dict()) if place.endswith(f'.{option}')]
            below.sort(key=lambda place: (not place.startswith('train'), len(place)))
            hint = did_you_mean(option, below[:1], cutoff=0)
        if name not in choices | known and (node is cfg or hint):
            raise UserError(f'--cfg-options {option}: {path} has no {name}{hint}')
        is_loop = node is cfg and name == 'train_cfg'  # models have a train_cfg as well
        node = node.get(name)
        while isinstance(node, (list, tuple)) and names and names[0].isdecimal():
            node = dict(enumerate(node)).get(int(names.pop(0)))
        if not isinstance(node, dict):
            break
        known = {*node.keys(), *(LIMITS if is_loop else ())}


def _require_spelled(cfg: Config, path: Path) -> None:
    """Refuse names that resemble a part of a run, because mmengine would ignore them."""
    for name in cfg.keys() - READ:
        if hint := did_you_mean(name, RUNNER_ARGUMENTS, cutoff=MISSPELLED):
            raise UserError(f'the config {path} has {name}, which nothing reads{hint}')


def _merge(options: dict[str, Any], cfg: Config, path: Path) -> None:
    if 'pretrained' in options:
        weights = options['pretrained']
        init_cfg = None if weights is None else dict(type='Pretrained', checkpoint=weights)
        options = options | {'model.backbone.init_cfg': init_cfg}
    try:
        cfg.merge_from_dict(options)
    except Exception as error:  # mmengine raises KeyError, IndexError, TypeError, AttributeError
        named = ' '.join(f'{name}={value}' for name, value in options.items())
        text = one_line(str(error.args[0] if error.args else error))
        raise UserError(f'--cfg-options {named} does not fit {path}: {text}') from None


def _check_types(cfg: Config, path: Path) -> None:
    """Refuse a part that is neither a dict nor None, by the types of the runner's arguments."""
    for name, hint in get_type_hints(Runner.__init__).items():
        kinds = {get_origin(kind) for kind in (hint, *get_args(hint))}
        value = cfg.get(name)
        if list in kinds and isinstance(value, (list, tuple)):
            parts = {f'{name}.{i}': item for i, item in enumerate(value)}
        elif list in kinds and dict not in kinds and value is not None:
            given = one_line(repr(value))
            raise UserError(f'the config {path}: {name}={given} is not a list of dicts')
        else:
            parts = {name: value} if dict in kinds else {}
        if name == 'default_hooks' and isinstance(value, dict):
            parts |= {f'{name}.{key}': hook for key, hook in value.items()}
        for place, part in parts.items():
            if part is not None and not isinstance(part, dict):
                raise UserError(
                    f'the config {path}: {place}={one_line(repr(part))} is not a dict with the '
                    'arguments of this part'
                )


def _arguments(node: dict, cfg: Config) -> set[str]:
    """Return the names of the arguments of a part's class, which the config may leave out."""
    if 'type' not in node or cfg.get('default_scope') not in BUILT_ON:
        return set()
    require_framework(cfg.default_scope)
    return arguments_of(registered_class(node['type'], cfg.default_scope))


def _move_data(cfg: Config, new_root: str, path: Path) -> None:
    if 'data_root' not in cfg:
        raise UserError(f'--cfg-options data_root: {path} has no data_root to replace')
    old_root = cfg.pop('data_root')
    new_root = str(new_root).rstrip('/') + '/'
    before = cfg.to_dict()

    def move(value: Any) -> Any:
        is_below = isinstance(value, str) and value.startswith(old_root)
        return new_root + value[len(old_root) :] if is_below else value

    for name in cfg:
        cfg[name] = replace_nodes(cfg[name], move)
    after = cfg.to_dict()
    is_moved = any(after[name] != before[name] for name in before if name != 'data_help')
    if new_root != old_root and not is_moved:
        raise UserError(
            f'--cfg-options data_root: no path of {path} starts with its {old_root}: name the '
            'folder of each dataset, such as train_dataloader.dataset.data_prefix.img'
        )
    cfg.data_root = new_root
