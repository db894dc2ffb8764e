"""A config file as it is read, with the options of the command line."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from ..base.environment import BUILT_ON, quiet, remedy, require, require_framework
from ..base.errors import (
    DependencyError,
    UserError,
    did_you_mean,
    list_folder_hint,
    one_line,
    reason,
)
from ..base.shipped import CONFIGS, find_config, is_folder
from .config_data import read_description
from .draft import use_draft
from .jitter import use_jitter
from .tree import arguments_of, nodes, registered_class, replace_nodes

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
PACKAGES = ('mmcv', 'mmdet', 'mmseg')
LIMITS = ('max_iters', 'max_epochs')  # of train_cfg; a recipe has one of them


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config file and apply the options of the command line.

    Six options do more than replace a value, because the value alone would leave the config
    contradicting itself: ``data_root=DIR`` moves every path that starts with the config's
    ``data_root``, ``max_iters=N`` makes the run, its schedule and its intervals longer or shorter,
    ``scale=(W, H)`` replaces the config's ``scale`` wherever images are resized to it,
    ``pretrained=WEIGHTS`` sets the weights that the backbone starts from (None: random weights),
    ``lsj=SIZE`` augments by large-scale jitter with copy-paste, and ``draft=True`` decodes JPEG
    files at the size that they are resized to.

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
    if is_folder(path):
        cfg = read_description(path)
    else:
        path = find_config(path)
        cfg = _read(path)
    _apply(dict(options or {}), cfg, path)
    _require_spelled(cfg, path)
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
        raise UserError(f'the config {path} does not exist{list_folder_hint(path)}{hint}')
    try:
        with quiet():  # custom_imports import mmdet or mmseg
            cfg = Config.fromfile(path)
    except (ImportError, AssertionError) as error:  # mmdet and mmseg assert versions
        raise _missing_package(path, error) from None
    except Exception as error:  # a config is code: it can raise anything
        require('torchvision')  # custom_imports import it, and its build may not fit torch
        raise UserError(
            _moved_base(path, error) or f'the config {path} cannot be read ({reason(error)})'
        ) from None
    if {'names', 'train'} <= cfg.keys() and 'model' not in cfg:
        raise UserError(
            f"{path} is a dataset in YOLO's format: tools/prepare_data.py yolo {quote(str(path))} "
            '--root data/NAME writes a config for it'
        )
    return cfg


def _moved_base(path: Path, error: Exception) -> str | None:
    """Return what to do about a base of another installation, or None for other errors."""
    missing = Path(getattr(error, 'filename', None) or '')
    if not isinstance(error, FileNotFoundError) or missing.name not in path.read_text('utf-8'):
        return None
    here = next(CONFIGS.rglob(missing.name), None) if missing.suffix == '.py' else None
    return here and (
        f'the config {path} cannot be read: its _base_ {missing} does not exist; this '
        f'installation has it as {here}: change the line'
    )


def _missing_package(path: Path, error: ImportError | AssertionError) -> DependencyError:
    """Return an error that names the package whose import failed, which mmengine hides."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DependencyError):
            return cause
        if (getattr(cause, 'name', None) or '').partition('.')[0] in PACKAGES:
            require(cause.name.partition('.')[0])  # raises an error that says what to install
        innermost, cause = cause, cause.__cause__ or cause.__context__
    name = getattr(innermost, 'name', None) or ''
    # Without mmengine's "please install mmsegmentation manually": onedl renames the package.
    missing = str(error.__cause__ or error).split(', please')[0]
    if name and name not in missing:  # a module needs another
        missing, error = f'{missing} ({reason(innermost)})', innermost
    return DependencyError(f'the config {path} cannot be read: {missing}. {remedy(error)}')


