"""The attention in models of others, as docs/xca.md shows it."""

import re
from pathlib import Path

import timm
import torch
from helpers import randomize, relative_error
from torch import nn
from torch.nn import functional as F

PAGE = (Path(__file__).parents[2] / 'docs/xca.md').read_text()
CODE = re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)


def test_the_attention_of_edgenext():
    names = {}
    exec(CODE[1], names)
    fast, plain = names['model'].eval(), timm.create_model('edgenext_small').eval()
    randomize(plain)
    fast.load_state_dict(plain.state_dict())
    assert sum(type(m) is names['FastAttention'] for m in fast.modules()) == 3
    image = torch.randn(1, 3, 448, 480)
    assert relative_error(fast(image), plain(image)) <= 1e-5


def test_the_attention_of_restormer():
    names = {'torch': torch}
    exec(CODE[2], names)
    layer, x = names['Attention'](24, 3), torch.randn(2, 24, 7, 9)
    randomize(layer)
    q, k, v = layer.qkv_dwconv(layer.qkv(x)).flatten(2).unflatten(1, (3, 3, 8)).unbind(1)
    attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * layer.temperature
    expected = layer.project_out((attn.softmax(-1) @ v).flatten(1, 2).unflatten(2, (7, 9)))
    assert relative_error(layer(x), expected) <= 1e-6


def test_the_first_example():
    names = {}
    exec(CODE[0].replace('16700', '700'), names)
    assert names['y'].shape == (2, 700, 384) and isinstance(names['qkv'], nn.Linear)
