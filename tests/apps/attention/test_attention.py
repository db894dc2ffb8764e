"""Attention maps equal a plain computation with timm's model, and are drawn at their tokens."""

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

from xcit_mm.apps.attention import maps as maps_module
from xcit_mm.apps.attention.draw import overlay
from xcit_mm.apps.attention.maps import AttentionProbe, scaled
from xcit_mm.network.layers import ConvPatchEmbed
from xcit_mm.network.weights.names import CLASSIFIER


@pytest.fixture(scope='module')
def model() -> nn.Module:
    model = Xcit(patch_size=16, embed_dim=64, depth=4, num_heads=4, num_classes=7, tokens_norm=True)
    randomize(model)
    return model.eval()


@pytest.fixture(scope='module')
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp('checkpoint') / 'classifier.pth'
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope='module')
def detector(model, tmp_path_factory):
    """The same layers as the backbone of a detector of the release."""
    renamed = {k.replace('pos_embed.', 'pos_embeder.'): v for k, v in model.state_dict().items()}
    state = {f'backbone.{k}': v for k, v in renamed.items() if not k.startswith(CLASSIFIER)}
    state |= {'backbone.fpn2.0.weight': torch.zeros(1), 'rpn_head.weight': torch.zeros(1)}
    path = tmp_path_factory.mktemp('detector') / 'detector.pth'
    torch.save({'state_dict': state}, path)
    return path


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


@torch.inference_mode()
def input_of(module: nn.Module, model: nn.Module, image: np.ndarray) -> Tensor:
    """Return the input of a module inside of a model."""
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    inputs = []
    hook = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(((torch.from_numpy(image) / 255 - mean) / std).permute(2, 0, 1)[None])
    hook.remove()
    return inputs[0]


