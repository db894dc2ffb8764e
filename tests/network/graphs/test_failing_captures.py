"""What is not captured runs as without graphs, and says why once."""

import pytest
import torch
from helpers.graph_stand_in import on_cpu
from helpers.graphed_network import Network, Notes, of_network, step
from torch import Tensor, nn

from xcit_mm.network.graphs.graphed_part import FULL, NO_MEMORY


class Wait(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.max().item() > 0 else -x


class OnCPU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # another result in each call: Python does not run in a replay
        return x * self.calls


def test_nothing_is_captured_without_a_gpu():
    notes = Notes()
    graphs = notes.graphs(Network())
    assert graphs.parts == []
    assert notes == ['CUDA graphs need a GPU: everything runs without them on the cpu']
    graphs.attach()
    graphs.detach()


@pytest.mark.parametrize(
    ('layer', 'why'),
    [
        (Wait(), '_local_scalar_dense waits for the device'),
        (OnCPU(), 'its graphs compute other outputs than an eager pass'),
    ],
)
def test_a_part_that_cannot_be_captured_runs_eagerly_and_says_why_once(monkeypatch, layer, why):
    on_cpu(monkeypatch)
    model, notes = Network(layer), Notes()
    graphs = notes.graphs(model)
    for _ in range(4):
        step(model, graphs, lambda: of_network(model, 8))
    (note,) = notes
    assert note.startswith(f'CUDA graphs: the backbone with the neck runs without them: {why}')
    assert [part.replays for part in graphs.parts] == [0, 3]


def test_hooks_of_modules_are_called(monkeypatch):
    on_cpu(monkeypatch)
    model, notes, calls = Network(), Notes(), []
    graphs = notes.graphs(model)
    model.backbone[0].register_forward_hook(lambda *_: calls.append(1))
    for _ in range(3):
        step(model, graphs, lambda: of_network(model, 8))
    assert len(calls) == 3 and graphs.parts[0].replays == 0
    assert notes == [
        'CUDA graphs: the backbone with the neck runs without them while a module has a hook, '
        'which a graph would not call'
    ]
    model.backbone[0]._forward_hooks.clear()
    for _ in range(3):
        step(model, graphs, lambda: of_network(model, 8))
    assert graphs.parts[0].replays == 2


def test_without_memory_for_a_capture_the_others_stay(monkeypatch):
    recorders = on_cpu(monkeypatch)
    model, notes = Network(), Notes()
    graphs = notes.graphs(model)
    recorder, part = recorders[0], graphs.parts[0]
    for size in (8, 8, 10, 10, 12, 12, 12, 10, 8):
        if (size, part.num_sizes) == (12, 2):
            recorder.fails = torch.OutOfMemoryError('CUDA out of memory.')
        step(model, graphs, lambda size=size: of_network(model, size))
    assert notes == [f'CUDA graphs: the backbone with the neck: {NO_MEMORY}']
    # The pool was dropped, and 10 and 8 were captured again when they came.
    assert part.num_sizes == part.max_sizes == 2


def test_nothing_is_captured_where_too_little_memory_is_free(monkeypatch):
    recorders = on_cpu(monkeypatch)
    model, notes = Network(), Notes()
    graphs = notes.graphs(model)
    for recorder in recorders:
        recorder.is_full = True
    for _ in range(3):
        step(model, graphs, lambda: of_network(model, 8))
    assert graphs.counts == (6, 0)
    assert notes[0] == (f'CUDA graphs: the backbone with the neck keeps 0 sizes of batches: {FULL}')
