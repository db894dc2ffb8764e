"""The state of a training run in a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from ...base.errors import UserError
from ..distributed import unwrapped
from .regroup import regroup

# Keys of the message hub, which is a part of a checkpoint.
BAD_DATA = 'bad_data'  # file to reason
STEP_LAYOUT = 'step_layout'  # images a step, steps an epoch
COLLAPSED_STEPS = 'collapsed_steps'  # how many in a row
SCORES = 'validation_scores'  # iteration to the metric that early stopping monitors
RECIPE = 'recipe'  # values of the config by their places, as texts
PARTS = 'state_dict', 'meta', 'message_hub', 'optimizer'  # of a checkpoint that can be resumed


def require_training_state(checkpoint: Any, path: str | Path) -> None:
    """Require the parts that a run resumes from, which files of weights lack."""
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    missing = [name for name in PARTS if not isinstance(parts.get(name), Mapping)]
    if missing or 'iter' not in parts['meta']:
        raise UserError(
            f'{path} cannot be resumed, because it holds no valid {", ".join(missing or ["meta"])}'
            f'; to start from its weights: --cfg-options load_from={path}'
        )


def fit_training_state(checkpoint: dict[str, Any], runner: Runner, path: str | Path) -> None:
    """Regroup the state of the optimizer and the schedulers as in this run.

    Raises:
        UserError: If the weights were averaged and this run does not average them.
        ValueError: If the groups of the optimizer do not fit.
    """
    if isinstance(runner.optim_wrapper, OptimWrapper):
        regroup(checkpoint, runner.optim_wrapper, unwrapped(runner.model))
    averages = any(isinstance(hook, EMAHook) for hook in runner.hooks)
    if 'ema_state_dict' in checkpoint and not averages:
        raise UserError(
            f'{path} belongs to a run that averages its weights: resume it with its '
            'default_hooks.ema options'
        )
