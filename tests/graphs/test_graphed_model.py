"""What is captured, replayed and left alone, with a stand-in that computes again on a CPU."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import detectors, segmentors
from helpers.graph_stand_in import StandIn, on_cpu
from helpers.processes import in_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from xcit_mm.benchmark.whole_models import _samples, _with_objects
from xcit_mm.graphs import GraphedModel, model_parts
from xcit_mm.graphs.graphed_part import FULL, NO_MEMORY


class Network(nn.Module):
    """A backbone, a neck and a head as in a detector, with ``layer`` in the neck."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2))
        self.neck = layer or nn.Identity()
        self.unused = nn.Linear(2, 2)
        self.rpn_head = nn.Conv2d(4, 2, 1)

    def extract_feat(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.neck(self.backbone(images)),)

    def loss(self, images: Tensor) -> Tensor:
        (x,) = self.extract_feat(images)
        return self.rpn_head(x).square().mean() + x.abs().mean()


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


class Notes(list):
    def graphs(self, model: nn.Module, **options) -> GraphedModel:
        return GraphedModel(model, self.append, **options)


def image(size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size)


def step(model: nn.Module, graphs: GraphedModel | None, loss: Callable[[], Tensor]) -> float:
    if graphs is not None:
        graphs.attach()
    value = loss()
    if graphs is not None:
        graphs.detach()
    value.backward()
    return value.item()


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


def of_network(model: Network, size: int) -> Tensor:
    return model.loss(image(size))


def of_detector(model: nn.Module, size: int) -> Tensor:
    x = image(size)
    return model.parse_losses(model.loss(x, _with_objects(_samples(model, x))))[0]


THREE_IN_TURN = (64, 96, 128) * 3


@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('with_cp', [False, True])
def test_a_detector_trains_as_without_graphs(monkeypatch, with_cp, accumulate):
    on_cpu(monkeypatch)
    model = detectors.build('mask_rcnn_xcit_n12_16_shapes')
    model.backbone.with_cp = with_cp
    for block in model.backbone.blocks:
        block.drop_path.p = 0.3
    # A static gradient of a map has the layout of the map, and is rounded differently in it.
    options = dict(accumulate=accumulate, tolerance=1e-4)
    graphs = assert_same_training(model, of_detector, THREE_IN_TURN, **options)
    assert graphs.num_sizes == 3
    assert [(p.name, p.calls, p.replays) for p in graphs.parts] == [
        ('the backbone with the neck', 9, 6),
        ('rpn_head', 9, 6),
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
            return of_network(model, size)

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


def test_a_model_without_such_parts_is_named(monkeypatch):
    on_cpu(monkeypatch)
    notes = Notes()
    notes.graphs(nn.Sequential(nn.Linear(2, 2)))
    assert notes == ['CUDA graphs: a Sequential has no backbone that could be captured']


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


class Poison(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 if self.calls < 3 else torch.nan)


class Maps(dict):
    """A mapping that graphs cannot take apart."""


class InMaps(nn.Module):
    def forward(self, x: Tensor) -> Maps:
        return Maps(x=x)


@pytest.mark.parametrize(
    ('layer', 'why'),
    [(Poison(), 'its graphs compute other outputs'), (InMaps(), 'it returns a Maps')],
)
def test_other_values_and_kinds_of_outputs_are_not_captured(monkeypatch, layer, why):
    on_cpu(monkeypatch)
    model, notes = Network(layer), Notes()
    graphs = notes.graphs(model)
    graphs.attach()
    for _ in range(3):
        model.extract_feat(image(8))
    assert graphs.parts[0].replays == 0
    assert why in notes[0]


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


def test_other_arguments_than_tensors_run_eagerly(monkeypatch):
    on_cpu(monkeypatch)
    model, notes = Network(), Notes()
    model.extract_feat = lambda images, flip: (images,)
    graphs = notes.graphs(model)
    graphs.attach()
    model.extract_feat(image(8), True)
    model.extract_feat(image(8), True)
    assert graphs.parts[0].replays == 0
    assert 'not all of its arguments are tensors' in notes[0] and len(notes) == 1


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


def test_a_first_capture_without_memory_runs_this_size_eagerly(monkeypatch):
    recorders = on_cpu(monkeypatch)
    model, notes = Network(), Notes()
    graphs = notes.graphs(model)
    recorders[0].fails = torch.OutOfMemoryError('CUDA out of memory.')
    for size in (12, 12, 12, 8, 8, 8):
        step(model, graphs, lambda size=size: of_network(model, size))
    assert notes == [f'CUDA graphs: the backbone with the neck: {NO_MEMORY}']
    assert [part.replays for part in graphs.parts] == [2, 4]


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


def test_infinite_values_pass_through_a_replay(monkeypatch):
    on_cpu(monkeypatch)
    model = Network()
    graphs = Notes().graphs(model)
    for _ in range(2):
        step(model, graphs, lambda: of_network(model, 8))
    model.zero_grad()
    loss = step(model, graphs, lambda: model.loss(image(8) * torch.inf))
    assert graphs.parts[0].replays == 2
    assert not torch.isfinite(torch.tensor(loss))
    assert not model.backbone[0].weight.grad.isfinite().all()


def test_a_copy_of_a_model_is_free_of_graphs(monkeypatch):
    on_cpu(monkeypatch)
    model = Network()
    graphs = Notes().graphs(model)
    for _ in range(2):
        step(model, graphs, lambda: of_network(model, 8))
    twin = copy.deepcopy(model)
    assert not {'extract_feat', 'forward'} & (vars(twin).keys() | vars(twin.rpn_head).keys())


def test_each_recording_of_a_stand_in_overwrites_the_others():
    recorder, x = StandIn(), torch.ones(3)
    (first,), replay_first = recorder.record(lambda: [x + 1])
    (second,), replay_second = recorder.record(lambda: [x * 3])
    replay_first()
    assert first.tolist() == [2, 2, 2] and second.isnan().all()
    x.fill_(2)
    replay_second()
    assert second.tolist() == [6, 6, 6] and first.isnan().all()


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


def test_a_scaled_loss_is_unscaled_as_without_graphs(monkeypatch):
    on_cpu(monkeypatch)

    def scaled(model: Network, size: int) -> Tensor:
        with torch.autocast('cpu', torch.bfloat16, cache_enabled=False):
            return 1024 * model.loss(image(size))

    assert_same_training(Network(), scaled, (8, 8, 8))
