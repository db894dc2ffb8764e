"""Early stopping that a resumed run decides in the same way as an uninterrupted run."""

import operator
import re
from typing import Any

from mmengine.hooks import EarlyStoppingHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import UserError, did_you_mean
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from ..checkpoints.training_state import SCORES
from . import order

# Our metrics. mmengine infers a rule from parts of a name, which may belong to the name of a class.
GREATER = re.compile(r'([\w-]+/)?((bbox|segm)_AP|[PSR]Q|delta1)\d*(_.*)?', re.DOTALL)
LESS = re.compile(r'([\w-]+/)?(MAE|RMSE)')


@HOOKS.register_module()
class ResumableEarlyStoppingHook(EarlyStoppingHook):
    """mmengine's ``EarlyStoppingHook`` with its state in the checkpoints.

    The state is the score of each validation by its iteration, and all decisions of the hook follow
    from these scores. A resumed run, which may repeat a validation, therefore stops at the same
    iteration as an uninterrupted run. The run ends with a checkpoint of the iteration at which it
    stops. If the gradients of an update are incomplete there, the newest checkpoint is an earlier
    one, as ``interval`` of the checkpoint hook has written it.

    Args:
        monitor: The metric of a validation, such as 'coco/bbox_mAP' or 'mIoU'.
        min_delta: A better score is an improvement only if it differs by more than this, in the
            unit of the metric. (The default of mmengine's hook, 0.1, is ten points of COCO's
            metrics.)
        patience: The number of consecutive validations without an improvement after which the run
            stops.
        kwargs: Arguments of mmengine's hook.

    Raises:
        ValueError: If the name of the metric does not tell whether more or less is better.
        UserError: If a validation has no such metric.
    """

    priority = order.STOPPING
    rule_map = {'greater': operator.ge, 'less': operator.le}  # an equal score is not an improvement

    def __init__(
        self, monitor: str, *, min_delta: float = 0.0, patience: int = 5, **kwargs: Any
    ) -> None:
        super().__init__(monitor, min_delta=min_delta, patience=patience, **kwargs)
        self._worst = self.best_score

    def _init_rule(self, monitor: str) -> str:
        if GREATER.fullmatch(monitor):
            return 'greater'
        return 'less' if LESS.fullmatch(monitor) else super()._init_rule(monitor)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, Any] | None = None) -> None:
        metrics = metrics or {}
        if self.monitor not in metrics:
            hint = did_you_mean(self.monitor, metrics) or f': name one of {", ".join(metrics)}'
            raise UserError(f'EarlyStoppingHook: a validation has no metric {self.monitor}{hint}')
        scores = dict(runner.message_hub.runtime_info.get(SCORES, {}))
        scores[runner.iter] = float(metrics[self.monitor])
        runner.message_hub.update_info(SCORES, scores)
        why = self._why_to_stop(scores)
        if why is not None:
            runner.train_loop.stop_training, runner.train_loop.stop_reason = True, why
            runner.logger.info(f'The training stops early: {why}')
            for hook in runner.hooks:  # without the gradients of an unfinished update
                if isinstance(hook, WholeCheckpointHook) and runner.optim_wrapper.should_update():
                    hook.save_unscheduled(runner, runner.iter)

    def _why_to_stop(self, scores: dict[int, float]) -> str | None:
        """Show the scores to mmengine's hook in their order, and return its reason to stop."""
        self.best_score, self.wait_count = self._worst, 0
        best, stops, why = 0, False, ''
        for iteration, score in sorted(scores.items()):
            stops, why = self._check_stop_condition(score)
            best = best if self.wait_count else iteration
        if not stops:
            return None
        if self.wait_count >= self.patience:
            why = (
                f'{self.monitor} has not improved on {self.best_score:.4g} of iteration {best} in '
                f'{self.wait_count} validations'
            )
        return f'{why.strip()} (iteration {max(scores)})'
