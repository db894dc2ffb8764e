"""Exported files compute what mmdet and mmseg do in PyTorch, at any size, in every format."""

import json
import re
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from helpers import ROOT, randomize, relative_error
from helpers.in_process import call_tool
from helpers.random_weights import SEGMENTOR
from helpers.small_models import pixels

from xcit_mm import UserError, load_model
from xcit_mm.apps.export import (
    Evaluated,
    ExportSettings,
    evaluate,
    export,
    load_runtime,
)
from xcit_mm.apps.export.comparison import TOLERANCES, compare, drawn_images
from xcit_mm.apps.export.formats import BY_NAME
from xcit_mm.apps.export.formats.format import Contents
from xcit_mm.apps.export.formats.onnx import float_nodes
from xcit_mm.apps.export.graphs import build_graph
from xcit_mm.apps.export.graphs.dynamic_sizes import for_any_size
from xcit_mm.apps.export.graphs.float16 import to_float16
from xcit_mm.network.layers import XCABlock

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')
slow = pytest.mark.slow

SIZES = ((160, 160), (33, 49), (331, 450))  # the export compares other sizes


@pytest.fixture(scope='module')
def exports(models, shapes_root, tmp_path_factory):
    """Return what exports a model to a format and precision, once."""
    folder = tmp_path_factory.mktemp('exported')

    @cache
    def export_once(kind, format, precision):
        chosen = BY_NAME[format]
        for package in chosen.packages + chosen.int8_packages:
            pytest.importorskip(package)
        path = folder / f'{kind}_{format}_{precision}{chosen.suffix}'
        images = [str(shapes_root / 'ade/images/validation')] if precision == 'int8' else ()
        settings = ExportSettings(format, precision, calibrate=images)
        return export(*models(kind), path, settings)

    # cache() takes a default and the same value of an argument for different calls.
    return lambda kind, format='onnx', precision='float32': export_once(kind, format, precision)


def module_of(models, kind):
    return load_model(*models(kind), 'cpu').module


def shapes(session):
    values = (*session.get_inputs(), *session.get_outputs())
    return {value.name: value.shape for value in values}


def as_loaded(images, sample):
    """Return the input of mmdet and mmseg: BGR images, as OpenCV reads them, and their sizes."""
    size = images.shape[2:]
    sizes = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    samples = [sample(metainfo=sizes) for _ in images]
    bgr = torch.from_numpy(np.ascontiguousarray(images[:, ::-1]))
    return dict(inputs=list(bgr), data_samples=samples)


@slow
@torch.no_grad()
@pytest.mark.parametrize('kind', ['sem_fpn', 'upernet'])
def test_a_segmentor_computes_the_logits_and_labels_of_mmseg(exports, models, kind):
    from mmseg.structures import SegDataSample

    model, session = module_of(models, kind), onnxruntime.InferenceSession(exports(kind).path)
    for size in SIZES:
        images = pixels(3, *size)
        expected = model.test_step(as_loaded(images, SegDataSample))
        outputs = session.run(None, {'image': images.astype(np.float32)})
        logits, labels = map(torch.from_numpy, outputs)
        assert relative_error(logits, torch.stack([e.seg_logits.data for e in expected])) <= 1e-4
        same = labels == torch.cat([e.pred_sem_seg.data for e in expected])
        assert same.float().mean() >= 0.9999
    assert shapes(session) == {
        'image': ['batch', 3, 'height', 'width'],
        'logits': ['batch', 4, 'height', 'width'],
        'labels': ['batch', 'height', 'width'],
    }
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata['channels'] == 'RGB'
    assert json.loads(metadata['classes'])[1:] == ['circle', 'square', 'triangle']


