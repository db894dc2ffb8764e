"""Exported files compute what mmdet and mmseg do in PyTorch, at any size."""

import json
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from helpers import ROOT, randomize, relative_error
from helpers.in_process import call_tool
from helpers.random_weights import SEGMENTOR

from xcit_mm import UserError, load_model
from xcit_mm.config.load import load_config
from xcit_mm.engine.build_model import build_model
from xcit_mm.export import export, load_runtime
from xcit_mm.export.comparison import TOLERANCES, compare, drawn_images
from xcit_mm.export.formats import BY_NAME
from xcit_mm.export.graphs import build_graph
from xcit_mm.export.graphs.two_stage import TwoStageGraph

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')

BACKBONE = """
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=4, num_heads=4, eta=1.0),
        patch_size=16,
        out_indices=(0, 1, 2, 3),
    ),"""
CONFIGS = dict(
    sem_fpn=f"""
_base_ = '{ROOT}/configs/sem_fpn_xcit_n12_16_shapes.py'
model = dict({BACKBONE}
    neck=dict(in_channels=[32] * 4, out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=16),
)
""",
    upernet=f"""
_base_ = [
    '{ROOT}/configs/_base_/upernet_xcit.py',
    '{ROOT}/configs/_base_/shapes_semantic.py',
    '{ROOT}/configs/_base_/schedule_shapes.py',
]
model = dict({BACKBONE}
    decode_head=dict(in_channels=[32] * 4, channels=16, num_classes=4),
    auxiliary_head=dict(in_channels=32, channels=16, num_classes=4),
)
""",
    detector=f"""
_base_ = '{ROOT}/configs/mask_rcnn_xcit_n12_16_shapes.py'
model = dict({BACKBONE}
    neck=dict(in_channels=[32] * 4),
    roi_head=dict(
        bbox_roi_extractor=dict(finest_scale=28), mask_roi_extractor=dict(finest_scale=28)
    ),
    test_cfg=dict(rpn=dict(nms_pre=100, max_per_img=500)),  # all that NMS leaves
)
""",
)
SIZES = ((160, 160), (33, 49), (331, 450))  # the export compares other sizes


def write_config(kind, folder):
    path = folder / f'{kind}.py'
    path.write_text(CONFIGS[kind])
    return path


def spread(detector, layer, deviation):
    """Spread outputs around zero: if all scores are nearly equal, rounding decides their order."""
    outputs = []
    handle = layer.register_forward_hook(lambda *args: outputs.append(args[2].transpose(0, 1)))
    with torch.no_grad():
        TwoStageGraph(detector)(torch.from_numpy(pixels(1, 320, 320)).float())
        handle.remove()
        values = torch.cat([output.flatten(1) for output in outputs], dim=1)
        factor = deviation / values.std()
        layer.weight *= factor
        layer.bias.copy_(factor * (layer.bias - values.mean(1)))


def export_random(kind, folder):
    """Return what was exported from a checkpoint, PyTorch's model and onnxruntime's session."""
    config, checkpoint, file = write_config(kind, folder), folder / 'random.pth', folder / 'x.onnx'
    torch.manual_seed(0)
    model = build_model(load_config(config), 'cpu')
    randomize(model)
    if kind == 'detector':
        spread(model, model.rpn_head.rpn_cls, 2.0)
        spread(model, model.rpn_head.rpn_reg, 0.3)
        spread(model, model.roi_head.bbox_head.fc_cls, 2.0)
        spread(model, model.roi_head.bbox_head.fc_reg, 0.5)
        spread(model, model.roi_head.mask_head.conv_logits, 2.0)
    torch.save({'meta': {}, 'state_dict': model.state_dict()}, checkpoint)
    exported = export(config, checkpoint, file)
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    return exported, load_model(config, checkpoint, 'cpu').module, session


