"""Gradients of parameters that a graph writes to one place, and that one kernel copies from it."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

ALIGNMENT = 64  # numbers: kernels read aligned gradients several at a time


class Gradients:
    """Static gradients of parameters, one tensor of memory for each dtype."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self._offsets = parameters, []
        sizes: dict[torch.dtype, int] = {}
        for parameter in parameters:
            offset = sizes.get(parameter.dtype, 0)
            self._offsets.append(offset)
            sizes[parameter.dtype] = offset + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self._memory = {
            dtype: torch.zeros(size, dtype=dtype, device=parameters[0].device)
            for dtype, size in sizes.items()
        }
        self.static = self._views(self._memory)

    def copies(self) -> list[Tensor]:
        """Return the gradients in new memory, in the layout of the parameters.

        PyTorch takes such gradients as they are. It would also take the static ones, and the next
        replay would overwrite what an optimizer has not yet read.
        """
        return self._views({dtype: memory.clone() for dtype, memory in self._memory.items()})

    def _views(self, memory: Mapping[torch.dtype, Tensor]) -> list[Tensor]:
        places = zip(self.parameters, self._offsets, strict=True)
        return [memory[p.dtype].as_strided(p.size(), p.stride(), offset) for p, offset in places]


def reached_parameters(outputs: Sequence[Tensor]) -> Iterator[nn.Parameter]:
    """Yield the leaves that require gradients below the outputs of a function, each once."""
    nodes, seen = [x.grad_fn for x in outputs if x.grad_fn is not None], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, 'variable'):
            yield node.variable
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