@slow
@torch.no_grad()
def test_a_detector_finds_the_objects_of_mmdet(exports, models):
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
    from mmdet.structures import DetDataSample

    exported, model = exports('detector'), module_of(models, 'detector')
    session = onnxruntime.InferenceSession(exported.path)
    extractor = model.roi_head.bbox_roi_extractor
    levels = set()  # of the proposals; a wrong one would not be seen if there was one level only
    handle = extractor.register_forward_pre_hook(
        lambda _, args: levels.update(extractor.map_roi_levels(args[1], 4).tolist())
    )
    for size in SIZES:
        images = pixels(1, *size)
        expected = model.test_step(as_loaded(images, DetDataSample))[0].pred_instances
        outputs = session.run(None, {'image': images.astype(np.float32)})
        boxes, scores, labels, masks = map(torch.from_numpy, outputs)
        assert len(expected) >= 10
        assert torch.equal(labels, expected.labels)
        assert relative_error(boxes, expected.bboxes) <= 1e-4
        assert relative_error(scores, expected.scores) <= 1e-4
        pasted = _do_paste_mask(masks[:, None], boxes, *size, skip_empty=False)[0] >= 0.5
        assert 0 < expected.masks.float().mean() < 1
        assert (pasted == expected.masks).float().mean() >= 0.9999
    handle.remove()
    assert levels == {0, 1, 2, 3}
    assert shapes(session) == {
        'image': [1, 3, 'height', 'width'],
        'boxes': ['objects', 4],
        'scores': ['objects'],
        'labels': ['objects'],
        'masks': ['objects', 28, 28],
    }
    assert sum(difference.objects for difference in exported.differences.values()) >= 30


@slow
def test_a_detector_finds_nothing_in_an_image_without_objects(exports):
    proto = onnx.load(exports('detector').path)
    constant = next(c for c in proto.graph.initializer if c.name == 'score_thr')
    constant.CopyFrom(onnx.numpy_helper.from_array(np.float32(2.0), 'score_thr'))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    outputs = session.run(None, {'image': np.zeros((1, 3, 96, 128), np.float32)})
    assert [a.shape for a in outputs] == [(0, 4), (0,), (0,), (0, 28, 28)]


@slow
@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        ('sem_fpn', r'the output \w+ of the exported file differs from PyTorch by'),
        ('upernet', r'the output \w+ of the exported file differs from PyTorch by'),
        ('detector', 'the exported file'),  # finds other objects, or the same with other boxes
    ],
)
def test_the_export_compares_three_sizes_and_refuses_another_model(exports, models, kind, message):
    exported, model = exports(kind), module_of(models, kind)
    assert len(exported.differences) == 3
    assert 0 < max(difference.error for difference in exported.differences.values()) <= 1e-4
    model.backbone.patch_embed.proj[0][0].weight.data *= 1.5
    graph = build_graph(model, 'model')
    with pytest.raises(UserError, match=message):
        compare(graph, load_runtime(exported.path), drawn_images(graph), TOLERANCES['float32'])


@slow
@pytest.mark.parametrize(
    'format, precision',
    [('aotinductor', 'float32'), ('openvino', 'int8')],
)
def test_files_of_a_detector_forget_the_image_before(
    models, shapes_root, tmp_path, monkeypatch, format, precision
):
    pytest.importorskip('nncf' if format == 'openvino' else 'onnx')
    if format == 'aotinductor' and not shutil.which('g++'):
        pytest.skip('no compiler')
    # The objects of random weights overlap, so that rounding decides which of them NMS keeps.
    monkeypatch.setitem(TOLERANCES, precision, TOLERANCES[precision]._replace(lost=0.3))
    photos = sorted(map(str, (shapes_root / 'coco/val2017').iterdir()))
    exported = export(
        *models('detector'),
        tmp_path / f'x{BY_NAME[format].suffix}',
        ExportSettings(
            format,
            precision,
            calibrate=photos[:2] if precision == 'int8' else (),
            verify=photos[:2],
        ),
    )
    assert sum(difference.objects for difference in exported.differences.values()) >= 5
    run = load_runtime(exported.path, trusted=True)
    image, other = (torch.from_numpy(pixels(1, *size)).float() for size in SIZES[::2])
    first = run(image)
    assert len(first['boxes'])
    run(other)
    run(torch.full_like(other, 114.0))
    again = run(image.to(memory_format=torch.channels_last))
    assert all(torch.equal(again[name], first[name]) for name in first)
    if format != 'aotinductor':  # which does not check it
        with pytest.raises(
            UserError, match=r'not take this image, .*\(\w+: (?!Exception from).*\): '
        ):
            run(torch.rand(1, 5, 160, 160))


