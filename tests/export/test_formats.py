"""Files of every format and precision compute what PyTorch does, and are measured beside it."""

import json
import shutil
from functools import cache

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.random_weights import SEGMENTOR, save_random_weights

from xcit_mm import UserError
from xcit_mm.export import evaluate, export, load_runtime

pytest.importorskip('onnxruntime')

CONFIG = ROOT / SEGMENTOR
SMALL = {
    'model.backbone.arch': dict(embed_dim=32, depth=4, num_heads=4, eta=1.0),
    'model.backbone.out_indices': (0, 1, 2, 3),
    'model.neck.in_channels': [32] * 4,
    'model.neck.out_channels': 32,
    'model.decode_head.in_channels': [32] * 4,
    'model.decode_head.channels': 16,
}
SUFFIXES = dict(onnx='.onnx', openvino='.xml', torch='.pt2', aotinductor='.pt2')
PACKAGES = dict(onnx='onnx', openvino='nncf', torch='torch', aotinductor='torch')


@pytest.fixture(scope='module')
def options(shapes_root):
    return {**SMALL, 'data_root': str(shapes_root), 'test_dataloader.dataset.indices': 4}


@pytest.fixture(scope='module')
def checkpoint(options, tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'random.pth'
    return save_random_weights(str(CONFIG), path, **options)


@pytest.fixture(scope='module')
def exports(options, checkpoint, shapes_root, tmp_path_factory):
    """Return what exports to a format and precision, once."""
    folder = tmp_path_factory.mktemp('exported')

    @cache
    def export_once(format, precision):
        pytest.importorskip(PACKAGES[format])
        images = [str(shapes_root / 'ade/images/validation')]
        return export(
            CONFIG,
            checkpoint,
            folder / f'{format}_{precision}{SUFFIXES[format]}',
            format,
            precision,
            calibrate=images if precision == 'int8' else (),
            options=options,
        )

    return export_once


@pytest.mark.parametrize('format, precision', [('torch', 'float32'), ('onnx', 'int8')])
def test_a_file_is_written_after_it_was_compared(exports, format, precision):
    exported = exports(format, precision)
    assert exported.size == exported.path.stat().st_size
    assert exported.outputs == ('logits', 'labels')
    assert exported.differences
    outputs = load_runtime(exported.path)(255 * torch.rand(1, 3, 99, 131))
    assert {name: tuple(t.shape) for name, t in outputs.items()} == {
        'logits': (1, 4, 99, 131),
        'labels': (1, 99, 131),
    }


@pytest.mark.slow
@pytest.mark.parametrize('format', ['onnx', 'openvino', 'torch', 'aotinductor'])
@pytest.mark.parametrize('precision', ['float32', 'float16', 'int8'])
def test_formats_and_precisions(exports, format, precision):
    if format == 'aotinductor' and not shutil.which('g++'):
        pytest.skip('no compiler')
    if precision == 'int8' and format in ('torch', 'aotinductor'):
        with pytest.raises(UserError, match=f'{format} has no int8: use --format onnx or openvino'):
            exports(format, precision)
        return
    exported = exports(format, precision)
    bound = dict(float32=1e-4, float16=0.1, int8=0.3)[precision]
    errors = [difference.error for difference in exported.differences.values()]
    assert sum(errors) / len(errors) <= bound
    files = sorted(path.name for path in exported.path.parent.glob(f'{exported.path.stem}.*'))
    assert files == [f'{exported.path.stem}{suffix}' for suffix in (
        ('.bin', '.xml') if format == 'openvino' else (SUFFIXES[format],)
    )]  # fmt: skip
    if precision != 'float32' and format != 'aotinductor':
        assert exported.size < exports(format, 'float32').size


def test_files_are_evaluated_beside_pytorch(exports, options, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the log goes
    path = exports('torch', 'float32').path
    rows = evaluate(str(CONFIG), str(checkpoint), [path], options)
    assert [(row.name, row.size) for row in rows] == [
        ('PyTorch', None),
        (path.name, path.stat().st_size),
    ]
    assert rows[0].metrics['mIoU'] == pytest.approx(rows[1].metrics['mIoU'], abs=0.02)
    assert min(row.milliseconds for row in rows) > 0


def test_the_tool_verifies_on_images_and_refuses_what_differs(
    checkpoint, options, shapes_root, monkeypatch, capfd, tmp_path
):
    images = sorted((shapes_root / 'ade/images/validation').iterdir())[:2]
    arguments = [CONFIG, checkpoint, '--format', 'torch', '--out', tmp_path / 'x.pt2', '--verify']
    texts = [f'{name}={json.dumps(value)}' for name, value in options.items() if name not in SMALL]
    small = tmp_path / 'small.py'
    small.write_text(f'_base_ = {str(CONFIG)!r}\n' + _nested(SMALL))
    arguments[0] = small
    code, printed, _ = call_tool(
        monkeypatch, capfd, 'export.py', *arguments, *images, '--cfg-options', *texts
    )
    assert code == 0
    for image in images:
        assert f'{image}: differs from PyTorch by' in printed
    assert (tmp_path / 'x.pt2').is_file()


def _nested(options):
    """Return the lines of a config that set dotted names."""
    tree = {}
    for name, value in options.items():
        *parents, last = name.split('.')
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = dict(value, _delete_=True) if isinstance(value, dict) else value
    return ''.join(f'{name} = {value!r}\n' for name, value in tree.items())