def _apply(options: dict[str, Any], cfg: Config, path: Path) -> None:
    if 'lsj' in options:  # first: other options may name a transform of it
        use_jitter(cfg, options.pop('lsj'), path)
    if 'draft' in options:
        use_draft(cfg, options.pop('draft'), path)
    if 'max_iters' in options:
        _set_length(cfg, options.pop('max_iters'), path)
    if 'scale' in options and 'scale' in cfg:
        _set_scale(cfg, options.pop('scale'))
    for option in options:
        _require_read(option, cfg, path)
        _require_name(option, cfg, path)
    data_root = options.pop('data_root', None)
    _merge(options, cfg, path)
    if data_root is not None:
        _move_data(cfg, data_root, path)


def _set_length(cfg: Config, max_iters: Any, path: Path) -> None:
    from .iterations import multiply_iterations

    before = (cfg.get('train_cfg') or {}).get('max_iters')
    if before is None:
        raise UserError(
            f'--cfg-options max_iters: {path} counts epochs; use train_cfg.max_epochs, and the '
            'milestones of its schedule'
        )
    if type(max_iters) is not int or max_iters < 1:
        raise UserError(f'--cfg-options max_iters={max_iters!r} must be an integer above 0')
    multiply_iterations(cfg, max_iters / before)
    if 'max_iters' in cfg:
        cfg.max_iters = max_iters


def _set_scale(cfg: Config, scale: Any) -> None:
    """Replace the size that images are resized to; an integer is the size of a square."""
    scale = [scale, scale] if type(scale) is int else scale
    is_size = isinstance(scale, (list, tuple)) and len(scale) == len(cfg.scale)
    if not is_size or not all(type(side) is int and side > 0 for side in scale):
        raise UserError(f'--cfg-options scale={scale!r} must be one or two integers above 0')
    before, cfg.scale = tuple(cfg.scale), tuple(scale)

    def resized(node: Any) -> Any:
        if isinstance(node, dict) and 'type' in node and node.get('scale') in (before, [*before]):
            node['scale'] = cfg.scale
        return node

    for name in cfg:
        cfg[name] = replace_nodes(cfg[name], resized)


def _require_read(option: str, cfg: Config, path: Path) -> None:
    """Refuse an option that only the config file itself reads, to compute other values."""
    top = option.split('.')[0]
    if top in cfg and top not in READ:
        raise UserError(
            f'--cfg-options {option} would change nothing: {path} reads {top} to compute other '
            'values; name those, such as train_cfg.max_iters'
        )


def _require_name(option: str, cfg: Config, path: Path) -> None:
    """Refuse a misspelled option, which mmengine would add as a new value that nothing reads.

    Below the top level a new name may be an argument that the config leaves out, so it is an error
    only if it resembles an existing name.
    """
    node, existing = cfg, {*cfg.keys(), *READ}
    names = option.split('.')
    while names:
        name = names.pop(0)
        choices = existing - {'type'}  # which is not meant by dtype
        if name not in existing and node is not cfg:
            choices |= _arguments(node, cfg)
        hint = did_you_mean(name, choices, cutoff=0.6 if node is cfg else 0.85)
        if node is cfg and not hint:
            below = [place for place, _ in nodes(cfg.to_dict()) if place.endswith(f'.{option}')]
            below.sort(key=lambda place: (not place.startswith('train'), len(place)))
            hint = did_you_mean(option, below[:1], cutoff=0)
        if name not in choices | existing and (node is cfg or hint):
            raise UserError(f'--cfg-options {option}: {path} has no {name}{hint}')
        is_loop = node is cfg and name == 'train_cfg'  # models have a train_cfg as well
        node = node.get(name)
        while isinstance(node, (list, tuple)) and names and names[0].isdecimal():
            node = dict(enumerate(node)).get(int(names.pop(0)))
        if not isinstance(node, dict):
            break
        existing = {*node.keys(), *(LIMITS if is_loop else ())}


def _require_spelled(cfg: Config, path: Path) -> None:
    """Refuse names that resemble a part of a run, because mmengine would ignore them."""
    for name in cfg.keys() - READ:
        if hint := did_you_mean(name, RUNNER_ARGUMENTS, cutoff=0.91):
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
