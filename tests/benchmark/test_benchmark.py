"""tools/benchmark.py and the models that it compares."""

import json
import subprocess
import sys

import pytest
import torch
from helpers import ROOT, randomize, relative_error
from helpers.in_process import call_tool

from xcit_mm.benchmark.models import PEERS, build


def test_measurements_are_printed_and_written(monkeypatch, capfd, tmp_path):
    models = ['xcit_mm_n12_16', 'timm_n12_16']
    arguments = ['--sizes', '64x96', '--repeats', 2, '--out', tmp_path]
    arguments = '--models', *models, *arguments
    code, printed, _ = call_tool(monkeypatch, capfd, 'benchmark.py', *arguments)
    assert code == 0
    result = json.loads((tmp_path / 'benchmark.json').read_text())
    assert result['environment']['torch'] == torch.__version__
    assert result['environment']['threads'] == torch.get_num_threads()
    cells = {(m['what'], m['model']): m for m in result['measurements']}
    assert list(cells) == [(what, model) for what in ('backbone', 'training') for model in models]
    for m in cells.values():
        assert m['size'] == [64, 96]
        assert 0 < m['spread'][0] <= m['seconds'] <= m['spread'][1]
        assert m['peak_bytes'] > 0
        assert m['memory_format'] in ('NCHW', 'NHWC')
        assert f'{m["seconds"] * 1e3:.1f} / {m["peak_bytes"] / 2**20:.0f}' in printed
    for model in models:  # training keeps tensors for the backward pass
        peaks = [cells[what, model]['peak_bytes'] for what in ('training', 'backbone')]
        assert peaks[0] > 2 * peaks[1]


def test_whole_models_in_two_dtypes(monkeypatch, capfd, tmp_path):
    detector = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
    arguments = ['--models', detector, '--what', 'detector', 'training', '--sizes', '64x96']
    arguments += ['--dtypes', 'float32', 'bfloat16', '--repeats', 1, '--out', tmp_path]
    code, printed, _ = call_tool(monkeypatch, capfd, 'benchmark.py', *arguments)
    assert code == 0
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    kinds = [(m['what'], m['dtype']) for m in result]
    assert kinds == [(w, d) for w in ('detector', 'training') for d in ('float32', 'bfloat16')]
    assert f'| {detector}, bfloat16 ' in printed


@pytest.mark.slow
def test_a_model_that_runs_out_of_memory_does_not_end_the_run(tmp_path):
    limited = ['bash', '-c', 'ulimit -d 2300000; exec "$@"', 'bash', sys.executable]
    arguments = '--models timm_n12_8 xcit_mm_n12_16 --sizes 64 1024 --what training --repeats 1'
    command = [*limited, 'tools/benchmark.py', *arguments.split(), '--threads', '1', '--out']
    run = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    fits = {(m['model'], m['size'][0]): m['seconds'] is not None for m in result}
    assert not fits['timm_n12_8', 1024]
    assert fits['timm_n12_8', 64] and fits['xcit_mm_n12_16', 64]
    assert 'out of memory |' in run.stdout


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--models', 'timm_s13_16'], "'timm_s13_16' is not a model: choose xcit_mm_ARCH_PATCH"),
        (
            ['--models', 'timm_s12_16', '--what', 'detector'],
            "'timm_s12_16' has no detector: choose xcit_mm_ARCH_PATCH, resnet50, swin_t, conv",
        ),
        (['--sizes', '100'], '100x100 is not a multiple of 32'),
        (['--repeats', '0'], '0: not a positive number'),
        (['--device', 'cuda:99'], "device='cuda:99'"),
        (['--out', '/proc/nothing'], 'the folder /proc/nothing cannot be written to'),
    ],
)
def test_invalid_input_is_a_line_and_exit_code_2(monkeypatch, capfd, tmp_path, arguments, message):
    code, _, errors = call_tool(monkeypatch, capfd, 'benchmark.py', '--out', tmp_path, *arguments)
    assert code == 2 and message in errors.splitlines()[-1]


@pytest.mark.parametrize('name', PEERS)
def test_peers_take_any_size_and_drop_no_paths(name):
    model = build(name, (96, 160)).eval()
    assert max(getattr(m, 'drop_prob', 0.0) or 0.0 for m in model.modules()) == 0
    with torch.inference_mode():
        maps = model(torch.randn(1, 3, 96, 160))
    assert len(maps) == {'deit_s': 1, 'resnet50': 5}.get(name, 4)


@pytest.mark.parametrize('patch_size', [16, 8])
def test_timms_backbone_computes_the_same_as_that_of_xcit_mm(patch_size):
    timms = build(f'timm_n12_{patch_size}', (64, 64))
    randomize(timms)
    state = {k.removeprefix('model.'): v for k, v in timms.state_dict().items()}
    state = {k.replace('pos_embed.', 'pos_embeder.'): v for k, v in state.items()}
    for level in range(4):
        state = {k.replace(f'levels.{level}', f'fpn{level + 1}'): v for k, v in state.items()}
    backbone = build(f'xcit_mm_n12_{patch_size}', (64, 64))
    backbone.load_state_dict(state)
    image = torch.randn(2, 3, 64, 96)
    for a, b in zip(backbone.eval()(image), timms.eval()(image), strict=True):
        assert relative_error(a, b) <= 1e-5
