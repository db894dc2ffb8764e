"""A hook that stops a training without labels when its features collapse."""

from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import UserError
from ..checkpoints.training_state import COLLAPSED_STEPS
from . import order

GRACE = 0.1  # share of a training in which the features may have no spread yet
SPREAD = 'feature_spread'  # name in the outputs and the log of the model


@HOOKS.register_module()
class CollapseHook(Hook):
    """Stop a training without labels if all images get the same features.

    The hook reads ``feature_spread`` from the outputs of the model: about 1 if the features are
    spread over the sphere, 0 if they are constant. The value is averaged over all processes, so
    they stop together. The number of steps so far is saved in checkpoints, so a resumed run stops
    at the same step. Deep networks with a small LayerScale start with nearly equal features: in the
    first tenth of a training, steps count only after the spread has once reached the limit.

    Args:
        limit: The spread below which a step is counted.
        patience: The number of consecutive counted steps at which the run stops.

    Raises:
        UserError: After that number of steps, or before the first step if a batch has one image.
    """

    priority = order.COLLAPSE

    def __init__(self, limit: float = 0.05, patience: int = 100) -> None:
        self.limit, self.patience = limit, patience

    def before_train(self, runner: Runner) -> None:
        if runner.train_dataloader.batch_sampler.batch_size == 1:
            raise UserError(
                'train_dataloader.batch_size=1: the features of one image have no spread, so a '
                'collapse would not be noticed: write at least 2'
            )

    def after_train_iter(self, runner: Runner, outputs: dict[str, Any], **_: Any) -> None:
        spread = torch.as_tensor(outputs[SPREAD], dtype=torch.float32).detach().clone()
        all_reduce(spread, 'mean')
        hub = runner.message_hub
        steps = hub.runtime_info.get(COLLAPSED_STEPS)
        if not spread < self.limit:
            steps = 0
        elif steps is not None:
            steps += 1
        elif runner.iter >= GRACE * runner.max_iters:
            steps = 1
        else:  # with the small LayerScale of deep networks, features are nearly equal at first
            return
        hub.update_info(COLLAPSED_STEPS, steps)
        if steps >= self.patience:
            raise UserError(
                f'iteration {runner.iter + 1}: {SPREAD} has been below {self.limit:g} for {steps} '
                f'steps (now {spread:.2g}), so all images get the same features (collapse): lower '
                'optim_wrapper.optimizer.lr or the temperature of the teacher, make the crops of '
                'an image differ more, and look whether the images of the training data are all '
                'alike'
            )
