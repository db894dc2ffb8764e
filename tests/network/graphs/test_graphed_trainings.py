"""Trainings with graphs equal those without, with a stand-in that computes again on a CPU."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import detectors, segmentors
from helpers.graph_stand_in import on_cpu
from helpers.graphed_network import Network, Notes, image, of_network, step
from helpers.processes import in_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.whole_models import _samples, _with_objects
from xcit_mm.network.graphs import GraphedModel


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor],
    sizes: Sequence[int],
    graphs: GraphedModel | None = None,
    accumulate: int = 1,
) -> list[float]:
    """Train on batches of these sizes with a momentum, and return losses, weights and buffers."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(
        getattr(model, 'module', model), avg_fn=torch.optim.swa_utils.get_ema_avg_fn(0.5)
    )
    results = []
    for number, size in enumerate(sizes):
        torch.manual_seed(number)
        results.append(step(model, graphs, lambda size=size: loss(model, size)))
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(getattr(model, 'module', model))
    states = [*model.state_dict().values(), *average.state_dict().values()]
    return results + [x.clone() for x in states]


def assert_same_training(
    model: nn.Module, loss: Callable, sizes: Sequence[int], tolerance: float = 0, **options
) -> GraphedModel:
    notes = Notes()
    twin = copy.deepcopy(model)
    limit = {'max_sizes': options.pop('max_sizes')} if 'max_sizes' in options else {}
    graphs = notes.graphs(twin, **limit)
    expected = train(model, loss, sizes, **options)
    found = train(twin, loss, sizes, graphs, **options)
    for value, wanted in zip(found, expected, strict=True):
        value, wanted = torch.as_tensor(value), torch.as_tensor(wanted)
        assert torch.allclose(value, wanted, rtol=tolerance, atol=tolerance)
    assert notes == []
    return graphs


def of_detector(model: nn.Module, size: int) -> Tensor:
    x = image(size)
    return model.parse_losses(model.loss(x, _with_objects(_samples(model, x))))[0]


TWO_IN_TURN = (64, 96) * 3


@pytest.mark.parametrize('with_cp, accumulate', [(False, 1), (True, 2)])
def test_a_detector_trains_as_without_graphs(monkeypatch, with_cp, accumulate):
    on_cpu(monkeypatch)
    model = detectors.build('mask_rcnn_xcit_n12_16_shapes')
    model.backbone.with_cp = with_cp
    for block in model.backbone.blocks:
        block.drop_path.p = 0.3
    # A static gradient of a map has the layout of the map, and is rounded differently in it.
    options = dict(accumulate=accumulate, tolerance=1e-4)
    graphs = assert_same_training(model, of_detector, TWO_IN_TURN, **options)
    assert graphs.num_sizes == 2
    assert [(p.name, p.calls, p.replays) for p in graphs.parts] == [
        ('the backbone with the neck', 6, 4),
        ('rpn_head', 6, 4),
    ]


def test_a_segmentor_is_captured_with_its_head(monkeypatch):
    on_cpu(monkeypatch)
    model = segmentors.build('upernet_xcit_t12_8_160k')

    def loss(model: nn.Module, size: int) -> Tensor:
        (scores,) = (model.decode_head(model.extract_feat(image(size))),)
        return scores.square().mean()

    graphs = assert_same_training(model, loss, (64, 64, 64, 64))
    assert [(part.name, part.replays) for part in graphs.parts] == [
        ('the backbone with the neck', 3),
        ('decode_head', 3),
    ]


def test_gradients_in_mixed_precision_equal_those_without_cached_weights(monkeypatch):
    """A graph casts the weights each time: their gradients are added in float32, not in 16 bits."""
    on_cpu(monkeypatch)

    def loss(model: nn.Module, size: int) -> Tensor:
        with torch.autocast('cpu', torch.bfloat16, cache_enabled=False):
            return 4 * of_network(model, size)  # a scaled loss

    graphs = assert_same_training(Network(), loss, (8, 12, 8, 12, 8))
    assert graphs.counts == (10, 6)


def test_frozen_and_unused_parameters_get_no_gradient(monkeypatch):
    on_cpu(monkeypatch)
    model = Network()
    model.backbone[0].weight.requires_grad_(False)
    graphs = assert_same_training(model, of_network, (8, 8, 8))
    assert graphs.counts[1] == 4
    assert model.backbone[0].weight.grad is None and model.unused.weight.grad is None


def test_a_size_replaces_one_that_came_half_as_often(monkeypatch):
    on_cpu(monkeypatch)
    sizes = (8, 8, 10, 10, 12, 12, 12, 12, 12, 10, 8)
    graphs = assert_same_training(Network(), of_network, sizes, max_sizes=2)
    part = graphs.parts[0]
    # 8 and 10 are captured, 12 replaces 8 when it comes the fourth time, and 8 runs eagerly.
    assert (part.num_sizes, part.replays) == (2, 1 + 1 + 2 + 1)


def test_a_second_forward_pass_before_the_backward_pass_runs_eagerly(monkeypatch):
    on_cpu(monkeypatch)

    def loss(model: Network, size: int) -> Tensor:
        return model.loss(image(size)) + model.loss(image(size))

    graphs = assert_same_training(Network(), loss, (8, 8, 8))
    assert graphs.parts[0].calls == 6 and graphs.parts[0].replays == 3


def test_processes_average_the_gradients_of_replays(monkeypatch, tmp_path):
    on_cpu(monkeypatch)
    model = Network()

    def in_process(rank: int) -> None:
        def of_rank(model: nn.Module, size: int) -> Tensor:
            torch.manual_seed(size + rank)
            return model(image(size))

        def trained(graphs: bool) -> list:
            copied = copy.deepcopy(model)
            copied.forward = copied.loss
            wrapped = DistributedDataParallel(copied, find_unused_parameters=True)
            captured = Notes().graphs(wrapped.module) if graphs else None
            found = train(wrapped, of_rank, (8, 8, 12, 8, 12), captured)
            assert captured is None or captured.counts == (10, 6)
            return found

        for value, wanted in zip(trained(True), trained(False), strict=True):
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(wanted))

    in_processes(2, in_process, tmp_path)
