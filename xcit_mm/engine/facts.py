"""What a run is, for those who read its curves: config, parameters, versions, hardware."""

import platform
import time
from collections import Counter
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn

from ..environment import STACKS, installed
from .loops import DATA_SHARE

PACKAGES = ('torch', 'torchvision', *(name for stack in STACKS.values() for name in stack), 'numpy')


def facts_of(runner: Runner) -> dict[str, Any]:
    """Collect them.

    Args:
        runner: Of a training that is about to begin or go on.

    Returns:
        What JSON can hold: ``config`` (its path) and ``config_text``, ``started``,
        ``iterations`` and ``epochs`` (as planned), ``images a step`` and ``steps an epoch``,
        ``processes``, ``hardware``, ``parameters`` by part of the model, ``versions`` by package.
    """
    facts = dict(
        config=str(runner.cfg.filename),
        config_text=runner.cfg.pretty_text,
        started=time.strftime('%Y-%m-%d %H:%M:%S'),
        iterations=runner.max_iters,
        processes=get_world_size(),
        hardware=_hardware(),
    )
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        facts['epochs'] = runner.max_epochs
    facts |= runner.message_hub.runtime_info.get(DATA_SHARE, {})
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    return dict(**facts, parameters=_parameters(model), versions=_versions())


def _parameters(model: nn.Module) -> dict[str, int]:
    """How many there are, in the model and in each of its parts."""
    parts = {'all': model, **dict(model.named_children())}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    counts['trained'] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {name: count for name, count in counts.items() if count}


def _versions() -> dict[str, str]:
    from .. import __version__  # known once the package is imported

    found = {name: installed(name) for name in PACKAGES}
    return {
        'xcit_mm': __version__,
        'Python': platform.python_version(),
        **{name: version for name, version in found.items() if version is not None},
        'system': platform.platform(),
    }


def _hardware() -> str:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not names:
        return f'{platform.machine()} CPU, {torch.get_num_threads()} threads a process'
    return ', '.join(f'{count} x {name}' for name, count in Counter(names).items())
