"""Tokens in the memory of a GPU, for which the memory of the CPU stands in here."""

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers import network_error, randomize, relative_error
from helpers.small_xcit import small_xcit
from torch import nn

from xcit_mm import XCiT, stream, stream_backward
from xcit_mm.base.device import pinned, sent, sent_back
from xcit_mm.base.errors import ArgumentError
from xcit_mm.base.free_memory import free_device_memory
from xcit_mm.base.geometry import Window
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.tokens import passes as layers
from xcit_mm.large.tokens import workspace
from xcit_mm.large.tokens.backward import TrainedPasses, workspace_of
from xcit_mm.large.tokens.passes import Passes, tile_scale
from xcit_mm.large.tokens.shards import Shards
from xcit_mm.large.tokens.token_files import CPU, LateWrites, TokenFile
from xcit_mm.large.tokens.workspace import Demand, Workspace, open_workspace
from xcit_mm.network.waits import counted

GIB = 2**30
OTHER = torch.device('meta')


@pytest.fixture
def gpu_with(monkeypatch) -> Callable[[int], None]:
    """Give the CPU a number of bytes as if it were a GPU."""

    def have(free: int) -> None:
        monkeypatch.setattr(layers, 'device_memory', lambda device: free)
        monkeypatch.setattr(workspace, 'free_device_memory', lambda device: free)

    return have


def test_only_a_gpu_has_memory_of_its_own():
    assert free_device_memory(CPU) is None
    assert free_device_memory(torch.device('mps')) is None


def test_tiles_are_larger_on_a_gpu_with_room_for_them():
    of_tile = 14 * layers.TILE_TOKENS * 384 * 4
    assert tile_scale(None, of_tile) == 1
    assert tile_scale(140 * GIB, of_tile) == 16
    assert tile_scale(16 * GIB, of_tile) == 4
    assert tile_scale(GIB, of_tile) == 1
    assert tile_scale(0, of_tile) == 1


def test_tiles_of_a_gpu_cover_the_image_in_few_pieces(gpu_with):
    backbone = small_xcit(16).eval()
    image = torch.zeros(3, 1, 1).expand(3, 20_000, 20_000)
    counts = {}
    for free in (None, 140 * GIB):
        gpu_with(free)
        passes = Passes(backbone, image)
        counts[free] = len(passes.tiles())
        assert passes.bytes_of_tile <= (free or 2 * GIB) // 8
        assert passes.tile[0] * passes.tile[1] <= passes.scale * layers.TILE_TOKENS
    assert counts[140 * GIB] <= 10 < 100 <= counts[None]


def test_tokens_stay_on_a_gpu_and_everything_else_in_memory_while_they_fit(gpu_with, tmp_path):
    demand, shards = Demand(files=300, tile=100, tokens=200), Shards(1)
    gpu_with(1000)
    tokens, labels = (
        open_workspace(demand, shards, 100, None).open('x', slice(0, 2), (3, 4), torch.float32, **k)
        for k in (dict(are_tokens=True), {})
    )
    assert tokens.device == labels.device == CPU  # the stand-in of the GPU, and the CPU
    with pytest.raises(ArgumentError, match='the stores need'):
        open_workspace(demand, shards, 99, None)  # which the labels exceed
    gpu_with(399)  # of which a quarter is left free
    with pytest.raises(ArgumentError, match='the stores need'):
        open_workspace(demand, shards, 100, None)
    assert open_workspace(demand, shards, 400, None).folder is None
    store = open_workspace(demand, shards, 100, tmp_path)
    assert store.folder == tmp_path
    store.remove()