@slow
def test_a_detector_that_finds_nothing_is_compared_with_a_lower_threshold(models, tmp_path):
    options = {'model.test_cfg.rcnn.score_thr': 2.0}
    exported = export(*models('detector'), tmp_path / 'x.pt2', ExportSettings('torch'), options)
    assert min(difference.objects for difference in exported.differences.values()) > 0
    assert [path.name for path in tmp_path.iterdir()] == ['x.pt2']
    image = torch.rand(1, 3, 160, 160).numpy()
    assert len(load_runtime(exported.path, trusted=True)(image)['boxes']) == 0


@slow
def test_a_narrow_file_is_refused_if_there_are_no_objects_to_compare(models, tmp_path, monkeypatch):
    monkeypatch.setitem(TOLERANCES, 'float16', TOLERANCES['float16']._replace(score=1.0))
    with pytest.raises(UserError, match=r'above 1.0 in 3 images, so that there is nothing to comp'):
        export(*models('detector'), tmp_path / 'x.pt2', ExportSettings('torch', 'float16'))
    assert list(tmp_path.iterdir()) == []


def inputs_of_convolutions(path):
    """Return the operators that compute the inputs, by the names of all inputs."""
    nodes = onnx.load(path).graph.node
    sources = {output: node for node in nodes for output in node.output}
    return {
        ' '.join(node.input): [sources[name].op_type for name in node.input if name in sources]
        for node in nodes
        if node.op_type == 'Conv'
    }


FILES = [
    pytest.param(name, precision, marks=() if (name, precision) == ('onnx', 'int8') else slow)
    for name in BY_NAME
    for precision in BY_NAME[name].precisions
    # Compiling takes a minute. test_folder.py runs a file of OpenVINO in float32.
    if name != 'aotinductor' and (name, precision) != ('openvino', 'float32')
]


@pytest.mark.parametrize(('format', 'precision'), FILES)
def test_a_file_of_each_format_and_precision_computes_what_mmseg_does(
    exports, models, format, precision
):
    exported = exports('sem_fpn', format, precision)
    assert exported.outputs == ('logits', 'labels')
    assert exported.differences
    files = sorted(exported.path.parent.glob(f'{exported.path.stem}.*'))
    assert files == BY_NAME[format].files(exported.path)
    assert exported.size == sum(file.stat().st_size for file in files)
    run, image = load_runtime(exported.path, trusted=True), 255 * torch.rand(1, 3, 99, 131)
    outputs = run(image)
    assert {name: tuple(t.shape) for name, t in outputs.items()} == {
        'logits': (1, 4, 99, 131),
        'labels': (1, 99, 131),
    }
    with torch.no_grad():
        logits, _ = build_graph(module_of(models, 'sem_fpn'), 'model').reference(image)
    bound = dict(float32=1e-4, float16=0.05, int8=0.3)[precision]
    assert relative_error(outputs['logits'], logits) <= bound
    with pytest.raises(UserError, match=r'not take this image, \(1, 5, 99, 131\) torch.float32 \('):
        run(torch.rand(1, 5, 99, 131))


def test_int8_narrows_all_convolutions_but_the_last(exports):
    narrow = inputs_of_convolutions(exports('sem_fpn', 'onnx', 'int8').path)
    assert ['DequantizeLinear'] * 3 in narrow.values()
    (last,) = (inputs for name, inputs in narrow.items() if 'conv_seg' in name)
    assert 'DequantizeLinear' not in last


