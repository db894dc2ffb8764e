"""What is captured and replayed, with a stand-in that computes again on a CPU."""

import pytest
import torch
from helpers.graph_stand_in import on_cpu
from helpers.graphed_network import Network, Notes, image, of_network, step
from torch import nn

from xcit_mm.network.graphs import model_parts


def test_a_forward_pass_that_is_dropped_does_not_end_the_replays(monkeypatch):
    on_cpu(monkeypatch)
    model, notes = Network(), Notes()
    graphs = notes.graphs(model)
    graphs.attach()
    for _ in range(4):
        model.loss(image(8))
    assert graphs.parts[0].replays == 3


def test_a_second_backward_pass_is_refused(monkeypatch):
    on_cpu(monkeypatch)
    model = Network()
    Notes().graphs(model).attach()
    for _ in range(2):
        (x,) = model.extract_feat(image(8))
    x.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r'second backward pass .* graphs=False'):
        x.sum().backward()


def test_other_modes_and_replaced_parameters_are_captured_again(monkeypatch):
    recorder = on_cpu(monkeypatch)
    model = Network()
    graphs = Notes().graphs(model)
    changes = (
        lambda: None,
        lambda: model.backbone[1].eval(),
        lambda: model.backbone[0].weight.requires_grad_(False),
        lambda: setattr(model.neck, 'weight', nn.Parameter(torch.ones(1))),
    )
    for number, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            step(model, graphs, lambda: of_network(model, 8))
        assert recorder[0].recorded == 2 * number  # forward and backward


def test_predictions_replay_graphs_without_gradients(monkeypatch):
    on_cpu(monkeypatch)
    model = Network().eval()
    graphs = Notes().graphs(model)
    images = [image(8), image(12), image(8), image(12), image(8)]
    with torch.inference_mode():
        expected = [model.loss(x) for x in images]
        graphs.attach()
        assert [model.loss(x) for x in images] == expected
    assert graphs.counts == (10, 6)


def test_outputs_without_gradients_are_kept(monkeypatch):
    on_cpu(monkeypatch)
    model = Network().eval()
    graphs = Notes().graphs(model)
    graphs.attach()
    first, second = image(8), image(8)
    with torch.no_grad():
        outputs = [model.extract_feat(x)[0] for x in (first, first, second)]
        for x, output in zip((first, first, second), outputs, strict=True):
            assert torch.equal(output, model.backbone(x))
    assert graphs.parts[0].replays == 2


def test_modes_that_alternate_are_captured_once_each(monkeypatch):
    recorders = on_cpu(monkeypatch)
    model = Network()
    graphs = Notes().graphs(model)
    graphs.attach()
    for _ in range(4):
        with torch.no_grad():
            target = model.extract_feat(image(8))[0]
        (model.extract_feat(image(8))[0] - target).square().sum().backward()
    assert recorders[0].recorded == 3  # forward and backward, and forward without gradients
    assert graphs.parts[0].replays == 6


def test_parts_that_communicate_are_captured_without_an_eager_pass(monkeypatch):
    recorders = on_cpu(monkeypatch)
    monkeypatch.setattr(model_parts, 'get_world_size', lambda: 2)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Network()).eval()
    calls = []
    convolve = model.backbone[0].forward
    model.backbone[0].forward = lambda x: (calls.append(1), convolve(x))[1]
    graphs = Notes().graphs(model)
    step(model, graphs, lambda: of_network(model, 8))
    calls.clear()
    step(model, graphs, lambda: of_network(model, 8))
    assert recorders[0].recorded == 2
    assert len(calls) == 2  # the capture and the replay, which is a call of the stand-in