def test_a_store_is_on_its_device_and_reads_rows_that_others_sent():
    device = torch.device('meta')
    store = TokenFile(slice(2, 6), (5, 4), torch.float32, device=device)
    borrowed = [(slice(0, 2), torch.ones(2, 5, 4))]
    tokens = store.read(Window(slice(1, 4), slice(1, 3)), borrowed)
    assert tokens.device == device and tokens.shape == (3, 2, 4)
    store.write(Window(slice(2, 3), slice(0, 2)), torch.ones(1, 2, 4, device=device))
    store.add(Window(slice(2, 3), slice(0, 2)), torch.ones(1, 2, 4, device=device))
    opened = Workspace(device=device).open('x', slice(0, 2), (3, 4), torch.float32, are_tokens=True)
    assert opened.zero_().device == device


@pytest.mark.parametrize('scale', [1, 4])
def test_maps_and_gradients_equal_those_of_the_whole_image(gpu_with, monkeypatch, scale):
    backbone = small_xcit(8, norm_eval=True).double()
    randomize(backbone)
    image = torch.randn(3, 123, 161).double()
    maps = backbone(image[None])
    gradients = [torch.randn_like(m) for m in maps]
    torch.autograd.backward(maps, gradients)
    expected = [p.grad for p in backbone.parameters()]
    backbone.zero_grad()
    monkeypatch.setattr(layers, 'TILE_TOKENS', 20)
    monkeypatch.setattr(layers, 'GPU_TILE_TOKENS', 20 * scale)
    gpu_with(10 * GIB)
    of_maps = sum(m.numel() * 8 for m in maps)
    streamed = stream(backbone.eval(), image, memory=of_maps)  # without room for the tokens
    error = max(
        relative_error(torch.from_numpy(a), b[0]) for a, b in zip(streamed, maps, strict=True)
    )
    assert error <= network_error(backbone, torch.float64)
    stream_backward(backbone, image, [g[0] for g in gradients], memory=0)
    for parameter, gradient in zip(backbone.parameters(), expected, strict=True):
        assert relative_error(parameter.grad, gradient) <= 1e-12


def test_training_computes_layers_again_before_it_leaves_a_gpu(gpu_with):
    backbone = XCiT('n12', 16, norm_eval=True)
    image = torch.zeros(3, 123, 161)
    demand = TrainedPasses(backbone, image).demand
    for share, is_again in (1.0, False), (0.9, True):
        gpu_with(int((share * demand.tokens + demand.tile) / workspace.DEVICE_SHARE) + 1)
        passes = TrainedPasses(backbone, image)
        with workspace_of(passes, 0, None):
            assert passes.workspace.folder is None
            assert (passes.every > 1) == is_again


class Preprocessor(nn.Module):
    """A preprocessor as mmdet's and mmseg's."""

    def __init__(self, swaps: bool) -> None:
        super().__init__()
        self.mean = torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1)
        self.std = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)
        self.channel_conversion, self.pad_size_divisor, self.pad_value = swaps, 32, 7.0


Preprocessor.__name__ = 'SegDataPreProcessor'


@pytest.mark.parametrize('swaps', [False, True])
@pytest.mark.parametrize('nodata', [None, 0])
def test_pixels_that_a_gpu_normalizes_equal_those_of_the_cpu_bit_for_bit(swaps, nodata):
    pixels = np.random.default_rng(0).integers(0, 256, (70, 45, 3), np.uint8)
    pixels[3:9, 5:20] = 0
    image = NormalizedImage(Array(pixels, 'x', nodata=nodata), Preprocessor(swaps), (), None)
    for window in ((0, 96), (0, 64)), ((2, 11), (3, 7)), ((64, 96), (32, 64)), ((80, 96), (0, 9)):
        window = Window(*(slice(*span) for span in window))
        parts = image.unnormalized(window)
        assert parts[0].dtype == torch.uint8
        assert torch.equal(image.normalize(window, *parts), image[(slice(None), *window)])