def test_last_layers_and_the_head_of_mask2former_stay_in_float():
    weights = 'neck.weight', 'conv_seg.weight', 'mlp.weight', 'pixel_decoder.bias', 'val_7'
    nodes = [onnx.helper.make_node('Conv', ['x', w], ['y'], name=f'node_{w}') for w in weights]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, 'graph', [], []))
    assert float_nodes(proto) == [f'node_{weights[i]}' for i in (1, 3, 4)]


class Block(torch.nn.Module):
    """A layer of XCiT, which AOTInductor compiles sooner than a backbone."""

    NARROW = ('block',)
    batched, side, channels, outputs = True, None, 32, ('tokens',)

    def __init__(self):
        super().__init__()
        self.model = torch.nn.ModuleDict({'block': XCABlock(32, 4, eta=1.0, drop_path=0.0)})

    def forward(self, image):
        return (self.model['block'](image.flatten(2).mT, *image.shape[2:]),)


@slow
@torch.no_grad()
def test_aotinductor_in_float16(tmp_path):
    if not shutil.which('g++'):
        pytest.skip('no compiler')
    graph, path = Block().eval(), tmp_path / 'x.pt2'
    randomize(graph)
    narrow = for_any_size(graph)
    to_float16(narrow)
    BY_NAME['aotinductor'].write(Contents(narrow, {'outputs': '["tokens"]'}), path)
    with pytest.raises(UserError, match='can run any code when it is loaded; if you trust'):
        load_runtime(path)
    for size in ((9, 13), (24, 31)):
        images = torch.rand(2, 32, *size)
        (expected,) = graph(images)
        error = relative_error(load_runtime(path, trusted=True)(images)['tokens'], expected)
        assert 1e-5 < error <= 0.05


