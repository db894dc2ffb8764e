"""A part of a model that is captured for each size of its inputs that comes again."""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ...base.errors import is_out_of_memory, reason
from .captured import Captured, CaptureError, Pass
from .flat_gradients import Gradients
from .recorder import Recorder

FULL = 'too little memory of the GPU is free for more'
NO_MEMORY = 'a size runs without them, because the memory of the GPU is too small for its graphs'
HOOKED = 'runs without them while a module has a hook, which a graph would not call'


class GraphedPart:
    """A function of tensors that replays CUDA graphs for sizes that come again.

    A size is captured the second time that it comes. If as many sizes as possible are captured, a
    size that came twice as often replaces the one that came least often. Other sizes run eagerly,
    and so does a call whose predecessor still awaits its backward pass.

    Args:
        name: The name of the function, for messages.
        function: Takes and returns structures of tensors, and nothing else.
        module: The model that holds all parameters and buffers of the function.
        device: The device of the model.
        recorder: Records the graphs of this part.
        max_sizes: The largest number of captured sizes.
        communicates: Whether the function exchanges data with other processes.
        note: Called with a sentence when the part, or a size, runs eagerly from now on.
        on_failure: Called after a failed capture, which no graph of the model outlives.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        module: nn.Module,
        device: torch.device,
        recorder: Recorder,
        max_sizes: int,
        communicates: bool,
        note: Callable[[str], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.name, self.function = name, function
        self.calls = self.replays = 0
        self.max_sizes = max_sizes
        self._module, self._device = module, device
        self._recorder, self._communicates = recorder, communicates
        self._note, self._on_failure = note, on_failure
        self._reason: str | None = None  # why nothing is captured
        self._had_hooks = False
        self._layout: Hashable = None
        self._counts: Counter[Hashable] = Counter()
        self._too_large: set[Hashable] = set()  # sizes
        self._gradients: dict[tuple[nn.Parameter, ...], Gradients] = {}
        self._pending: Callable[[], Pass | None] = lambda: None
        self.forget()

    def forget(self) -> None:
        """Delete all graphs; sizes are captured again when they come."""
        self._captured: dict[Hashable, Captured] = {}
        self._recorder.forget()

    @property
    def num_sizes(self) -> int:
        return len(self._captured)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        inputs, spec = tree_flatten((args, options))
        captured = self._captured_for(inputs, spec) if self._may_replay(inputs) else None
        if captured is None:
            return self.function(*args, **options)
        self.replays += 1
        outputs, this = captured(inputs)
        if this is not None:
            self._pending = weakref.ref(this)
        return outputs

    def _may_replay(self, inputs: list[Any]) -> bool:
        before = self._pending()
        if self._reason is not None or (before is not None and not before.is_done):
            return False
        device = self._device
        if not (inputs and all(isinstance(x, Tensor) and x.device == device for x in inputs)):
            self._give_up(f'not all of its arguments are tensors on the device {device}')
        return self._reason is None

    def _captured_for(self, inputs: list[Tensor], spec: Any) -> Captured | None:
        modules = list(self._module.modules())
        if any(map(_has_hooks, modules)):
            if not self._had_hooks:  # they may be removed again
                self._note(f'CUDA graphs: {self.name} {HOOKED}')
            self._had_hooks = True
            return None
        layout = _layout(modules)
        if layout != self._layout:  # parameters were replaced or frozen, or training began or ended
            self.forget()
            self._layout = layout
        tensors = tuple((x.shape, x.dtype, x.requires_grad) for x in inputs)
        size = tensors, str(spec), _mode(inputs[0].device.type)
        self._counts[size] += 1
        if size not in self._captured and self._makes_room_for(size):
            self._capture(size, inputs, spec, modules)
        return self._captured.get(size)

    def _makes_room_for(self, size: Hashable) -> bool:
        count = self._counts[size]
        if count < 2 or size in self._too_large:
            return False
        if len(self._captured) < self.max_sizes:
            if self._recorder.has_room():
                return True
            self.max_sizes = len(self._captured)
            self._note(f'CUDA graphs: {self.name} keeps {self.max_sizes} sizes of batches: {FULL}')
        rarest = min(self._captured, key=self._counts.__getitem__, default=None)
        if rarest is None or count < 2 * self._counts[rarest]:
            return False
        del self._captured[rarest]
        return True

    def _capture(
        self, size: Hashable, inputs: list[Tensor], spec: Any, modules: list[nn.Module]
    ) -> None:
        arguments = modules, self._recorder, self._gradients, self._communicates
        try:
            self._captured[size] = Captured(self.function, inputs, spec, *arguments)
        except RuntimeError as error:  # also PyTorch's OutOfMemoryError and errors of CUDA
            if is_out_of_memory(error):
                self._too_large.add(size)
                self._note(f'CUDA graphs: {self.name}: {NO_MEMORY}')
                self.max_sizes = len(self._captured) or self.max_sizes
            else:
                self._give_up(str(error) if isinstance(error, CaptureError) else reason(error))
        else:
            return
        self._on_failure()

    def _give_up(self, why: str) -> None:
        self._reason = why
        self._note(f'CUDA graphs: {self.name} runs without them: {why}')


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _mode(device: str) -> Hashable:
    gradients = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return gradients, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _layout(modules: list[nn.Module]) -> Hashable:
    """Return what all graphs depend on."""
    parameters = (p for m in modules for p in m._parameters.values() if p is not None)
    return (
        tuple(module.training for module in modules),
        tuple((p.data_ptr(), p.requires_grad) for p in parameters),
    )
