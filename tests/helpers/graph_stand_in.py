"""A recorder of graphs that computes again on a CPU, and shares memory as CUDA graphs do."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import xcit_mm.network.graphs.model_parts


class StandIn:
    """Calls the function again where a graph would be replayed, and copies into static tensors.

    A recording computes no values and draws no random numbers, as far as its caller can see. The
    memory of all other graphs of the pool is overwritten, as if the graphs shared all of it.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.fails: Exception | None = None  # what the next recording raises
        self.is_full = False
        self.forget()

    def record(
        self, function: Callable[[], list[Tensor]]
    ) -> tuple[list[Tensor], Callable[[], None]]:
        self.recorded += 1
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        state = torch.get_rng_state()
        tensors = [x.detach().clone() for x in function()]
        torch.set_rng_state(state)
        pool = self._pool
        pool.append(tensors)
        _overwrite(tensors)

        def replay() -> None:
            for others in pool:
                if others is not tensors:
                    _overwrite(others)
            for static, x in zip(tensors, function(), strict=True):
                static.copy_(x.detach())

        return tensors, replay

    def has_room(self) -> bool:
        return not self.is_full

    def forget(self) -> None:
        self._pool: list[list[Tensor]] = []


def _overwrite(tensors: list[Tensor]) -> None:
    for x in tensors:
        if x.is_floating_point():
            x.fill_(math.nan)


def on_cpu(monkeypatch) -> list[StandIn]:
    """Let models on a CPU be captured by stand-ins, which are added to the list."""
    stand_ins: list[StandIn] = []

    def recorder_for(device: torch.device) -> StandIn:
        stand_ins.append(StandIn())
        return stand_ins[-1]

    monkeypatch.setattr(xcit_mm.network.graphs.model_parts, 'recorder_for', recorder_for)
    return stand_ins
