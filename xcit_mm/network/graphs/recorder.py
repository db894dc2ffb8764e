"""The recording of CUDA graphs in one pool of memory."""

from collections.abc import Callable

import torch
from torch import Tensor

MIN_FREE_SHARE = 0.2  # of the GPU's memory, for sizes that run eagerly


class Recorder:
    """Records what functions start on a GPU, in graphs that share one pool of memory.

    The pool reuses what a graph needs only while it runs. So the backward pass of a graph must be
    replayed before the forward pass of another one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self.forget()

    def record(
        self, function: Callable[[], list[Tensor]]
    ) -> tuple[list[Tensor], Callable[[], None]]:
        """Record a function without executing what it starts.

        Returns the tensors that it returns, and what executes it and writes their values.

        Raises:
            RuntimeError: If the function does what a graph cannot hold, or the memory is full.
        """
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[self._device.index]
        state = generator.clone_state()
        # The thread that pins memory calls what a capture in 'global' mode forbids.
        mode = dict(capture_error_mode='thread_local')
        cause = None
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, **mode):
                try:
                    tensors = function()
                except RuntimeError as error:
                    cause = error  # the end of the broken capture raises another error
                    raise
        except RuntimeError as error:
            # After a broken capture, the generator would take any draw for a part of it.
            generator.graphsafe_set_state(state)
            raise (cause or error) from None
        return tensors, graph.replay

    def has_room(self) -> bool:
        """Return whether memory is left for another size, besides the sizes that run eagerly."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        memory = torch.cuda.max_memory_allocated(self._device)
        eager_step = memory - torch.cuda.memory_allocated(self._device)
        return free > max(MIN_FREE_SHARE * total, eager_step)

    def forget(self) -> None:
        """Begin another pool; the memory of this one is free as soon as its graphs are deleted."""
        self._pool = torch.cuda.graph_pool_handle()


def recorder_for(device: torch.device) -> Recorder | None:
    """Return a recorder for a device, or None if the device has no graphs."""
    return Recorder(device) if device.type == 'cuda' else None
