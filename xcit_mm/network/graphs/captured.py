"""A function of tensors of one size, as CUDA graphs of its forward and backward pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ..waits import counted
from .flat_gradients import Gradients, reached_parameters
from .recorder import Recorder

# The largest difference from an eager pass, relative to the norm of all outputs or all gradients.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
CONSTANTS = bool, int, float, str, type(None)  # what outputs may hold besides tensors


class CaptureError(RuntimeError):
    """The function cannot be captured; the message says why."""


class Pass:
    """A forward pass whose backward graph must be replayed before any other graph of its pool."""

    is_done = False


class Captured:
    """A function of tensors of one size, captured forward and, if gradients are enabled, backward.

    A call copies its tensors into static tensors and replays the graph. Outputs without gradients
    are copies. Those with gradients are static, and the next replay overwrites them. The gradients
    of parameters are copies: they are accumulated, averaged and clipped as always.

    A capture leaves random numbers and the buffers of modules as they are. Before, an eager pass
    must not wait for the device. Afterwards, its outputs and gradients are compared with those of
    the graphs. A function that communicates with other processes is neither watched nor compared,
    because the others would miss the eager pass.

    Args:
        function: Returns a structure with tensors.
        inputs: The tensors of a call.
        spec: Their structure as arguments and keywords.
        modules: All modules whose parameters and buffers the function uses.
        recorder: Records the graphs.
        gradients: Gradients of parameters that other sizes have; missing ones are added.
        communicates: Whether the function exchanges data with other processes.

    Raises:
        CaptureError: If the function waits for the device, or its graphs compute something else.
        RuntimeError: If the function does what a graph cannot hold, or the memory is full.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        spec: TreeSpec,
        modules: Sequence[nn.Module],
        recorder: Recorder,
        gradients: dict[tuple[nn.Parameter, ...], Gradients],
        communicates: bool,
    ) -> None:
        self._inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        self._computation = _Computation(function, self._inputs, spec)
        self._cotangents: list[Tensor] | None = None  # of the differentiable outputs
        with _undone(modules, inputs[0].device) as undo:
            expected = None if communicates else self._compute_eagerly(modules)
            undo()
            self._record(recorder, gradients)
            undo()
            if expected is not None:
                self._compare(*expected)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Any, Pass | None]:
        """Return the outputs, and the pass that awaits its backward pass, if there is one."""
        if not self._differentiable:
            outputs = self._replay_forward(inputs)
            return self._computation.structured([x.clone() for x in outputs]), None
        this = Pass()
        outputs = _Replay.apply(self, this, *inputs, *self._parameters)
        return self._computation.structured(outputs), this

    def _compute_eagerly(
        self, modules: Sequence[nn.Module]
    ) -> tuple[list[Tensor], dict[Tensor, Tensor]]:
        """Return the outputs, and the gradient of each input and parameter that has one."""

        def refuse(name: str) -> None:
            raise CaptureError(f'{name} waits for the device')

        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        sources = [x for x in (*self._inputs, *parameters) if x.requires_grad]
        with counted(refuse):
            outputs = self._computation.outputs()
            self._set_cotangents(outputs)
            gradients = self._computation.gradients(outputs, sources, self._cotangents)
        return [x.detach() for x in outputs], gradients

    def _set_cotangents(self, outputs: Sequence[Tensor]) -> None:
        self._differentiable = [i for i, x in enumerate(outputs) if x.requires_grad]
        self._cotangents = [
            torch.randn_like(outputs[i]) / math.sqrt(outputs[i].numel())
            for i in self._differentiable
        ]

    def _record(
        self, recorder: Recorder, gradients: dict[tuple[nn.Parameter, ...], Gradients]
    ) -> None:
        def forward() -> list[Tensor]:
            self._live = self._computation.outputs()
            return [x.detach() for x in self._live]

        def backward() -> list[Tensor]:
            by_source = self._computation.gradients(self._live, sources, self._cotangents)
            pairs = [(s, by_source[p]) for p, s in static.items() if p in by_source]
            if pairs:
                torch._foreach_copy_(*zip(*pairs, strict=True))
            self._parameters = [p for p in static if p in by_source]
            self._with_gradient = [x for x in self._inputs if x in by_source]
            return [by_source[x] for x in self._with_gradient]

        self._outputs, self._forward = recorder.record(forward)
        if self._cotangents is None:  # those of the eager pass are compared
            self._set_cotangents(self._live)
        if self._differentiable:
            inputs = dict.fromkeys(self._inputs)
            parameters = tuple(p for p in reached_parameters(self._live) if p not in inputs)
            if parameters not in gradients:
                gradients[parameters] = Gradients(parameters)
            self._gradients = gradients[parameters]
            static = dict(zip(parameters, self._gradients.static, strict=True))
            sources = [x for x in (*inputs, *parameters) if x.requires_grad]
            self._of_inputs, self._backward = recorder.record(backward)
        self._live = None  # the graphs hold what they need

    def _replay_forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            torch._foreach_copy_(self._inputs, list(inputs))
        self._forward()
        return [x.detach() for x in self._outputs]

    def _replay_backward(self, cotangents: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs, static, and of the parameters, copied."""
        torch._foreach_copy_(self._cotangents, list(cotangents))
        self._backward()
        of_inputs = dict(zip(self._with_gradient, self._of_inputs, strict=True))
        copies = dict(zip(self._gradients.parameters, self._gradients.copies(), strict=True))
        return *(of_inputs.get(x) for x in self._inputs), *(copies[p] for p in self._parameters)

    def _compare(self, outputs: list[Tensor], gradients: dict[Tensor, Tensor]) -> None:
        """Compare the graphs with an eager pass that had the same random numbers."""
        replayed = self._replay_forward(self._inputs)
        errors = dict(outputs=_relative_error(replayed, outputs))
        if self._differentiable:
            values = self._replay_backward([x.clone() for x in self._cotangents])
            places = [*self._inputs, *self._parameters]
            named = {x: g for x, g in zip(places, values, strict=True) if g is not None}
            if named.keys() != gradients.keys():
                raise CaptureError('its graphs differentiate other parameters than an eager pass')
            errors['gradients'] = _relative_error(
                [named[x] for x in gradients], list(gradients.values())
            )
        for what, error in errors.items():
            if not error <= TOLERANCES.get(self._computation.dtype, 0):  # also NaN
                raise CaptureError(
                    f'its graphs compute other {what} than an eager pass (by {error:.1e} of them)'
                )


class _Computation:
    """A function of static inputs, called as it is now: with gradients or without, in a dtype."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Tensor], spec: TreeSpec):
        self._function, self._inputs, self._spec = function, inputs, spec
        self._has_gradients = torch.is_grad_enabled()
        device = inputs[0].device.type
        is_mixed = torch.is_autocast_enabled(device)
        # Weights that autocast keeps would be cast outside of a graph, for all replays at once.
        self._autocast = dict(
            device_type=device,
            dtype=torch.get_autocast_dtype(device),
            enabled=is_mixed,
            cache_enabled=False,
        )
        self.dtype = self._autocast['dtype'] if is_mixed else inputs[0].dtype

    def outputs(self) -> list[Tensor]:
        """Call the function, and return the tensors among its outputs."""
        with torch.autocast(**self._autocast), torch.set_grad_enabled(self._has_gradients):
            args, options = tree_unflatten(self._inputs, self._spec)
            leaves, self._structure = tree_flatten(self._function(*args, **options))
        for x in leaves:
            if not isinstance(x, (Tensor, *CONSTANTS)):  # it may hold tensors
                raise CaptureError(f'it returns a {type(x).__name__}')
        self._constants = [None if isinstance(x, Tensor) else (x,) for x in leaves]
        return [x for x in leaves if isinstance(x, Tensor)]

    def gradients(
        self, outputs: Sequence[Tensor], sources: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> dict[Tensor, Tensor]:
        """Return the gradient of each source that has one."""
        roots = [x for x in outputs if x.requires_grad]
        if not (roots and sources):
            return {}
        values = torch.autograd.grad(roots, sources, cotangents, allow_unused=True)
        return {x: g for x, g in zip(sources, values, strict=True) if g is not None}

    def structured(self, tensors: Sequence[Tensor]) -> Any:
        """Return tensors in the structure of the outputs."""
        rest = iter(tensors)
        leaves = [next(rest) if c is None else c[0] for c in self._constants]
        return tree_unflatten(leaves, self._structure)


class _Replay(Function):
    """Replay the graphs of a :class:`Captured`; its tensors are the inputs and the parameters."""

    @staticmethod
    def forward(ctx, captured: Captured, this: Pass, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.captured, ctx.this = captured, this
        outputs = captured._replay_forward(tensors[: len(captured._inputs)])
        differentiable = set(captured._differentiable)
        constant = (x for i, x in enumerate(outputs) if i not in differentiable)
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        captured = ctx.captured
        if ctx.this.is_done:
            raise RuntimeError(
                'a second backward pass through the same CUDA graph: set graphs=False, or call the '
                'model again'
            )
        ctx.this.is_done = True
        roots = [cotangents[i] for i in captured._differentiable]
        return None, None, *captured._replay_backward(roots)


@contextmanager
def _undone(modules: Sequence[nn.Module], device: torch.device) -> Iterator[Callable[[], None]]:
    """Return a function that restores buffers and random numbers, and call it at the end."""
    buffers = [b for m in modules for b in m._buffers.values() if b is not None]
    saved = [b.clone() for b in buffers]
    on_gpu = device.type == 'cuda'
    states = torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None

    def undo() -> None:
        for buffer, before in zip(buffers, saved, strict=True):
            buffer.data.copy_(before)  # for autograd, as unchanged as by BatchNorm itself
        torch.set_rng_state(states[0])
        if on_gpu:
            torch.cuda.set_rng_state(states[1], device)

    try:
        yield undo
    finally:
        undo()


def _relative_error(tensors: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of the difference over the norm of what is expected; 0 if it is not finite.

    The gradients of single parameters may be zero but for rounding, so all count together.
    """
    pairs = zip(tensors, expected, strict=True)
    difference = float(sum((x.double() - y.double()).square().sum() for x, y in pairs))
    total = float(sum(y.double().square().sum() for y in expected))
    return math.sqrt(difference / total) if math.isfinite(total) and total else 0.0
