"""Counts of parameters and multiply-adds against the paper's and against counts by hand."""

import json
from itertools import pairwise

import pytest
from helpers import ROOT
from helpers.in_process import call_tool

from xcit_mm import UserError
from xcit_mm.apps import flops
from xcit_mm.config.load import load_config
from xcit_mm.network.archs import ARCHS

# GFLOPs of the paper's table 1: patch 16 at 224, and patch 8 at 384.
PAPER = {
    'n12': (0.5, 6.4),
    't12': (1.2, 14.3),
    't24': (2.3, 27.3),
    's12': (4.8, 55.6),
    's24': (9.1, 106.0),
    'm24': (16.2, 188.0),
    'l24': (36.1, 417.9),
}
COLUMNS = ((16, 224), (8, 384))
# Millions of parameters of the classifiers (patch 16) in the paper.
PARAMETERS = dict(n12=3, t12=7, t24=12, s12=26, s24=48, m24=84, l24=189)


def part(count, name):
    return next(p for p in count.parts if p.name == name)


@pytest.mark.parametrize(
    'arch', [pytest.param(a, marks=[] if a == 'n12' else pytest.mark.slow) for a in PAPER]
)
def test_classifiers_have_the_flops_of_the_paper(arch):
    """Within 2 %. The paper cuts its figures after the first decimal: 0.5 means 0.5 to 0.6."""
    for (patch_size, side), figure in zip(COLUMNS, PAPER[arch], strict=True):
        count = flops.count_classifier(arch, patch_size, (side, side)).total
        assert 0.98 * figure <= count.multiply_adds / 1e9 <= 1.02 * (figure + 0.1)
        assert round(count.parameters / 1e6) == PARAMETERS[arch]
        assert count.computed < count.multiply_adds


def test_a_classifier_that_timm_does_not_have_is_a_sentence():
    with pytest.raises(UserError, match='timm has no XCiT-M12/16: count the backbone'):
        flops.count_classifier('m12', 16, (224, 224))


@pytest.mark.parametrize('arch, side', [('n12', 224), ('s12', 1024)])
def test_the_products_of_a_backbone_are_counted(arch, side):
    """Paper, section 3.2: 4 N C^2 + 2 N C d; in the Gram form 2 N C^2 + ..."""
    count = flops.count_backbone(arch, 16, (side, side))
    C, depth, heads, *_ = ARCHS[arch]
    d, N = C // heads, (side // 16) ** 2
    direct = depth * (4 * N * C**2 + 2 * N * C * d)
    gram = depth * (2 * N * C**2 + 3 * C**3 + 2 * C**2 * d)
    attention = part(count, 'attention')
    assert attention.multiply_adds == direct
    assert attention.computed == pytest.approx(direct if side == 224 else gram, rel=0.01)
    assert part(count, 'MLP').multiply_adds == depth * 8 * N * C**2
    assert part(count, 'local interaction').multiply_adds == depth * 2 * 9 * N * C
    # [deconvolution, deconvolution] and [deconvolution]: each token gives 2 x 2 of C channels.
    assert part(count, 'pyramid').multiply_adds == (4 + 16 + 4) * N * C**2
    channels, sides = (3, C // 8, C // 4, C // 2, C), (8, 4, 2, 1)  # relative to those of N
    stem = sum(9 * a * b * N * s**2 for (a, b), s in zip(pairwise(channels), sides, strict=True))
    assert part(count, 'stem').multiply_adds == stem
    assert all(p.computed == p.multiply_adds for p in count.parts if p is not attention)


def test_a_detector_is_counted_with_the_maximum_of_regions():
    count = flops.count_config('configs/mask_rcnn_xcit_t12_16_3x.py', (801, 1333))
    pixels = 14**2
    mask = 4 * 9 * 256**2 * pixels + 4 * 256**2 * pixels + 80 * 256 * 4 * pixels
    assert part(count, 'mask head').multiply_adds == 100 * mask
    box = 7**2 * 256 * 1024 + 1024 * 1024 + 1024 * (81 + 320)
    assert part(count, 'box head').multiply_adds == 1000 * box
    assert [note.split(',')[0] for note in count.notes] == [
        'The image is padded to 832x1344.',
        'The box head is counted for 1000 proposals',
        'The mask head is counted for 100 objects',
    ]


@pytest.mark.parametrize(
    'config, heads, parameters',
    [
        ('mask_rcnn_xcit_t12_16_3x', ['neck', 'RPN head', 'box head', 'mask head'], 26.18),
        ('retinanet_xcit_t12_16_1x', ['neck', 'bbox head'], 15.49),
        ('sem_fpn_xcit_t12_8_80k', ['neck', 'decode head'], 8.59),
        ('upernet_xcit_t12_8_160k', ['decode head', 'auxiliary head'], 33.87),
    ],
)
def test_whole_models_are_counted(config, heads, parameters):
    count = flops.count_config(f'configs/{config}.py', (512, 700))
    assert [p.name for p in count.parts if 'backbone' not in p.name] == heads
    assert round(count.total.parameters / 1e6, 2) == parameters
    assert count.total.multiply_adds == sum(p.multiply_adds for p in count.parts)
    for name in heads:
        assert (part(count, name).multiply_adds > 0) == (name != 'auxiliary head')


def test_the_tool_counts_a_large_image(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(ROOT)
    file = tmp_path / 'made' / 'flops.json'
    arguments = ['configs/sem_fpn_xcit_n12_16_shapes.py', '--size', 6000, 4000, '--out', file]
    code, printed, _ = call_tool(monkeypatch, capfd, 'get_flops.py', *arguments)
    assert code == 0
    result = json.loads(file.read_text())
    total, numbers = result['total'], ('parameters', 'multiply_adds', 'computed')
    assert result['size'] == [6000, 4000] and total['computed'] < total['multiply_adds']
    line = next(line for line in printed.splitlines() if line.startswith('total'))
    expected = [total[name] / unit for name, unit in zip(numbers, (1e6, 1e9, 1e9), strict=True)]
    assert line.split()[1::2] == [f'{number:.2f}' for number in expected]


def test_a_model_with_other_heads_is_refused():
    config = f'{ROOT}/configs/sem_fpn_xcit_n12_16_shapes.py'
    head = load_config(config).model.decode_head.to_dict()
    options = {'model.num_stages': 1, 'model.decode_head': [head]}
    options['model.type'] = 'CascadeEncoderDecoder'
    match = 'the model AlignedCascadeEncoderDecoder cannot be counted, except its'
    with pytest.raises(UserError, match=match):
        flops.count_config(config, (64, 64), options)
