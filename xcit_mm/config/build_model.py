"""The model of a config to predict, export or count with, and the errors of parts of a config.

The runners of training and of tests build their own models.
"""

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope, build_from_cfg
from torch import Tensor, nn

from ..base.environment import quiet, require, require_framework, require_one_stack
from ..base.errors import ConfigError, UserError, did_you_mean, reason
from ..base.files import is_disk_full
from ..network import XCiT
from ..network.models import ImageXCiT
from ..network.weights.names import HEAD, detector_state, model_state
from ..network.weights.pretrained import read_all_safely
from .aligned_maps import align_maps
from .load import READ
from .replacements import replace_classes
from .rules import check_backbone
from .tree import FRAMEWORKS, arguments_of, registered_class, registered_names, typed_nodes

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
INHERITED = '; if the base config sets it, replace the whole part with _delete_=True'


def build_model(cfg: Config, device: str) -> nn.Module:
    """Build the detector or segmentor of a config in evaluation mode, without reading any weights.

    ``device`` is 'cpu', or 'meta' for shapes that take no memory.
    """
    framework = cfg.get('default_scope')
    if cfg.get('model') is None:
        raise UserError(f'the config {cfg.filename} has no model')
    if framework not in FRAMEWORKS:
        choices = ', '.join(FRAMEWORKS)
        raise UserError(f'{cfg.filename}: default_scope={framework!r} is not one of {choices}')
    check_backbone(cfg)
    replace_classes(cfg, ('model',))
    align_maps(cfg)
    require_one_stack()
    require('mmcv')
    require_framework(framework)
    scope = DefaultScope.overwrite_default_scope(framework)
    # Some detectors of mmdet load a teacher when they are built.
    trust = read_all_safely(trusted=False)
    with config_errors(cfg), torch.device(device), scope, quiet(), trust:
        return revert_sync_batchnorm(MODELS.build(cfg.model)).eval()


def weights_for(model: nn.Module, checkpoint: Any, path: str) -> dict[str, Tensor]:
    """Return the weights of a detector or segmentor in what a file holds, under our names."""
    state = model_state(checkpoint, path)
    backbone = getattr(model, 'backbone', None)
    is_of_maps = isinstance(backbone, XCiT) and not isinstance(backbone, ImageXCiT)
    return detector_state(state) if is_of_maps else state


def without_other_heads(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """Drop the tensors of the heads that do not fit, and return the names that are missing then."""

    def is_of_head(name: str) -> bool:
        return name.split('.')[0].endswith(HEAD)

    sizes = {name: value.shape for name, value in wanted.items()}
    fitting = {k: v for k, v in state.items() if not is_of_head(k) or sizes.get(k) == v.shape}
    return fitting, {name for name in wanted if is_of_head(name) and name not in fitting}


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
        problem = f'the config {cfg.filename}: {place}: {reason(error)}'
        if (unexpected := UNEXPECTED.search(str(error))) and isinstance(error, TypeError):
            arguments = arguments_of(registered_class(kind, cfg.get('default_scope', 'mmengine')))
            hint = did_you_mean(unexpected[1], arguments)
            raise UserError(problem + (hint or INHERITED)) from error
        raise ConfigError(problem) from error


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