@torch.inference_mode()
@pytest.mark.parametrize(
    'size, layer, class_layer',  # 16 pixels a token
    [((64, 96), None, None), ((70, 45), 1, 0), ((9, 130), 0, None)],
)
def test_maps_equal_a_plain_computation_with_timms_model(
    model, checkpoint, monkeypatch, size, layer, class_layer
):
    monkeypatch.setattr(maps_module, 'CHUNK', 7)  # tokens: all images have more
    image = picture(*size)
    maps = AttentionProbe(checkpoint, device='cpu')(image, layer, class_layer)
    assert maps.layer == (3 if layer is None else layer)
    assert maps.class_layer == (1 if class_layer is None else class_layer)
    assert maps.queries.shape == (4, -(-size[0] // 16), -(-size[1] // 16))
    # Norms of the rows of q and k, whose columns are normalized (paper, equations 2 and D.5).
    attn = model.blocks[maps.layer].attn
    q, k, _ = attn.qkv(input_of(attn, model, image)[0]).chunk(3, dim=-1)  # (N, C)
    for values, plain in ((maps.queries, q), (maps.keys, k)):
        norms = [head.norm(dim=1) for head in F.normalize(plain, dim=0).chunk(4, dim=1)]
        assert relative_error(values.flatten(1), torch.stack(norms)) < 1e-5
    # The class attention mixes the values to timm's output.
    attn = model.cls_attn_blocks[maps.class_layer].attn
    x = input_of(attn, model, image)
    assert maps.class_attention.shape == maps.queries.shape
    weights = maps.class_attention.flatten(1)  # (h, N)
    weights = torch.cat((1 - weights.sum(1, keepdim=True), weights), dim=1)
    assert (weights > 0).all()
    v = attn.v(x)[0].unflatten(1, (attn.num_heads, -1))  # (1 + N, h, d)
    mixed = torch.einsum('hn,nhd->hd', weights, v).flatten()
    assert relative_error(attn.proj(mixed), attn(x)[0, 0]) < 1e-5


def test_detectors_have_queries_and_keys_and_dino_models_class_attention(
    model, checkpoint, detector, tmp_path
):
    image = picture(70, 45)
    expected = AttentionProbe(checkpoint, device='cpu')(image)
    maps = AttentionProbe(detector, device='cpu')(image)
    assert maps.class_attention is maps.class_layer is None
    assert torch.equal(maps.queries, expected.queries)
    assert torch.equal(maps.keys, expected.keys)
    trunk = {k: v for k, v in model.state_dict().items() if not k.startswith('head.')}
    teacher = {f'backbone.{k}': v for k, v in trunk.items()}
    projection = {'head.mlp.0.weight': torch.zeros(2), 'head.last_layer.weight_g': torch.zeros(2)}
    for state in (trunk, {'teacher': teacher | projection, 'epoch': 3}):
        torch.save(state, tmp_path / 'dino.pth')
        maps = AttentionProbe(tmp_path / 'dino.pth', device='cpu')(image)
        assert torch.equal(maps.class_attention, expected.class_attention)


@pytest.mark.parametrize('patch_size', [8, 16])
def test_a_token_sees_as_far_to_each_side_of_its_pixel(patch_size):
    """The overlay places the token there."""
    embed = ConvPatchEmbed(32, patch_size).eval()
    image = torch.randn(1, 3, 160, 160, requires_grad=True)
    embed(image)[0, :, 3, 4].sum().backward()
    rows, columns = image.grad[0].abs().sum(0).nonzero().unbind(1)
    assert rows.min() + rows.max() == 2 * 3 * patch_size
    assert columns.min() + columns.max() == 2 * 4 * patch_size


def test_a_token_is_drawn_at_its_pixel_and_none_is_lost_if_a_pixel_has_several():
    image, values = np.zeros((105, 170, 3), np.uint8), torch.zeros(7, 11)
    values[3, 4] = 1
    for factor in (1, 2, 0.5):
        drawn = overlay(image, scaled(image, factor), values, patch_size=16).sum(-1).astype(int)
        y, x = np.argwhere(drawn >= drawn.max() - 8).mean(0)
        assert (y, x) == pytest.approx(((48.5 * factor) - 0.5, (64.5 * factor) - 0.5), abs=1)
    values, image = torch.zeros(64, 64), np.zeros((512, 512, 3), np.uint8)
    values[20, 36] = 1
    drawn = overlay(image, scaled(image, 1 / 32), values, patch_size=8).sum(-1)
    assert np.argwhere(drawn > drawn.min()).tolist() == [[5, 9]]


def panels(path) -> tuple[int, int, int]:
    """Count the panels, columns and rows of a picture: large spots on white."""
    ink = np.asarray(Image.open(path).convert('L')) < 250
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink.astype(np.uint8))
    spots = stats[1:][stats[1:, cv2.CC_STAT_AREA] > 1000] // 4  # to four pixels
    return len(spots), *(len(set(spots[:, i])) for i in (cv2.CC_STAT_LEFT, cv2.CC_STAT_TOP))


@pytest.fixture
def visualize(monkeypatch, capfd):
    """Run the tool and return its exit code, output and errors."""
    return partial(call_tool, monkeypatch, capfd, 'visualize_attention.py')


def test_the_tool_writes_a_picture(visualize, checkpoint, detector, tmp_path):
    image = tmp_path / 'a$_$b.png'  # not a formula
    Image.fromarray(picture(40, 60)).save(image)
    out = tmp_path / 'new' / 'out.png'
    code, printed, _ = visualize(image, checkpoint, '--out', out, '--heads', 0, 3, '--panel', 80)
    assert (code, printed) == (0, f'{out}\n')
    assert panels(out) == (12, 4, 3)
    code, printed, _ = visualize(image, detector, '--out', out, '--panel', 80, '--size', 33)
    assert code == 0
    assert 'no class-attention layers: the maps are of q and k alone' in printed
    assert panels(out) == (12, 6, 2)
    code, _, _ = visualize(image, checkpoint, '--out', out, '--heads', *range(4), *range(4))
    assert panels(out) == (30, 5, 6)
