"""Recording of a graph with ``torch.export``, for images of any size."""

import inspect

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from ....base.environment import quiet
from ....base.errors import UserError, reason
from .graph import Graph

AXES = {0: 'batch', 2: 'height', 3: 'width'}


def capture(graph: Graph) -> ExportedProgram:
    """Return the program of a graph.

    Raises:
        UserError: If the operations of the graph depend on the values of its tensors.
    """
    size = (graph.side, graph.side) if graph.side else (224, 288)
    example = torch.zeros(2 if graph.batched else 1, graph.channels, *size)
    axes = dict.fromkeys(axes_of(graph), Dim.DYNAMIC)
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(graph, (example,), dynamic_shapes=(axes,), strict=False)
    except (RuntimeError, ValueError, torch._dynamo.exc.UserError) as error:
        raise UserError(
            f'{type(graph.model).__name__} cannot be exported as a whole ({reason(error)}): '
            '--part backbone exports its maps'
        ) from error


def module_of(program: ExportedProgram) -> nn.Module:
    """Return the module of a program without the guards that recent versions of PyTorch add.

    The guards refuse images whose padding changes the memory format of a tensor, although the
    program is right for them, too.
    """
    has_guards = 'check_guards' in inspect.signature(program.module).parameters
    return program.module(**(dict(check_guards=False) if has_guards else {}))


def axes_of(graph: Graph) -> dict[int, str]:
    """Return the axes of the image whose length is dynamic, and their names."""
    dynamic = {0: graph.batched, 2: not graph.side, 3: not graph.side}
    return {axis: name for axis, name in AXES.items() if dynamic[axis]}
