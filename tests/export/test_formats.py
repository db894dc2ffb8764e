"""Files of every format and precision compute what PyTorch does, and are measured beside it."""

import json
import shutil
from functools import cache

import pytest
import torch
from helpers import ROOT, relative_error
from helpers.in_process import call_tool
from helpers.pickles import records, zipped
from helpers.random_weights import SEGMENTOR, save_random_weights

from xcit_mm import UserError, load_model
from xcit_mm.export import FORMATS, PRECISIONS, evaluate, export, load_runtime
from xcit_mm.export.comparison import TOLERANCES
from xcit_mm.export.formats import BY_NAME
from xcit_mm.export.formats.onnx import float_nodes
from xcit_mm.export.graphs import build_graph

pytest.importorskip('onnxruntime')

CONFIG = f"""
_base_ = {str(ROOT / SEGMENTOR)!r}
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=4, num_heads=4, eta=1.0),
        out_indices=(0, 1, 2, 3),
    ),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=16),
)
"""
PACKAGES = dict(onnx='onnx', openvino='nncf', torch='torch', aotinductor='torch')


@pytest.fixture(scope='module')
def options(shapes_root):
    return {
        'data_root': str(shapes_root),
        'test_dataloader.dataset.indices': 4,
        'test_dataloader.num_workers': 0,
    }


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp('config') / 'small.py'
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope='module')
def checkpoint(config, tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'random.pth'
    return save_random_weights(str(config), path)


@pytest.fixture(scope='module')
def exports(config, options, checkpoint, shapes_root, tmp_path_factory):
    """Return what exports to a format and precision, once."""
    folder = tmp_path_factory.mktemp('exported')

    @cache
    def export_once(format, precision):
        pytest.importorskip(PACKAGES[format])
        images = [str(shapes_root / 'ade/images/validation')]
        return export(
            config,
            checkpoint,
            folder / f'{format}_{precision}{BY_NAME[format].suffix}',
            format,
            precision,
            calibrate=images if precision == 'int8' else (),
            options=options,
        )

    return export_once


def inputs_of_convolutions(path):
    """Return the operators that compute the inputs, by the names of all inputs."""
    import onnx

    nodes = onnx.load(path).graph.node
    sources = {output: node for node in nodes for output in node.output}
    return {
        ' '.join(node.input): [sources[name].op_type for name in node.input if name in sources]
        for node in nodes
        if node.op_type == 'Conv'
    }


@pytest.mark.parametrize('format, precision', [('torch', 'float32'), ('onnx', 'int8')])
def test_a_file_is_written_after_it_was_compared(exports, format, precision):
    exported = exports(format, precision)
    assert exported.size == exported.path.stat().st_size
    assert exported.outputs == ('logits', 'labels')
    assert exported.differences
    if precision == 'int8':  # but for the last layer
        narrow = inputs_of_convolutions(exported.path)
        assert ['DequantizeLinear'] * 3 in narrow.values()
        (last,) = (inputs for name, inputs in narrow.items() if 'conv_seg' in name)
        assert 'DequantizeLinear' not in last
    outputs = load_runtime(exported.path)(255 * torch.rand(1, 3, 99, 131))
    assert {name: tuple(t.shape) for name, t in outputs.items()} == {
        'logits': (1, 4, 99, 131),
        'labels': (1, 99, 131),
    }
    with pytest.raises(UserError, match=r'not take this image, \(1, 5, 99, 131\) torch.float32 \('):
        load_runtime(exported.path)(torch.rand(1, 5, 99, 131))


@pytest.mark.slow
@pytest.mark.parametrize(
    'format, precision',
    [
        (format, precision)
        for format in FORMATS
        for precision in PRECISIONS
        if format != 'aotinductor'
        or precision == 'int8'  # compiling takes a minute: test_export.py
    ],
)
def test_formats_and_precisions(exports, config, checkpoint, options, format, precision):
    if precision == 'int8' and format in ('torch', 'aotinductor'):
        with pytest.raises(UserError, match=f'{format} has no int8: use --format onnx or openvino'):
            exports(format, precision)
        return
    exported = exports(format, precision)
    image = 255 * torch.rand(1, 3, 99, 131)
    graph = build_graph(load_model(config, checkpoint, 'cpu', options).module, 'model')
    logits = load_runtime(exported.path)(image)['logits']
    bound = dict(float32=1e-4, float16=0.05, int8=0.3)[precision]
    with torch.no_grad():
        assert relative_error(logits, graph.reference(image)[0]) <= bound
    files = sorted(path.name for path in exported.path.parent.glob(f'{exported.path.stem}.*'))
    assert files == [f'{exported.path.stem}{suffix}' for suffix in (
        ('.bin', '.xml') if format == 'openvino' else (BY_NAME[format].suffix,)
    )]  # fmt: skip
    if precision != 'float32':
        assert exported.size < exports(format, 'float32').size


def test_last_layers_and_the_head_of_mask2former_stay_in_float():
    helper = pytest.importorskip('onnx').helper
    weights = 'neck.weight', 'conv_seg.weight', 'mlp.weight', 'pixel_decoder.bias', 'val_7'
    nodes = [helper.make_node('Conv', ['x', w], ['y'], name=f'node_{w}') for w in weights]
    proto = helper.make_model(helper.make_graph(nodes, 'graph', [], []))
    assert float_nodes(proto) == [f'node_{weights[i]}' for i in (1, 3, 4)]


@pytest.mark.slow
@torch.no_grad()
def test_aotinductor_in_float16(config, checkpoint, options, tmp_path):
    if not shutil.which('g++'):
        pytest.skip('no compiler')
    path = tmp_path / 'x.pt2'
    export(config, checkpoint, path, 'aotinductor', 'float16', 'backbone', options=options)
    graph = build_graph(load_model(config, checkpoint, 'cpu', options).module, 'backbone')
    images = 255 * torch.rand(2, 3, 99, 131)
    with pytest.raises(
        UserError, match='it has native code that AOTInductor compiled, which could'
    ):
        load_runtime(path)
    maps = load_runtime(path, trusted=True)(images).values()
    for computed, expected in zip(maps, graph.reference(images), strict=True):
        assert relative_error(computed, expected) <= 0.05


def swap_outputs(source, target):
    """Write a .pt2 file whose outputs have each other's names."""
    parts = records(source.read_bytes())
    (name,) = (name for name in parts if name.endswith('models/model.json'))
    program = json.loads(parts[name])
    program['graph_module']['graph']['outputs'].reverse()
    target.write_bytes(zipped({**parts, name: json.dumps(program).encode()}))


def test_files_are_evaluated_beside_pytorch(
    exports, config, options, checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where nothing is left
    path = exports('torch', 'float32').path
    rows = evaluate(str(config), str(checkpoint), [path], options)
    assert [(row.name, row.size) for row in rows] == [
        ('PyTorch', None),
        (path.name, path.stat().st_size),
    ]
    assert rows[0].metrics['mIoU'] == pytest.approx(rows[1].metrics['mIoU'], abs=0.02)
    assert min(row.milliseconds for row in rows) > 0
    assert list(tmp_path.iterdir()) == []
    mixed_up = tmp_path / 'x.pt2'
    swap_outputs(path, mixed_up)
    with pytest.raises(
        UserError, match=r'x.pt2 computes outputs that do not fit the model \(\w+: '
    ):
        evaluate(str(config), str(checkpoint), [mixed_up], options)
    classes = {'test_dataloader.dataset.metainfo': dict(classes=['a', 'b', 'c', 'd'])}
    with pytest.raises(UserError, match=f'{path.name} computes logits, labels of .*circle.*, but'):
        evaluate(str(config), str(checkpoint), [path], options | classes)


def test_the_tool_verifies_on_images(config, checkpoint, shapes_root, monkeypatch, capfd, tmp_path):
    images = sorted((shapes_root / 'ade/images/validation').iterdir())[:2]
    file = tmp_path / 'x.pt2'
    code, printed, _ = call_tool(
        monkeypatch, capfd, 'export.py',
        config, checkpoint, '--part', 'backbone', '--format', 'torch', '--out', file,
        '--verify', *images,
    )  # fmt: skip
    assert code == 0
    for image in images:
        assert f'{image}: differs from PyTorch by' in printed
    assert [path.name for path in tmp_path.iterdir()] == ['x.pt2']


def test_the_tool_refuses_a_file_that_differs(
    config, checkpoint, shapes_root, monkeypatch, capfd, tmp_path
):
    monkeypatch.setitem(TOLERANCES, 'float16', TOLERANCES['float32'])
    images = shapes_root / 'ade/images/validation'
    code, _, errors = call_tool(
        monkeypatch, capfd, 'export.py',
        config, checkpoint, '--part', 'backbone', '--out', tmp_path / 'x.onnx',
        '--precision', 'float16', '--verify', images,
    )  # fmt: skip
    assert code == 2
    assert 'of the exported file differs from PyTorch by' in errors
    assert list(tmp_path.iterdir()) == []
