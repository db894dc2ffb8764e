"""What a config counts in iterations."""

from typing import Any

from mmengine.config import Config

from .tree import class_name, typed_nodes

SCHEDULER = 'begin', 'end', 'milestones', 'T_max', 'step_size', 'total_steps', 'periods'
LOOP = 'max_iters', 'val_interval', 'val_begin', 'dynamic_intervals'
CHECKPOINTS = 'interval', 'save_begin'
AVERAGES = 'begin_iter', 'interval', 'gamma'


def multiply_iterations(cfg: Config, factor: float) -> None:
    """Make a run longer or shorter: multiply all numbers of iterations, rounded, at least 1.

    These are the lengths of the run and of its schedule, and the intervals of validations,
    checkpoints and averages of the weights. Values in epochs stay.
    """
    counted = []
    for _, scheduler in typed_nodes(cfg.get('param_scheduler') or [], ''):
        if not scheduler.get('by_epoch', True):
            counted.append((scheduler, SCHEDULER))
            if class_name(scheduler['type']).startswith('Exponential'):  # gamma of an iteration
                scheduler['gamma'] **= 1 / factor
    if 'max_iters' in cfg.train_cfg:
        cfg.train_cfg.setdefault('val_interval', 1000)  # mmengine's default
        counted.append((cfg.train_cfg, LOOP))
    checkpoint = (cfg.get('default_hooks') or {}).get('checkpoint')
    if checkpoint is not None and not checkpoint.get('by_epoch', True):
        counted.append((checkpoint, CHECKPOINTS))
    for hook in averages(cfg):
        hook.setdefault('interval', 1)
        if hook.get('ema_type') == 'ExpMomentumEMA':
            hook.setdefault('gamma', 2000)  # mmengine's default
        counted.append((hook, AVERAGES))
    for node, names in counted:
        node.update({name: _times(node[name], factor) for name in names if name in node})
        if names is SCHEDULER and {'begin', 'end'} <= node.keys():
            node['end'] = max(node['end'], node['begin'] + 1)  # mmengine needs an iteration


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_times(inner, factor) for inner in value)
    return max(1, round(value * factor)) if type(value) is int and value > 0 else value


def averages(cfg: Config) -> list[dict]:
    """Return the hooks that average the weights."""
    parts = (cfg.get(part) or [] for part in ('default_hooks', 'custom_hooks'))
    nodes = (node for part in parts for _, node in typed_nodes(part, ''))
    return [node for node in nodes if 'EMAHook' in class_name(node['type'])]
