"""CUDA graphs in training."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..distributed import unwrapped
from . import order
from .leave_out_padding import LeaveOutPaddingHook


@HOOKS.register_module()
class GraphsHook(Hook):
    """Replay CUDA graphs of backbone, neck and dense heads in the steps of a training.

    Each size of a batch is captured the second time that it comes. ``graphs=True`` in a config, or
    ``tools/train.py --graphs``, adds this hook. See :class:`~xcit_mm.network.graphs.GraphedModel`.

    Args:
        max_sizes: The largest number of sizes that are captured at a time.
    """

    priority = order.GRAPHS

    def __init__(self, max_sizes: int = 16) -> None:
        self._max_sizes = max_sizes
        self._model = None
        self._steps = self._replayed = 0

    def before_train(self, runner: Runner) -> None:
        why = _reason_against(runner)
        if why is not None:
            runner.logger.warning(f'CUDA graphs: nothing is captured: {why}')
            return
        from ...network.graphs import GraphedModel

        model = unwrapped(runner.model)
        self._model = GraphedModel(model, runner.logger.warning, self._max_sizes)

    def before_train_iter(self, runner: Runner, **_: Any) -> None:
        if self._model is not None:
            self._before = self._model.counts
            self._model.attach()

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        if self._model is None:
            return
        self._model.detach()
        calls, replays = (
            now - before for now, before in zip(self._model.counts, self._before, strict=True)
        )
        self._steps += 1
        self._replayed += 0 < replays == calls

    def before_val(self, runner: Runner) -> None:
        self._log(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self._log(runner)

    def _log(self, runner: Runner) -> None:
        if self._model is not None and self._model.parts:
            runner.logger.info(
                'CUDA graphs: %d of %d steps ran captured; captured sizes of batches: %d',
                self._replayed,
                self._steps,
                self._model.num_sizes,
            )


def _reason_against(runner: Runner) -> str | None:
    if is_model_wrapper(runner.model) and not isinstance(runner.model, MMDistributedDataParallel):
        return f'{type(runner.model).__name__} replaces parameters or streams images'
    if any(isinstance(hook, LeaveOutPaddingHook) for hook in runner.hooks):
        return 'LeaveOutPaddingHook depends on the sizes of the images, not only of the batch'
    return None
