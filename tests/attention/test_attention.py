"""Attention maps: those of a plain computation on timm's model, laid where the tokens are."""

from functools import partial

import cv2
import numpy as np
import pytest
import torch
from helpers import randomize, relative_error
from helpers.in_process import call_tool
from PIL import Image
from timm.models.xcit import Xcit
from torch import Tensor, nn
from torch.nn import functional as F

from xcit_mm import UserError
from xcit_mm.attention import maps as attention_maps
from xcit_mm.attention.draw import choose_heads, draw_attention, overlay
from xcit_mm.attention.maps import AttentionProbe, resized, token_magnitudes
from xcit_mm.models.layers import XCA, ConvPatchEmbed
from xcit_mm.weights.states import CLASSIFIER

SIZES = [(64, 96), (70, 45), (9, 130)]  # of images; 16 pixels a token


@pytest.fixture(scope='module')
def model() -> nn.Module:
    model = Xcit(patch_size=16, embed_dim=64, depth=3, num_heads=4, num_classes=7, tokens_norm=True)
    randomize(model)
    return model.eval()


@pytest.fixture(scope='module')
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp('checkpoint') / 'classifier.pth'
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope='module')
def detector(model, tmp_path_factory):
    """With the same layers as its backbone, in the names of the release."""
    renamed = {k.replace('pos_embed.', 'pos_embeder.'): v for k, v in model.state_dict().items()}
    state = {f'backbone.{k}': v for k, v in renamed.items() if not k.startswith(CLASSIFIER)}
    state |= {'backbone.fpn2.0.weight': torch.zeros(1), 'rpn_head.weight': torch.zeros(1)}
    path = tmp_path_factory.mktemp('detector') / 'detector.pth'
    torch.save({'state_dict': state}, path)
    return path


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def normalized(image: np.ndarray) -> Tensor:
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    return ((torch.from_numpy(image) / 255 - mean) / std).permute(2, 0, 1)[None]


@torch.inference_mode()
def inputs_of(module: nn.Module, model: nn.Module, image: np.ndarray) -> Tensor:
    """What a module inside of a model is given."""
    caught = []
    hook = module.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    model(normalized(image))
    hook.remove()
    return caught[0]


