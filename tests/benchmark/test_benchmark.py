"""The benchmark, as a user types it, and what it compares."""

import json

import pytest
import torch
from helpers import randomize, relative_error

from xcit_mm.benchmark.measure import Settings
from xcit_mm.benchmark.models import PEERS, build


def test_it_prints_writes_and_draws_every_model_at_every_size(run_tool, tmp_path):
    models = ['xcit_mm_n12_16', 'timm_n12_16', 'resnet50']
    run = run_tool(
        'benchmark.py', '--models', *models, '--sizes', 64, '64x96', '--repeats', 2,
        '--threads', 1, '--out', tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / 'benchmark.json').read_text())
    assert result['environment']['torch'] == torch.__version__
    assert result['environment']['threads'] == 1
    cells = [(m['mode'], tuple(m['size']), m['model']) for m in result['measurements']]
    assert cells == [
        (mode, size, model)
        for mode in ('inference', 'training')
        for size in ((64, 64), (64, 96))
        for model in models
    ]
    for m in result['measurements']:
        assert 0 < m['spread'][0] <= m['seconds'] <= m['spread'][1]
        assert m['peak_bytes'] > 0
        assert m['memory_format'] in ('NCHW', 'NHWC')
        assert f'{m["seconds"] * 1e3:.1f} / {m["peak_bytes"] / 2**20:.0f}' in run.stdout
    # Kept for the backward pass, so training takes more than inference.
    peaks = {cell: m['peak_bytes'] for cell, m in zip(cells, result['measurements'], strict=True)}
    for model in models:
        assert peaks['training', (64, 64), model] > 2 * peaks['inference', (64, 64), model]
    for name in ('inference_time', 'inference_memory', 'training_time', 'training_memory'):
        assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')


def test_a_model_that_does_not_fit_is_shown_and_the_run_goes_on(run_tool, tmp_path):
    run = run_tool(
        'benchmark.py', '--models', 'timm_n12_8', 'xcit_mm_n12_16', '--sizes', 64, 2048,
        '--modes', 'training', '--repeats', 1, '--threads', 1, '--memory-limit', 3,
        '--out', tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    fits = {(m['model'], m['size'][0]): m['seconds'] is not None for m in result}
    assert not fits['timm_n12_8', 2048]
    assert fits['timm_n12_8', 64]
    assert fits['xcit_mm_n12_16', 64]
    assert 'out of memory |' in run.stdout


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--models', 'vgg'], "'vgg' is not the name of a model: there are xcit_mm_ARCH_PATCH"),
        (['--models', 'timm_s13_16'], "'timm_s13_16' is not the name of a model"),
        (['--sizes', '100'], '100x100 does not consist of multiples of 32'),
        (['--repeats', '0'], 'repeats=0 is not at least 1'),
        (['--device', 'cuda:99'], "device='cuda:99'"),
        (['--out', '/proc/nothing'], 'the folder /proc/nothing cannot be written to'),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run_tool, tmp_path, arguments, message):
    run = run_tool(
        'benchmark.py', *(['--out', tmp_path] if '--out' not in arguments else []), *arguments
    )
    assert run.returncode == 2
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_no_model_drops_paths():
    for name in PEERS:
        rates = [getattr(m, 'drop_prob', 0.0) or 0.0 for m in build(name, (64, 64)).modules()]
        assert max(rates) == 0


@pytest.mark.parametrize('patch_size', [16, 8])
def test_timms_backbone_is_the_same_function_as_ours(patch_size):
    theirs, ours = (
        build(f'timm_n12_{patch_size}', (64, 64)),
        build(f'xcit_mm_n12_{patch_size}', (64, 64)),
    )
    randomize(theirs)
    state = {
        name.replace('pos_embed.', 'pos_embeder.').replace('levels.', 'fpn'): value
        for name, value in theirs.state_dict().items()
    }
    state = {
        f'fpn{int(name[3]) + 1}{name[4:]}' if name.startswith('fpn') else name: value
        for name, value in state.items()
    }
    ours.load_state_dict(state)
    image = torch.randn(2, 3, 64, 96)
    for a, b in zip(ours.eval()(image), theirs.eval()(image), strict=True):
        assert relative_error(a, b) <= 1e-5


@pytest.mark.parametrize('name', PEERS)
def test_every_peer_takes_any_size(name):
    size = (96, 160)
    with torch.inference_mode():
        maps = build(name, size).eval()(torch.randn(1, 3, *size))
    assert len(maps) == (1 if name == 'deit_s' else 4 + (name == 'resnet50'))


def test_settings_without_a_gpu_name_what_is_possible():
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"'cuda' cannot be used.*device='cpu'"):
            Settings(models=('resnet50',), sizes=((64, 64),), device='cuda')
