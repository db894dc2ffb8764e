"""mmcv's operators on the stand-in, against what compiled mmcv computed, and how to get them."""

import subprocess
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import mmcv
import pytest
import torch
from helpers.compiled_mmcv import results
from mmcv import ops
from mmcv.utils import collect_env
from mmengine.utils.dl_utils import misc

import xcit_mm  # noqa: F401  installs the stand-in before mmcv.ops is imported
from xcit_mm import mmcv_ops
from xcit_mm.base import environment, old_mmengine
from xcit_mm.mmcv_ops import roi_align
from xcit_mm.mmcv_ops.__main__ import main as list_operators
from xcit_mm.mmcv_ops.families import FAMILIES

# Copies, comparisons and sums in the same order. The others multiply matrices, by a library that
# may differ, or sum a gradient in another order.
EXACT = ('psa_mask', 'nms_match')
of_the_stand_in = pytest.mark.skipif(not mmcv_ops.is_active(), reason='mmcv is compiled')


def test_all_cases_equal_those_of_compiled_mmcv(golden):
    """See helpers/compiled_mmcv.py."""
    computed, expected = results(), golden('compiled_mmcv')
    assert computed.keys() == expected.keys()
    for name, value in computed.items():
        if name.startswith(EXACT) and 'gradient' not in name:
            assert torch.equal(value, expected[name]), name
        else:
            largest = float(expected[name].abs().max())
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6 * largest, msg=name)


@pytest.fixture(scope='module')
def arrays(golden):
    return golden('mmcv_ops')


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('threshold', [0.3, 0.5, 0.7])
def test_nms(arrays, threshold, offset):
    boxes, scores = arrays['nms/boxes'], arrays['nms/scores']
    dets, keep = ops.nms(boxes, scores, threshold, offset=offset)
    assert torch.equal(keep, arrays[f'nms/keep/iou{threshold}/offset{offset}'])
    assert torch.equal(dets, arrays[f'nms/dets/iou{threshold}/offset{offset}'])