def plain_magnitudes(attn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Norms of the rows of q and k, whose columns are normalised (paper, eq. 2 and D.5)."""
    q, k, _ = attn.qkv(x[0]).chunk(3, dim=-1)  # (N, C)
    return tuple(
        torch.stack([head.norm(dim=1) for head in F.normalize(t, dim=0).chunk(attn.num_heads, 1)])
        for t in (q, k)
    )


@torch.inference_mode()
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('layer, index', [(None, 2), (1, 1)])
def test_magnitudes_are_those_of_the_plain_queries_and_keys(model, checkpoint, size, layer, index):
    image = picture(*size)
    attn = model.blocks[index].attn
    q, k = plain_magnitudes(attn, inputs_of(attn, model, image))
    maps = AttentionProbe(checkpoint, device='cpu')(image, layer)
    assert maps.layer == index
    assert maps.queries.shape == (4, -(-size[0] // 16), -(-size[1] // 16))
    assert relative_error(maps.queries.flatten(1), q) < 1e-5
    assert relative_error(maps.keys.flatten(1), k) < 1e-5


@torch.inference_mode()
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('class_layer, index', [(None, 1), (0, 0)])
def test_class_attention_mixes_the_values_as_timm_does(model, checkpoint, size, class_layer, index):
    image = picture(*size)
    attn = model.cls_attn_blocks[index].attn
    x = inputs_of(attn, model, image)
    maps = AttentionProbe(checkpoint, device='cpu')(image, class_layer=class_layer)
    assert maps.class_layer == index
    assert maps.class_attention.shape == maps.queries.shape
    shares = maps.class_attention.flatten(1)  # (h, N)
    shares = torch.cat((1 - shares.sum(1, keepdim=True), shares), dim=1)
    assert (shares > 0).all()
    v = attn.v(x)[0].unflatten(1, (attn.num_heads, -1))  # (1 + N, h, d)
    mixed = torch.einsum('hn,nhd->hd', shares, v).flatten()
    assert relative_error(attn.proj(mixed), attn(x)[0, 0]) < 1e-5


@torch.inference_mode()
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_pieces_of_the_tokens_give_the_same(monkeypatch, qkv_bias):
    attn, x = XCA(32, 4, qkv_bias=qkv_bias), torch.randn(1, 50, 32) + 1
    whole = token_magnitudes(attn, x)
    assert whole.shape == (1, 2, 4, 50)
    assert torch.allclose(whole.square().sum(-1), torch.full((1, 2, 4), 8.0))  # d
    monkeypatch.setattr(attention_maps, 'CHUNK', 7)
    assert relative_error(token_magnitudes(attn, x), whole) < 1e-6


def test_a_detector_shows_queries_and_keys(checkpoint, detector):
    expected = AttentionProbe(checkpoint, device='cpu')(picture(70, 45))
    probe = AttentionProbe(detector, device='cpu')
    maps = probe(picture(70, 45))
    assert maps.class_attention is maps.class_layer is None
    assert torch.equal(maps.queries, expected.queries)
    assert torch.equal(maps.keys, expected.keys)
    with pytest.raises(UserError, match=r'class_layer=0: the checkpoint has no class-attention'):
        probe(picture(70, 45), class_layer=0)


def test_a_dino_model_shows_class_attention_without_a_head(model, checkpoint, tmp_path):
    trunk = {k: v for k, v in model.state_dict().items() if not k.startswith('head.')}
    teacher = {f'backbone.{k}': v for k, v in trunk.items()}
    projection = {'head.mlp.0.weight': torch.zeros(2), 'head.last_layer.weight_g': torch.zeros(2)}
    torch.save({'teacher': teacher | projection, 'epoch': 3}, tmp_path / 'training.pth')
    torch.save(trunk, tmp_path / 'released.pth')
    expected = AttentionProbe(checkpoint, device='cpu')(picture(64, 48))
    for name in ('training.pth', 'released.pth'):
        maps = AttentionProbe(tmp_path / name, device='cpu')(picture(64, 48))
        assert torch.equal(maps.class_attention, expected.class_attention)


def test_a_layer_or_head_that_is_not_there_is_named(checkpoint):
    probe = AttentionProbe(checkpoint, device='cpu')
    with pytest.raises(UserError, match=r'layer=3 is not in 0\.\.2, the layers of this model'):
        probe(picture(32, 32), layer=3)
    with pytest.raises(UserError, match=r'class_layer=-1 is not in 0\.\.1, the class-attention'):
        probe(picture(32, 32), class_layer=-1)
    with pytest.raises(UserError, match=r'head 4 is not in 0\.\.3'):
        choose_heads([0, 4], probe.kind.num_heads)


@pytest.mark.parametrize('patch_size', [8, 16])
def test_a_token_sees_as_far_to_each_side_of_its_pixel(patch_size):
    """Where the overlay puts it."""
    embed = ConvPatchEmbed(32, patch_size).eval()
    image = torch.randn(1, 3, 160, 160, requires_grad=True)
    embed(image)[0, :, 3, 4].sum().backward()
    rows, columns = image.grad[0].abs().sum(0).nonzero().unbind(1)
    assert rows.min() + rows.max() == 2 * 3 * patch_size
    assert columns.min() + columns.max() == 2 * 4 * patch_size


@pytest.mark.parametrize('factor', [1, 2, 0.5])
def test_a_token_is_drawn_where_its_pixel_is(factor):
    image = np.zeros((105, 170, 3), np.uint8)
    small = cv2.resize(image, None, fx=factor, fy=factor)
    values = torch.zeros(7, 11)
    values[3, 4] = 1
    brightness = overlay(image, small, values, patch_size=16).sum(-1).astype(int)
    y, x = np.argwhere(brightness >= brightness.max() - 8).mean(0)
    assert (y, x) == pytest.approx(((48.5 * factor) - 0.5, (64.5 * factor) - 0.5), abs=1)


def test_of_more_tokens_than_pixels_none_is_lost():
    values, image = torch.zeros(64, 64), np.zeros((512, 512, 3), np.uint8)
    values[20, 36] = 1
    drawn = overlay(image, cv2.resize(image, (16, 16)), values, patch_size=8).sum(-1)
    assert np.argwhere(drawn > drawn.min()).tolist() == [[5, 9]]


def panels(path) -> tuple[int, int, int]:
    """How many panels there are, in how many columns and rows: large spots on white."""
    ink = np.asarray(Image.open(path).convert('L')) < 250
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink.astype(np.uint8))
    spots = stats[1:][stats[1:, cv2.CC_STAT_AREA] > 1000]
    return len(spots), *(len(set(spots[:, i])) for i in (cv2.CC_STAT_LEFT, cv2.CC_STAT_TOP))


@pytest.mark.parametrize(
    'heads, grid', [(None, (18, 6, 3)), ([2], (9, 3, 3)), ([0, 1, 2, 3] * 2, (30, 5, 6))]
)
def test_the_grid_has_a_panel_for_each_head(checkpoint, tmp_path, heads, grid):
    probe, image = AttentionProbe(checkpoint, device='cpu'), picture(96, 40)
    heads = choose_heads(heads, probe.kind.num_heads)
    draw_attention(tmp_path / 'a.png', image, probe(image), 16, 'title', heads, panel_side=100)
    assert panels(tmp_path / 'a.png') == grid


@pytest.mark.parametrize('size, shape', [(60, (60, 122, 3)), (15, (15, 30, 3))])
def test_the_shorter_side_is_resized(size, shape):
    red = np.full((30, 61, 3), [200, 0, 0], np.uint8)
    assert resized(red, size).shape == shape
    assert (resized(red, size) == [200, 0, 0]).all()


@pytest.fixture
def visualize(monkeypatch, capfd):
    """Run the tool: its exit code, and what it prints."""
    return partial(call_tool, monkeypatch, capfd, 'visualize_attention.py')


def test_the_tool_writes_a_picture(visualize, checkpoint, detector, tmp_path):
    Image.fromarray(picture(40, 60)).save(tmp_path / 'image.png')
    out = tmp_path / 'new' / 'out.png'
    code, printed, _ = visualize(
        tmp_path / 'image.png', checkpoint, '--out', out, '--heads', 0, 3, '--panel', 80
    )
    assert (code, printed) == (0, f'{out}\n')
    assert panels(out) == (12, 4, 3)
    named = tmp_path / 'a$_$b.png'  # no formula
    (tmp_path / 'image.png').rename(named)
    code, printed, _ = visualize(named, detector, '--out', out, '--panel', 80, '--size', 33)
    assert code == 0
    assert 'no class-attention layers: the maps are of q and k alone' in printed
    assert panels(out) == (12, 6, 2)


def test_wrong_input_is_a_sentence(visualize, checkpoint, detector, tmp_path):
    image, text, out = (tmp_path / name for name in ('image.png', 'text.jpg', 'out.png'))
    Image.fromarray(picture(40, 60)).save(image)
    text.write_text('no image')
    for args, message in [
        ((text, checkpoint), f'{text}: it is no image that can be read'),
        ((tmp_path / 'no.png', checkpoint), 'no.png does not exist'),
        ((image, text), f'the checkpoint {text} cannot be read'),
        ((image, checkpoint, '--layer', -1), 'layer=-1 is not in 0..2'),
        ((image, checkpoint, '--heads', 7), 'head 7 is not in 0..3'),
        ((image, detector, '--class-layer', 0), 'has no class-attention layers'),
        ((image, checkpoint, '--size', -3), '--size: -3: not a positive number'),
        ((image, checkpoint, '--device', 'tpu'), "device='tpu' cannot be used"),
    ]:
        code, _, errors = visualize(*args, '--out', out)
        assert code == 2
        assert message in errors
        assert 'Traceback' not in errors
    assert not out.exists()
