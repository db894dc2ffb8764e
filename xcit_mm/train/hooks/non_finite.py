"""Steps whose losses or gradients are not finite: skipped; too many of them stop the run."""

import math
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from ...base.errors import UserError
from ...base.files import write_whole
from ...base.run_files import NON_FINITE
from ..distributed import unwrapped
from . import order
from .step_info import StepInfoHook


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Skip steps whose gradients are not finite, and stop after too many in a row.

    With mixed precision the gradient scaler skips such a step and lowers its scale; without it one
    step would turn all weights into NaN. The running statistics of BatchNorm, which the forward
    pass has already changed, are restored as well. With a fused Adam or AdamW and the
    ``StepInfoHook``, the optimizer itself skips such a step, and Python does not wait for its
    gradients.

    Args:
        limit: Steps in a row. PyTorch's initial scale of 65,536 is halved to 2 in 16 of them.

    Raises:
        UserError: At the limit, with the iteration, the images, the loss terms, and a file for
            ``torch.load`` with the images (``inputs``), their files, the losses and the weights.
    """

    priority = order.NON_FINITE

    def __init__(self, limit: int = 16) -> None:
        self.limit = limit
        self._in_a_row = 0

    def before_train(self, runner: Runner) -> None:
        self._model = unwrapped(runner.model)
        self._statistics = [b for b in self._model.buffers() if b.is_floating_point()]
        self._good_statistics = [b.clone() for b in self._statistics]
        optimizer = runner.optim_wrapper.optimizer
        is_fused = isinstance(optimizer, (Adam, AdamW)) and all(
            group.get('fused') for group in optimizer.param_groups
        )
        infos = (hook for hook in runner.hooks if isinstance(hook, StepInfoHook))
        self._info = next(infos, None) if is_fused else None
        optimizer.register_step_pre_hook(self._skip_if_not_finite)

    def before_train_iter(self, runner: Runner, **_: Any) -> None:
        self._stepped = False

    def after_train_iter(
        self, runner: Runner, data_batch: Any = None, outputs: dict | None = None, **_: Any
    ) -> None:
        if self._info is not None:
            self._stepped = self._info.is_finite
        # This number is on the CPU already, for the log.
        loss = runner.message_hub.get_scalar('train/loss').current()
        skipped = runner.optim_wrapper.should_update() and not self._stepped
        if math.isfinite(loss) and not skipped:
            if self._stepped:  # False where gradients are only accumulated
                self._in_a_row = 0
            _copy(self._statistics, self._good_statistics)
            return
        _copy(self._good_statistics, self._statistics)
        self._in_a_row += 1
        losses = ((name, value) for name, value in (outputs or {}).items() if 'loss' in name)
        terms = ', '.join(f'{name} {value.item():g}' for name, value in losses)
        what = 'the gradient is not finite' if skipped else 'the loss is not finite'
        runner.logger.warning(
            f'Iteration {runner.iter + 1}: {what}, the step is skipped '
            f'({self._in_a_row} in a row; at {self.limit} the run stops): {terms}'
        )
        if self._in_a_row >= self.limit:
            self._stop(runner, data_batch or {}, what, terms)

    def _skip_if_not_finite(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """Make a step with such gradients change neither weights nor moments."""
        parameters = (p for group in optimizer.param_groups for p in group['params'])
        gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
        # The largest absolute value of a NaN is NaN.
        largest = torch._foreach_norm(gradients or [torch.zeros(1)], math.inf)
        is_finite = torch.stack([value.float() for value in largest]).isfinite().all().float()
        if self._info is not None:
            optimizer.found_inf = 1 - is_finite  # as a gradient scaler says it to the kernel
            self._info.unread[StepInfoHook.IS_FINITE] = is_finite
            return
        self._stepped = bool(is_finite)
        if not self._stepped:
            optimizer.zero_grad(set_to_none=True)

    def _stop(self, runner: Runner, batch: dict, what: str, terms: str) -> None:
        path = Path(runner.work_dir, f'{NON_FINITE}iter_{runner.iter + 1}_rank_{get_rank()}.pth')
        images = [str(sample.get('img_path')) for sample in batch.get('data_samples', [])]
        with write_whole(path) as file:
            # Large images are files that are read by windows.
            inputs = [
                image for image in batch.get('inputs', []) if isinstance(image, (Tensor, list))
            ]
            content = dict(inputs=inputs, images=images, losses=terms)
            torch.save(dict(meta={}, state_dict=self._model.state_dict(), **content), file)
        raise UserError(
            f'iteration {runner.iter + 1}: {what}, {self._in_a_row} times in a row ({terms}; '
            f'{", ".join(images)}); the batch and the weights are in {path}; start again, or from '
            'an earlier checkpoint as load_from, with a smaller optim_wrapper.optimizer.lr '
            '(--resume keeps the old one) or optim_wrapper.clip_grad.max_norm=1'
        )


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    if source:
        torch._foreach_copy_(target, source)