def test_nms_of_some_scores_and_by_class_and_soft_nms(arrays):
    boxes, scores, ids = (arrays[f'nms/{name}'] for name in ('boxes', 'scores', 'ids'))
    _, keep = ops.nms(boxes, scores, 0.5, score_threshold=0.4, max_num=20)
    assert torch.equal(keep, arrays['nms/keep/score0.4_max20'])
    config = dict(type='nms', iou_threshold=0.5)
    for name in ('batched_nms', 'batched_nms_agnostic'):
        dets, keep = ops.batched_nms(boxes, scores, ids, config, class_agnostic='agnostic' in name)
        assert torch.equal(keep, arrays[f'{name}/keep'])
        assert torch.equal(dets, arrays[f'{name}/dets'])
    for method in ('naive', 'linear', 'gaussian'):
        dets, keep = ops.soft_nms(boxes, scores, iou_threshold=0.3, method=method)
        assert torch.equal(keep, arrays[f'soft_nms/{method}/keep'])
        torch.testing.assert_close(dets, arrays[f'soft_nms/{method}/dets'], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
@pytest.mark.parametrize('size', [7, 14])
def test_roi_align_forward_and_gradient(arrays, size, sampling_ratio, aligned):
    image = arrays['roi/input'].clone().requires_grad_()
    out = ops.roi_align(image, arrays['roi/rois'], size, 0.25, sampling_ratio, 'avg', aligned)
    (out * arrays[f'roi/cotangent{size}']).sum().backward()
    name = f'roi/size{size}_sr{sampling_ratio}_aligned{int(aligned)}'
    assert torch.equal(out, arrays[f'{name}/out'])
    assert torch.equal(image.grad, arrays[f'{name}/grad'])


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_roi_align_of_channels_last_maps(sampling_ratio, aligned, monkeypatch):
    shapes = []
    compute = roi_align._bins
    monkeypatch.setattr(roi_align, '_bins', lambda *a: shapes.append(tuple(a[0])) or compute(*a))
    monkeypatch.setattr(roi_align, 'MAX_REGIONS', 16)
    monkeypatch.setattr(roi_align, 'MAX_WEIGHTS', 100_000)  # several parts, and groups of them
    maps = torch.randn(2, 6, 21, 34)
    corners = torch.rand(200, 2) * 160 - 20  # some regions are outside of the map
    extents = torch.rand(200, 2) ** 3 * 130  # up to those larger than the map
    extents[::10, 1] = 0
    image = torch.randint(0, 2, (200, 1)).float()
    rois = torch.cat([image, corners, corners + extents], dim=1)
    options = rois, (7, 5), 0.25, sampling_ratio, 'avg', aligned
    expected = ops.roi_align(maps, *options)
    in_rows = maps.to(memory_format=torch.channels_last)
    torch.testing.assert_close(ops.roi_align(in_rows, *options), expected, rtol=0, atol=2e-6)
    cotangent = torch.randn_like(expected)
    gradients = []
    for inputs in (maps, in_rows):
        inputs = inputs.clone(memory_format=torch.preserve_format).requires_grad_()
        gradients += torch.autograd.grad(ops.roi_align(inputs, *options), inputs, cotangent)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6 * float(gradients[0].abs().max()))
    assert shapes == 3 * [maps.shape]  # a prediction, and both passes of a training
    assert ops.roi_align(in_rows, rois[:0], *options[1:]).shape == (0, 6, 7, 5)
    for dtype in (torch.float16, torch.bfloat16):
        output = ops.roi_align(in_rows.to(dtype), *options).float()
        torch.testing.assert_close(output, expected, rtol=0, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_roi_align_in_16_bit_is_that_of_the_rounded_map(arrays, dtype):
    rois = arrays['roi/rois'].to(dtype)
    image = arrays['roi/input'].to(dtype).requires_grad_()
    wide = image.detach().float().requires_grad_()
    out = ops.roi_align(image, rois, 7, 0.25, 0, 'avg', True)
    expected = ops.roi_align(wide, rois.float(), 7, 0.25, 0, 'avg', True)
    assert torch.equal(out, expected.to(dtype))
    out.sum().backward()
    expected.sum().backward()
    assert torch.equal(image.grad, wide.grad.to(dtype))


@pytest.mark.parametrize('weighted, reduction', [(False, 'none'), (True, 'mean'), (True, 'sum')])
def test_sigmoid_focal_loss_is_the_one_of_mmdet_in_python(weighted, reduction):
    environment.require('mmdet.models')
    from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss

    logits = (torch.randn(50, 7) * 3).requires_grad_()
    target = torch.randint(0, 7 + (not weighted), (50,))  # 7: background
    weight = torch.rand(7) if weighted else None
    loss = ops.sigmoid_focal_loss(logits, target, 2.0, 0.25, weight, reduction)
    one_hot = torch.nn.functional.one_hot(target, 8)[:, :7]
    expected = py_sigmoid_focal_loss(logits, one_hot, gamma=2.0, alpha=0.25, reduction='none')
    if weighted:
        expected = (expected * weight[target][:, None]).sum()
    if reduction == 'mean':
        expected = expected / len(target)
    torch.testing.assert_close(loss, expected)
    cotangent = torch.randn_like(loss)
    gradients = (torch.autograd.grad(value, logits, cotangent)[0] for value in (loss, expected))
    torch.testing.assert_close(*gradients)


def test_sigmoid_focal_loss_of_large_logits_is_finite():
    logits = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    loss = ops.sigmoid_focal_loss(logits, torch.tensor([0]), 2.0, 0.25, None, 'sum')
    loss.backward()
    assert loss.item() == pytest.approx(200 * 0.25 + 200 * 0.75)
    assert torch.isfinite(logits.grad).all()


@of_the_stand_in
@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda: ops.nms_rotated(torch.rand(3, 5), torch.rand(3), 0.5), 'nms_rotated needs'),
        (lambda: ops.roi_pool(torch.rand(1, 1, 4, 4), torch.zeros(1, 5), 1, 1), 'roi_pool_forward'),
        (
            lambda: ops.roi_align(torch.rand(1, 1, 4, 4), torch.zeros(1, 5), 1, 1, 0, 'max'),
            "roi_align with pool_mode='max' needs compiled mmcv",
        ),
    ],
)
def test_other_operators_say_that_they_need_compiled_mmcv(call, message):
    with pytest.raises(NotImplementedError, match=message):
        call()