@pytest.fixture(scope='module')
def exports(tmp_path_factory):
    return cache(lambda name: export_random(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope='module', params=['sem_fpn', 'upernet'])
def segmentor(request, exports):
    return exports(request.param)


@pytest.fixture(scope='module')
def detector(exports):
    return exports('detector')


def shapes(session):
    values = (*session.get_inputs(), *session.get_outputs())
    return {value.name: value.shape for value in values}


def pixels(batch, height, width):
    return np.random.default_rng(0).integers(0, 256, (batch, 3, height, width), np.uint8)


def as_loaded(images, sample):
    """Return the input of mmdet and mmseg: BGR images, as OpenCV reads them, and their sizes."""
    size = images.shape[2:]
    sizes = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    samples = [sample(metainfo=sizes) for _ in images]
    bgr = torch.from_numpy(np.ascontiguousarray(images[:, ::-1]))
    return dict(inputs=list(bgr), data_samples=samples)


@pytest.mark.slow
@torch.no_grad()
def test_a_segmentor_computes_the_logits_and_labels_of_mmseg(segmentor):
    from mmseg.structures import SegDataSample

    _, model, session = segmentor
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


@pytest.mark.slow
@torch.no_grad()
def test_a_detector_finds_the_objects_of_mmdet(detector):
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
    from mmdet.structures import DetDataSample

    exported, model, session = detector
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


@pytest.mark.slow
def test_a_detector_finds_nothing_in_an_image_without_objects(detector):
    exported, *_ = detector
    proto = onnx.load(exported.path)
    constant = next(c for c in proto.graph.initializer if c.name == 'score_thr')
    constant.CopyFrom(onnx.numpy_helper.from_array(np.float32(2.0), 'score_thr'))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    outputs = session.run(None, {'image': np.zeros((1, 3, 96, 128), np.float32)})
    assert [a.shape for a in outputs] == [(0, 4), (0,), (0,), (0, 28, 28)]


@pytest.mark.slow
def test_the_export_compares_three_sizes_and_refuses_another_model(segmentor, detector):
    for (exported, model, _), message in (
        (segmentor, r'the output \w+ of the exported file differs from PyTorch by'),
        (detector, 'the exported file'),  # finds other objects, or the same with other boxes
    ):
        assert len(exported.differences) == 3
        assert 0 < max(difference.error for difference in exported.differences.values()) <= 1e-4
        graph, run = build_graph(model, 'model'), load_runtime(exported.path)
        stem = model.backbone.patch_embed.proj[0][0].weight.data
        stem *= 1.5
        try:
            with pytest.raises(UserError, match=message):
                compare(graph, run, drawn_images(graph), TOLERANCES['float32'])
        finally:
            stem /= 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    'format, precision',
    [('aotinductor', 'float32'), ('onnx', 'float16'), ('openvino', 'int8')],
)
def test_files_of_a_detector_forget_the_image_before(
    detector, shapes_root, tmp_path, monkeypatch, format, precision
):
    pytest.importorskip('nncf' if format == 'openvino' else 'onnx')
    if format == 'aotinductor' and not shutil.which('g++'):
        pytest.skip('no compiler')
    # The objects of random weights overlap, so that rounding decides which of them NMS keeps.
    monkeypatch.setitem(TOLERANCES, precision, TOLERANCES[precision]._replace(lost=0.3))
    folder = detector[0].path.parent
    photos = sorted(map(str, (shapes_root / 'coco/val2017').iterdir()))
    exported = export(
        folder / 'detector.py',
        folder / 'random.pth',
        tmp_path / f'x{BY_NAME[format].suffix}',
        format,
        precision,
        calibrate=photos[:2] if precision == 'int8' else (),
        verify=photos[:2],
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


@pytest.mark.slow
def test_a_narrow_file_is_refused_if_there_are_no_objects_to_compare(
    detector, tmp_path, monkeypatch
):
    monkeypatch.setitem(TOLERANCES, 'float16', TOLERANCES['float16']._replace(score=1.0))
    folder = detector[0].path.parent
    with pytest.raises(UserError, match=r'above 1.0 in 3 images, so that there is nothing to comp'):
        export(
            folder / 'detector.py',
            folder / 'random.pth',
            tmp_path / 'x.pt2',
            format='torch',
            precision='float16',
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('suffix', ['.onnx', '.xml', '.pt2'])
def test_a_file_that_cannot_be_read_is_named(tmp_path, suffix):
    path = tmp_path / f'x{suffix}'
    path.write_text('junk')
    with pytest.raises(UserError, match=r'cannot be read \(.*\): export it again'):
        load_runtime(path)


@pytest.mark.parametrize('start', [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_tool_exports_a_backbone_without_a_checkpoint(monkeypatch, capfd, tmp_path, start):
    file = tmp_path / 'made' / 'backbone.onnx'
    code, printed, _ = call_tool(
        monkeypatch, capfd, 'export.py',
        write_config('sem_fpn', tmp_path), '--part', 'backbone', '--out', file,
        '--cfg-options', f'model.backbone.start_level={start}',
    )  # fmt: skip
    assert code == 0
    assert 'No checkpoint: the weights of the file are random.' in printed
    assert printed.count('differs from PyTorch by') == 3
    session = onnxruntime.InferenceSession(file)
    maps = session.run(None, {'image': pixels(2, 70, 100).astype(np.float32)})
    sizes = (20, 28), (10, 14), (5, 7), (2, 3)
    assert [m.shape for m in maps] == [(2, 32, *size) for size in sizes[start:]]
    names = 'stride4', 'stride8', 'stride16', 'stride32'
    assert tuple(output.name for output in session.get_outputs()) == names[start:]
    assert [p.name for p in file.parent.iterdir()] == ['backbone.onnx']


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
            "test_cfg.mode='slide' cannot be exported, because a file sees the whole image: "
            '--cfg-options model.test_cfg.mode=whole',
        ),
        (['configs/nothing.py'], 'the config configs/nothing.py does not exist'),
        ([SEGMENTOR, '--out', 'docs'], 'docs: a file of the format onnx has the suffix .onnx'),
        ([SEGMENTOR, '--precision', 'int8'], 'int8 needs some of your images to find the ranges'),
        ([SEGMENTOR, '--calibrate', 'docs'], '--calibrate is for --precision int8, not float32'),
        ([SEGMENTOR, '--verify', 'docs'], '--calibrate and --verify need a trained model'),
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
