"""benchmarks/run.py and the models that it compares."""

import json

import pytest
import torch
from helpers import randomize, relative_error
from helpers.in_process import call_tool

from benchmarks.models import PEERS, build
from benchmarks.steps import busy_microseconds
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes


def test_measurements_are_printed_and_written(monkeypatch, capfd, tmp_path):
    models = ['xcit_mm_n12_16', 'timm_n12_16']
    arguments = ['--sizes', '64x96', '--repeats', 2, '--out', tmp_path]
    arguments = '--models', *models, *arguments
    code, printed, _ = call_tool(monkeypatch, capfd, '../benchmarks/run.py', *arguments)
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


def test_whole_models_are_measured(monkeypatch, capfd, tmp_path):
    detector = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
    arguments = ['--models', detector, '--what', 'detector', 'training', '--sizes', '64x96']
    arguments += ['--dtypes', 'bfloat16', '--repeats', 1, '--out', tmp_path]
    code, printed, _ = call_tool(monkeypatch, capfd, '../benchmarks/run.py', *arguments)
    assert code == 0
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    kinds = [(m['what'], m['dtype']) for m in result]
    assert kinds == [('detector', 'bfloat16'), ('training', 'bfloat16')]
    assert f'| {detector}, bfloat16 ' in printed


IN_PROCESS = ['--cfg-options', 'train_dataloader.num_workers=0']


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'shapes'
    make_shapes(root, ShapesSpec(num_train=16, num_val=1, size=64))
    return root


def test_steps_on_drawn_images_are_measured(monkeypatch, capfd, tmp_path):
    model = 'xcit_mm_t12_16+sem_fpn'
    arguments = ['--models', model, '--sizes', 64, '--steps', 1, '--repeats', 1, *IN_PROCESS]
    arguments = ['--what', 'step', '--batch-size', 1, *arguments, '--out', tmp_path]
    code, printed, errors = call_tool(monkeypatch, capfd, '../benchmarks/run.py', *arguments)
    assert code == 0, errors
    (m,) = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    assert (m['model'], m['size'], m['batch_size']) == (model, [64, 64], 1)
    assert f'| {model}, 64x64, float32, batch 1 |' in printed


def test_steps_of_our_runner_and_of_mmseg_are_measured(monkeypatch, capfd, tmp_path, shapes):
    config = 'configs/sem_fpn_xcit_n12_16_shapes.py'
    options = [*IN_PROCESS, f'data_root={shapes}', 'train_dataloader.batch_size=2']
    arguments = ['--models', config, f'{config}+stock', '--steps', 1, '--repeats', 2, *options]
    code, printed, errors = call_tool(
        monkeypatch, capfd, '../benchmarks/run.py', '--what', 'step', *arguments, '--out', tmp_path
    )
    assert code == 0, errors
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    assert [m['model'] for m in result] == [config, f'{config}+stock']
    for m in result:
        assert m['size'] is None and m['batch_size'] == 2
        assert 0 < m['spread'][0] <= m['seconds'] <= m['spread'][1]
        assert all(seconds > 0 for seconds in m['host'].values())
        assert sum(m['host'].values()) <= m['spread'][0] + m['spread'][1]
        assert m['operators'] > 500 and m['waits'] > 0 and m['peak_bytes'] > 2**20
        assert m['kernels'] is m['gpu_seconds'] is None
    assert printed.count('No GPU was measured') == 2
    assert f'{config}, its own data, float32, batch 2' in printed


@pytest.mark.parametrize('suffix', ['', '+stock'])
def test_loaders_are_measured_with_each_number_of_workers(
    monkeypatch, capfd, tmp_path, shapes, suffix
):
    config = f'configs/sem_fpn_xcit_n12_16_shapes.py{suffix}'
    arguments = ['--models', config, '--workers', 0, 1, '--steps', 2, '--repeats', 1]
    arguments += ['--cfg-options', f'data_root={shapes}', '--out', tmp_path]
    code, printed, errors = call_tool(
        monkeypatch, capfd, '../benchmarks/run.py', '--what', 'loader', *arguments
    )
    assert code == 0, errors
    result = json.loads((tmp_path / 'benchmark.json').read_text())['measurements']
    assert [m['workers'] for m in result] == [0, 1]
    assert all(m['images_per_second'] > 0 for m in result)
    assert '1 worker:' in printed


def test_kernels_that_run_at_once_are_busy_once():
    assert busy_microseconds([(0, 4), (1, 2), (3, 6), (10, 11)]) == 7


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