@of_the_stand_in
def test_mmengine_looks_for_the_extension_on_python_3_14(monkeypatch):
    """The original mmengine calls ``pkgutil.find_loader``, which Python 3.14 does not have."""
    monkeypatch.setattr(misc, 'pkgutil', SimpleNamespace(), raising=False)
    old_mmengine.mend()
    assert misc.pkgutil.find_loader('mmcv') is mmcv.__spec__.loader
    assert misc.pkgutil.find_loader('mmcv.missing') is None
    misc.mmcv_full_available()


def test_a_bug_report_can_be_collected():
    assert collect_env()['MMCV Compiler'] == 'n/a'


@of_the_stand_in
def test_the_list_and_the_page_name_all_operators(capsys, monkeypatch):
    monkeypatch.setattr('sys.argv', ['mmcv_ops'])
    list_operators()
    listed = capsys.readouterr().out
    page = Path('docs/operators.md').read_text()
    for name, computed_by, compared_with in FAMILIES:
        assert name.split()[0] in listed
        assert f'| {name} | {computed_by} | {compared_with} |' in page
    assert 'nms_rotated' in listed.partition('Only compiled mmcv')[2]


def test_one_line_in_a_config_installs_the_operators_and_imports_little_else(tmp_path):
    (tmp_path / 'config.py').write_text("custom_imports = dict(imports=['xcit_mm'])\n")
    program = (
        'import sys; from mmengine.config import Config; Config.fromfile("config.py"); '
        'import mmcv.ops; print(*(name for name in sys.modules if name.startswith("xcit_mm."))); '
        'import xcit_mm; assert "load_model" in dir(xcit_mm); assert not hasattr(xcit_mm, "no"); '
        'assert xcit_mm.stream'
    )
    command = [sys.executable, '-c', program]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    rooms = {name.split('.')[1] for name in done.stdout.split()}
    assert {'network', 'mmcv_ops', 'data'} <= rooms  # data has the image loaders
    assert not {'train', 'predict', 'large'} & rooms


def test_a_script_runs_after_the_operators_are_there(tmp_path, monkeypatch, capsys):
    """mmdet's tools/test.py imports mmdet, which imports mmcv.ops, before it reads a config."""
    (tmp_path / 'neighbor.py').write_text('WORD = "found"')
    script = tmp_path / 'script.py'
    script.write_text('import sys, mmcv.ops, neighbor\nprint(__name__, sys.argv, neighbor.WORD)')
    monkeypatch.setattr('sys.argv', ['mmcv_ops', str(script), 'a', '-b'])
    monkeypatch.setattr('sys.path', list(sys.path))
    list_operators()
    assert capsys.readouterr().out == f"__main__ ['{script}', 'a', '-b'] found\n"


@pytest.mark.parametrize(
    'switch, files, active', [('1', [], True), ('0', [], False), ('1', ['_ext.py'], False)]
)
def test_it_replaces_what_an_mmcv_that_is_not_imported_yet_lacks(
    monkeypatch, tmp_path, switch, files, active
):
    for name in ('__init__.py', *files):
        (tmp_path / name).touch()
    mmcv = spec_from_file_location('mmcv', tmp_path / '__init__.py')
    # An editable installation has its own finder, and is not on the path.
    finder = SimpleNamespace(find_spec=lambda name, *_: mmcv if name == 'mmcv' else None)
    monkeypatch.setattr(sys, 'meta_path', [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, 'mmcv')
    monkeypatch.delitem(sys.modules, mmcv_ops.EXTENSION)
    monkeypatch.setenv(mmcv_ops.SWITCH, switch)
    mmcv_ops.install()
    assert mmcv_ops.is_active() == active
