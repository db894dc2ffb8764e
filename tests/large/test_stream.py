"""The maps of a streamed image against the maps of the whole image."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import network_error, randomize, relative_error, rounding_error
from helpers.small_xcit import SMALL, small_xcit

from xcit_mm import XCiT, stream
from xcit_mm.base.errors import ArgumentError, UserError
from xcit_mm.large.tokens import passes, workspace
from xcit_mm.large.tokens.shards import Shards
from xcit_mm.large.tokens.workspace import Workspace

ODD_SIZES = (161, 75), (66, 129), (97, 97)
STRIPES = 1, 2, 5
DTYPES = torch.float64, torch.float32


def random_xcit(*args, **kwargs) -> XCiT:
    backbone = XCiT(*args, **kwargs).eval()
    randomize(backbone)
    return backbone


def whole_maps(backbone: XCiT, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return backbone(image[None])


def largest_error(maps: list[np.ndarray], expected: tuple[torch.Tensor, ...]) -> float:
    pairs = zip(maps, expected, strict=True)
    return max(relative_error(torch.from_numpy(m).double(), e[0].double()) for m, e in pairs)


def test_streamed_maps_equal_those_of_the_whole_image():
    backbone = random_xcit('n12', 8)
    for dtype in DTYPES:
        backbone = backbone.to(dtype)
        tolerance = network_error(backbone, dtype)
        for size, height in zip(ODD_SIZES, STRIPES, strict=True):
            image = torch.randn(3, *size, dtype=dtype)
            expected = whole_maps(backbone, image)
            for rows in (height, None):
                maps = stream(backbone, image, rows=rows)
                assert [m.shape for m in maps] == [e.shape[1:] for e in expected]
                assert largest_error(maps, expected) <= tolerance, (dtype, size, rows)


def test_many_tokens_which_are_multiplied_in_the_gram_form():
    backbone = random_xcit('n12', 8)
    image = torch.randn(3, 250, 347)
    error = largest_error(stream(backbone, image), whole_maps(backbone, image))
    assert error <= network_error(backbone, torch.float32)


@pytest.mark.parametrize('patch_size', [8, 4])
def test_tiles_of_columns_equal_the_whole_image(monkeypatch, patch_size):
    monkeypatch.setattr(passes, 'TILE_TOKENS', 40)
    monkeypatch.setattr(passes, 'MAX_COLUMNS', 8)
    backbone = small_xcit(patch_size, start_level=1, out_norm=True).eval()
    randomize(backbone)
    image = torch.randn(3, 123, 161)
    maps = stream(backbone, image)
    assert len(maps) == 3
    error = largest_error(maps, whole_maps(backbone, image))
    assert error <= network_error(backbone, torch.float32)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bits_lose_no_more_than_the_whole_image(dtype):
    backbone = random_xcit('n12', 16)
    image = torch.randn(3, 161, 330)
    exact = whole_maps(backbone.double(), image.double())
    backbone, image = backbone.to(dtype), image.to(dtype)
    whole = [m[0].float().numpy() for m in whole_maps(backbone, image)]
    maps = stream(backbone, image)
    assert {m.dtype for m in maps} == {
        np.dtype('float32' if dtype == torch.bfloat16 else 'float16')
    }
    # A stream rounds, in each layer, the matrix of the attention and the tokens that it stores.
    more = rounding_error(dtype, 2 * len(backbone.blocks))
    assert largest_error(maps, exact) <= largest_error(whole, exact) + more


def test_tokens_that_the_gram_form_cannot_multiply_are_multiplied_in_float64():
    backbone = random_xcit(SMALL, 8, out_indices=(0, 1, 2, 3))
    with torch.no_grad():
        for block in backbone.blocks:  # q and k hardly see what is large
            block.norm1.weight[0] = 3e3
            block.attn.qkv.weight[:64, 0] = 0
    image = torch.randn(3, 250, 347)
    exact = whole_maps(backbone.double(), image.double())
    backbone, image = backbone.float(), image.float()
    whole = [m[0].numpy() for m in whole_maps(backbone, image)]
    error = largest_error(stream(backbone, image), exact)
    assert error <= 2 * largest_error(whole, exact)  # one binary digit


def test_files_give_the_same_bits_as_memory(tmp_path, monkeypatch):
    backbone = random_xcit(SMALL, 16, out_indices=(0, 1, 2, 3))
    np.save(tmp_path / 'image.npy', np.random.default_rng(0).normal(size=(3, 200, 331)))
    image = np.load(tmp_path / 'image.npy', mmap_mode='r')
    in_memory = stream(backbone, image, rows=3)
    paths = []

    def recorded(self, stage, number, store) -> None:
        paths.append(store.path)

    left = tmp_path / 'store/maps_part_1_of_1/tokens'
    left.mkdir(parents=True)
    (left / 'layer_9.bin').write_text('of a call that was killed')
    monkeypatch.setattr(Workspace, 'finish', recorded)
    in_files = stream(backbone, image, rows=3, memory=0, store=tmp_path / 'store')
    assert None not in paths and len(set(paths)) >= 4
    for a, b in zip(in_memory, in_files, strict=True):
        assert isinstance(b, np.memmap)
        assert np.array_equal(a, b)
    assert not left.exists()
    with pytest.raises(ArgumentError, match=r'need .* GiB, but the limit is 0 GiB: name a folder'):
        stream(backbone, image, memory=0)


@pytest.mark.parametrize(
    ('name', 'dtype', 'sentence'),
    [
        ('patch_embed.proj.0.0.weight', torch.float32, 'the patch embedding of the backbone .*t$'),
        ('blocks.1.mlp.fc2.weight', torch.float32, 'layer 2 of the backbone .* in float32'),
        ('blocks.3.mlp.fc2.weight', torch.float16, 'layer 4 of the .* in float16: .* larger'),
    ],
)
def test_values_that_are_not_finite_are_an_error(name, dtype, sentence):
    backbone = random_xcit(SMALL, 16, out_indices=(0, 1, 2, 3)).to(dtype)
    with torch.no_grad():
        backbone.get_parameter(name).fill_(torch.inf)
    with pytest.raises(UserError, match=sentence):
        stream(backbone, torch.randn(3, 64, 64).to(dtype))


def test_what_cannot_be_streamed_is_refused():
    backbone = random_xcit(SMALL, 16, out_indices=(0, 1, 2, 3))
    image = torch.zeros(3, 64, 64)
    with pytest.raises(ArgumentError, match='at least 17'):
        stream(backbone, image[:, :16])
    with pytest.raises(ArgumentError, match='in training'):
        stream(backbone.train(), image)
    backbone.eval().blocks[2].attn.qkv.register_forward_hook(lambda *args: None)
    with pytest.raises(ArgumentError, match=r'blocks.2 of the backbone has hooks'):
        stream(backbone, image)
    backbone = random_xcit(SMALL, 16, out_indices=(0, 1, 2, 3))
    wide = torch.nn.Conv2d(32, 32, 5, padding=2, groups=32)
    backbone.blocks[1].local_mp.conv1 = wide
    with pytest.raises(ArgumentError, match=r'blocks.1.local_mp of the backbone has hooks or repl'):
        stream(backbone, image)
    with pytest.raises(ArgumentError, match='a Linear cannot be streamed'):
        stream(torch.nn.Linear(1, 1), image)


def test_processes_of_a_machine_divide_its_memory_and_its_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, 'free_memory', lambda: 1200)
    monkeypatch.setattr('shutil.disk_usage', lambda folder: SimpleNamespace(free=400))
    arguments = workspace.Demand(100, 200), Shards(1), None, tmp_path
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    assert workspace.open_workspace(*arguments).folder is None
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '4')
    assert workspace.open_workspace(*arguments).folder == tmp_path
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '5')
    with pytest.raises(UserError, match=r'where .* GiB are free: name a folder'):
        workspace.open_workspace(*arguments)


def test_what_other_processes_have_written_does_not_reduce_the_share_of_the_disk(
    tmp_path, monkeypatch
):
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    monkeypatch.setattr('shutil.disk_usage', lambda folder: SimpleNamespace(free=2**20))
    own, other = tmp_path / 'training_process_1', tmp_path / 'training_process_2'
    for folder in (own, other):
        folder.mkdir()
        (folder / 'layer_0.bin').write_bytes(bytes(2**18))
    (other / 'notes.txt').write_bytes(bytes(2**18))
    with (other / 'layer_1.bin').open('wb') as file:
        file.truncate(2**30)  # nothing is written yet
    assert workspace.free_disk(own) == (2**20 + 2 * 2**18) // 2


def test_a_store_on_a_full_disk_is_refused_before_the_first_pass(tmp_path, monkeypatch):
    monkeypatch.setattr('shutil.disk_usage', lambda folder: SimpleNamespace(free=1000))
    backbone = random_xcit(SMALL, 16, out_indices=(0, 1, 2, 3))
    with pytest.raises(UserError, match=r'need .* GiB in .*, where .* GiB are free: name a'):
        stream(backbone, torch.zeros(3, 64, 64), memory=0, store=tmp_path)