@pytest.mark.parametrize('normalizes', [False, True])
def test_nothing_waits_in_the_loops_over_tiles(normalizes, monkeypatch):
    monkeypatch.setattr(layers, 'PATCH_TILE', (4, 4))
    pixels = np.random.default_rng(0).integers(0, 256, (96, 160, 3), np.uint8)
    image = NormalizedImage(Array(pixels, 'x'), Preprocessor(True), (), None)
    backbone = small_xcit(8).eval()
    waits, tokens = {}, {}
    for rows in (3, 12):
        passes = Passes(backbone, image, rows=rows)
        passes._normalizes = normalizes
        with counted() as operations:
            passes.run()
        waits[rows], tokens[rows] = operations.waits, passes.store(passes.count - 1).array()
    assert waits[3] == waits[12]
    assert sum(waits[3].values()) <= 4 * passes.count
    assert np.allclose(tokens[3], tokens[12], atol=1e-4)


def test_copies_between_the_cpu_and_itself_are_none():
    tensor = torch.ones(3)
    assert pinned(tensor, CPU) is tensor and sent(tensor, CPU) is tensor
    assert sent_back(tensor)() is tensor


def test_tokens_that_a_gpu_gets_from_the_cpu_are_read_ahead_and_written_late(monkeypatch):
    backbone = small_xcit(8).eval()
    randomize(backbone)
    image = torch.randn(3, 123, 161)
    expected = stream(backbone, image, rows=3)
    opened = Workspace.open

    def open_elsewhere(*args, **options):
        store = opened(*args, **options)
        store.device = OTHER
        return store

    monkeypatch.setattr(Workspace, 'open', open_elsewhere)
    monkeypatch.setattr(layers, 'LateWrites', lambda write, *_: LateWrites(write, OTHER, CPU))
    for a, b in zip(stream(backbone, image, rows=3), expected, strict=True):
        assert np.array_equal(a, b)


def test_a_late_write_waits_for_the_next_tile_and_none_follows_an_error():
    windows = [Window(slice(n, n + 1), slice(0, 2)) for n in range(4)]
    tokens, written = torch.ones(1, 2, 3), []
    arguments = lambda window, *_: written.append(window), OTHER, CPU
    with LateWrites(*arguments) as write:
        write(windows[0], windows[0], tokens)
        assert written == []
        write(windows[1], windows[1], tokens)
        assert written == windows[:1]
        write(windows[2], None, None)  # without data: nothing is copied
        assert written == [windows[0], windows[2]]
    assert written == [windows[0], windows[2], windows[1]]
    with pytest.raises(KeyError), LateWrites(*arguments) as write:
        write(windows[3], windows[3], tokens)
        raise KeyError
    assert windows[3] not in written
    with LateWrites(arguments[0], OTHER, OTHER) as write:
        write(windows[3], windows[3], tokens)
        assert windows[3] in written


def test_tokens_leave_the_memory_with_their_run():
    place = Workspace()
    shape = slice(0, 2), (3, 4), torch.float32
    tokens = place.open('tokens', *shape, are_tokens=True)
    labels = place.open('labels', *shape).zero_()
    memory = weakref.ref(tokens.zero_()._tokens)
    place.remove()  # while maps may still refer to the file
    assert memory() is None
    assert not labels.array().any()


def test_a_window_is_pinned_without_what_lies_between_its_rows(monkeypatch):
    pinned_shapes = []
    real = torch.empty

    def empty(*args: object, pin_memory: bool = False, **options: object) -> torch.Tensor:
        if pin_memory:
            pinned_shapes.append(args[0])
        return real(*args, **options)

    monkeypatch.setattr(torch, 'empty', empty)
    monkeypatch.setattr(torch.Tensor, 'is_pinned', lambda tensor: False)
    image = torch.randn(3, 40, 50)
    window = image[:, 3:7, 10:20]
    copy = pinned(window, torch.device('cuda'))
    assert torch.equal(copy, window) and copy.is_contiguous()
    assert pinned_shapes == [(3, 4, 10)]
    assert pinned(window, CPU) is window