def test_files_are_evaluated_in_turn_with_pytorch(
    exports, models, shapes_root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where nothing is left
    config, checkpoint = map(str, models('sem_fpn'))
    options = {
        'data_root': str(shapes_root),
        'test_dataloader.dataset.indices': 4,
        'test_dataloader.num_workers': 0,
    }
    path = exports('sem_fpn', 'torch').path
    rows = evaluate(config, checkpoint, [path], options, trust_checkpoint=True)
    assert [(row.name, row.size) for row in rows] == [
        ('PyTorch', None),
        (path.name, path.stat().st_size),
    ]
    assert rows[0].metrics['mIoU'] == pytest.approx(rows[1].metrics['mIoU'], abs=0.02)
    assert min(row.milliseconds for row in rows) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_tool_exports_a_backbone_without_a_checkpoint(models, monkeypatch, capfd, tmp_path):
    file = tmp_path / 'made' / 'backbone.onnx'
    code, printed, _ = call_tool(
        monkeypatch, capfd, 'export.py',
        models('sem_fpn')[0], '--part', 'backbone', '--out', file,
        '--cfg-options', 'model.backbone.start_level=1',
    )  # fmt: skip
    assert code == 0
    assert 'No checkpoint: the weights of the file are random.' in printed
    assert printed.count('differs from PyTorch by a relative error of ') == 3
    assert f'Written: {file}, ' in printed and 'Next: ' not in printed
    session = onnxruntime.InferenceSession(file)
    maps = session.run(None, {'image': pixels(2, 70, 100).astype(np.float32)})
    sizes = (24, 32), (12, 16), (6, 8), (3, 4)  # of 96x128 pixels, which the maps cover
    assert [m.shape for m in maps] == [(2, 32, *size) for size in sizes[1:]]
    names = 'stride4', 'stride8', 'stride16', 'stride32'
    assert tuple(output.name for output in session.get_outputs()) == names[1:]
    assert [p.name for p in file.parent.iterdir()] == ['backbone.onnx']


def test_the_tool_prints_the_accuracy_of_labels(monkeypatch, capfd):
    metrics = dict(mIoU=86.66, aAcc=95.5, mAcc=91.25)
    rows = [Evaluated('PyTorch', None, 2.0, metrics), Evaluated('x.onnx', 10**6, 1.0, metrics)]
    monkeypatch.setattr('xcit_mm.apps.export.evaluate', lambda *arguments: rows)
    typed = 'evaluate_export.py', 'config.py', 'x.pth', 'x.onnx'
    code, printed, _ = call_tool(monkeypatch, capfd, *typed)
    head, first, second = map(str.split, printed.splitlines())
    assert code == 0 and head[-3:] == ['mIoU', 'mAcc', 'aAcc']
    assert first[-3:] == second[-3:] == ['86.66', '91.25', '95.5']


@slow
def test_the_tool_verifies_on_images(models, shapes_root, monkeypatch, capfd, tmp_path):
    images = sorted((shapes_root / 'ade/images/validation').iterdir())[:2]
    file = tmp_path / 'x.pt2'
    arguments = [*models('sem_fpn'), '--part', 'backbone', '--format', 'torch', '--out', file]
    code, printed, _ = call_tool(monkeypatch, capfd, 'export.py', *arguments, '--verify', *images)
    assert code == 0
    for image in images:
        assert f'{image}: differs from PyTorch by' in printed
    assert [path.name for path in tmp_path.iterdir()] == ['x.pt2']


def test_the_tool_refuses_a_file_that_differs(models, shapes_root, monkeypatch, capfd, tmp_path):
    monkeypatch.setitem(TOLERANCES, 'float16', TOLERANCES['float32'])
    images = shapes_root / 'ade/images/validation'
    code, _, errors = call_tool(
        monkeypatch, capfd, 'export.py',
        *models('sem_fpn'), '--part', 'backbone', '--out', tmp_path / 'x.onnx',
        '--precision', 'float16', '--verify', images,
    )  # fmt: skip
    assert code == 2
    assert 'of the exported file differs from PyTorch by' in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'arguments, message',
    [
        (
            ['configs/mask_rcnn_xcit_n12_16_shapes.py',
             '--cfg-options', 'model.test_cfg.rcnn.nms.type=soft_nms'],
            'soft_nms cannot be exported: set its type in test_cfg to nms, or use --part backbone',
        ),
        (
            [SEGMENTOR, '--cfg-options', 'model.test_cfg.mode=slide'],
            "test_cfg.mode='slide' cannot be exported, because a file gets the whole image: "
            '--cfg-options model.test_cfg.mode=whole',
        ),
        ([SEGMENTOR, '--out', 'docs'], 'docs: a file of the format onnx has the suffix .onnx'),
        ([SEGMENTOR, '--precision', 'int8'], 'int8 needs some of your images to find the ranges'),
        ([SEGMENTOR, '--precision', 'int8', '--format', 'torch', '--out', 'x.pt2'],
         'the format torch has no int8: use --format onnx or openvino, or --precision float16'),
    ],
)  # fmt: skip
def test_invalid_input_is_a_line_and_exit_code_2(monkeypatch, capfd, tmp_path, arguments, message):
    file = tmp_path / 'x.onnx'
    monkeypatch.chdir(ROOT)
    code, _, errors = call_tool(monkeypatch, capfd, 'export.py', '--out', file, *arguments)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not file.exists()


def test_the_documentation_lists_the_formats():
    text = (ROOT / 'docs/export.md').read_text()
    names, rows = '|'.join(BY_NAME), []
    for row in re.findall(rf'^\| `(?:{names})` \|.*', text, re.M):
        rows.append([re.findall('`([^`]+)`', cell) for cell in row.split('|')[1:5]])
    written, read = rows[: len(BY_NAME)], rows[len(BY_NAME) :]
    assert [(row[0], row[1], row[3]) for row in written] == [
        ([name], [format.suffix, *format.further_suffixes], [*format.precisions])
        for name, format in BY_NAME.items()
    ]
    assert {row[0][0] for row in read} == set(BY_NAME)
