"""The graphs that are exported compute what mmdet and mmseg do, at any size."""

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from helpers import ROOT, randomize, relative_error
from helpers.heads import HEADS, narrow
from helpers.random_weights import SEGMENTOR
from helpers.small_xcit import SMALL
from mmcv.ops import MultiScaleDeformableAttention
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope

from xcit_mm import UserError
from xcit_mm.apps.export import load_runtime
from xcit_mm.apps.export.comparison import TOLERANCES, compare
from xcit_mm.apps.export.formats.format import Contents
from xcit_mm.apps.export.formats.onnx import write as write_onnx
from xcit_mm.apps.export.formats.torch import write
from xcit_mm.apps.export.graphs import build_graph
from xcit_mm.apps.export.graphs.capture import capture
from xcit_mm.apps.export.graphs.detector import ThresholdGraph
from xcit_mm.apps.export.graphs.dynamic_sizes import MatrixPool, for_any_size
from xcit_mm.apps.export.graphs.float16 import to_float16
from xcit_mm.base.environment import require
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config

# With what takes the maps of the backbone.
CONFIGS = {
    'mask_rcnn_xcit_n12_16_shapes': 'neck',
    'mask2former_instance_xcit_n12_16_shapes': 'panoptic_head',
    'mask2former_panoptic_xcit_n12_16_shapes': 'panoptic_head',
    'mask2former_semantic_xcit_n12_16_shapes': 'decode_head',
    'retinanet_xcit_t12_16_1x': 'neck',
    'sem_fpn_xcit_n12_16_shapes': 'neck',
}
# test_export.py exports a Mask R-CNN and a Semantic FPN. The other graphs of Mask2Former have the
# layers of the panoptic one, Deformable DETR has the graph of DINO, and RetinaNet the graph of
# RTMDet.
RECORDED = (
    'mask2former_panoptic_xcit_n12_16_shapes',
    'dino_xcit_s12_16_12e',
    'rtmdet_xcit_s12_16_3x',
)
SIZES = ((96, 128), (99, 131), (160, 160))  # multiples of 32, and odd


def build(name):
    """Return a small model with random weights, whose scores differ from place to place."""
    torch.manual_seed(0)
    if name in CONFIGS:
        options = {
            'model.backbone.arch': SMALL | {'_delete_': True},
            'model.backbone.out_indices': (0, 1, 2, 3),
            f'model.{CONFIGS[name]}.in_channels': [SMALL['embed_dim']] * 4,
        }
        model = build_model(load_config(ROOT / 'configs' / f'{name}.py', options), 'cpu')
    else:
        require('mmdet.models')
        with DefaultScope.overwrite_default_scope('mmdet'):
            model = MODELS.build(ConfigDict(narrow(name))).eval()
    randomize(model)
    if hasattr(model, 'level_embed'):  # whose memory mmdet leaves as it is
        torch.nn.init.normal_(model.level_embed)
    return model


def images(graph, smallest=1):
    batch = 2 if graph.batched else 1
    return {
        f'{height}x{width}': partial(noise, batch, 3, height, width)
        for height, width in SIZES
        if min(height, width) >= smallest
    }


def noise(*shape):
    return 255 * torch.rand(shape, generator=torch.Generator().manual_seed(0))


def in_pytorch(graph):
    """Return what a runtime would compute from a file of a graph."""
    return named(graph, for_any_size(graph))


def recorded(graph):
    """Return what a runtime computes from a file of a graph that PyTorch records."""
    with TemporaryDirectory() as folder:
        path = Path(folder, 'x.pt2')
        write(Contents(for_any_size(graph), {'outputs': json.dumps(graph.outputs)}), path)
        return load_runtime(path, trusted=True)


def named(graph, model):
    def run(image):
        with torch.no_grad():
            return dict(zip(graph.outputs, model(image), strict=True))

    return run


def assert_computes_the_same(graph, run, smallest=1):
    inputs = images(graph, smallest)
    if isinstance(graph, ThresholdGraph):
        graph.lower_threshold(inputs['160x160'](), 100)
    differences = compare(graph, run(graph), inputs, TOLERANCES['float32'])
    assert max(difference.error for difference in differences.values()) <= 1e-4
    objects = [difference.objects for difference in differences.values()]
    assert objects == [None] * len(inputs) if graph.batched else min(objects) >= 2


@pytest.mark.parametrize('name', [*CONFIGS, *HEADS])
def test_a_graph_computes_what_mmdet_and_mmseg_do(name):
    assert_computes_the_same(build_graph(build(name), 'model'), in_pytorch)


GATHERED = [name for name in (*CONFIGS, *HEADS) if 'detr' in name or 'dino' in name]


@pytest.mark.parametrize('name', [*GATHERED, 'mask2former_panoptic_xcit_n12_16_shapes'])
def test_deformable_attention_by_gathers_computes_the_same(name):
    graph = build_graph(build(name), 'model')
    assert_computes_the_same(graph, lambda graph: named(graph, for_any_size(graph, gather=True)))


class Attention(torch.nn.Module):
    """Deformable attention over two maps, with places inside and outside of them."""

    batched, side, channels, outputs = True, None, 8, ('tokens',)

    def __init__(self):
        super().__init__()
        self.model = MultiScaleDeformableAttention(8, num_heads=2, num_levels=2, batch_first=True)
        torch.nn.init.normal_(self.model.sampling_offsets.bias, std=4.0)

    def forward(self, image):
        maps = image, image[..., ::2, ::2]
        value = torch.cat([m.flatten(2).mT for m in maps], 1)
        points = value[:, :5, :4].sigmoid().view(-1, 5, 2, 2)
        sizes = [tuple(m.shape[2:]) for m in maps]
        return (
            self.model(value[:, :5], value=value, reference_points=points, spatial_shapes=sizes),
        )


def test_a_file_with_gathers_has_no_grid_sample(tmp_path):
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    graph, path = Attention().eval(), tmp_path / 'x.onnx'
    assert 'grid_sampler' in str(capture(for_any_size(graph)).graph)
    metadata = {'outputs': json.dumps(graph.outputs)}
    write_onnx(Contents(for_any_size(graph, gather=True), metadata), path)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert 'Gather' in operators
    assert 'GridSample' not in operators
    image = torch.randn(3, 8, 7, 10)
    with torch.no_grad():
        (expected,) = for_any_size(graph)(image)
    assert relative_error(load_runtime(path)(image)['tokens'], expected) <= 1e-5


def test_nms_between_classes_removes_boxes_of_other_classes_too():
    model = build('rtmdet_xcit_s12_16_3x')
    graph = build_graph(model, 'model')
    graph.lower_threshold(noise(1, 3, 160, 160), 100)
    with torch.no_grad():
        number = len(graph(noise(1, 3, 160, 160))[0])
    graph.test_cfg.nms.class_agnostic = True
    with torch.no_grad():
        assert len(graph(noise(1, 3, 160, 160))[0]) < number
    assert_computes_the_same(graph, in_pytorch)


def segmentor(**options):
    torch.manual_seed(0)
    options = {f'model.{name}': value for name, value in options.items()}
    model = build_model(load_config(ROOT / SEGMENTOR, options), 'cpu')
    randomize(model)
    return model


def test_a_segmentor_of_one_channel_separates_the_foreground():
    model = segmentor(**{
        'decode_head.num_classes': 2,
        'decode_head.out_channels': 1,
        'decode_head.threshold': 0.5,
        'decode_head.loss_decode.use_sigmoid': True,
    })  # fmt: skip
    graph = build_graph(model, 'model')
    with torch.no_grad():
        logits, _ = graph(noise(2, 3, 99, 131))
        model.decode_head.threshold = logits.median().sigmoid().item()
        assert graph(noise(2, 3, 99, 131))[1].unique().tolist() == [0, 1]
    assert_computes_the_same(graph, in_pytorch)


@torch.no_grad()
def test_one_wrong_image_among_many_is_refused():
    graph = build_graph(segmentor(), 'backbone')
    run = in_pytorch(graph)
    loads = {f'image {i}': partial(noise, 1, 3, 64, 64 + i) for i in range(20)}

    def wrong_once(image):
        factor = 1.0005 if image.shape[3] == 71 else 1.0
        return {name: factor * output for name, output in run(image).items()}

    compare(graph, run, loads, TOLERANCES['float32'])
    with pytest.raises(UserError, match=r'on average and by 5.0e-04 in image 7, but at most'):
        compare(graph, wrong_once, loads, TOLERANCES['float32'])


@torch.no_grad()
def test_a_detector_that_finds_nothing_has_a_graph_that_finds_its_best_boxes():
    graph, image = build_graph(build('rtmdet_xcit_s12_16_3x'), 'model'), noise(1, 3, 160, 160)
    graph.score_thr.fill_(2.0)
    more = graph.with_more_objects(image)
    for found in (graph(image), graph.reference(image)):
        assert len(found[0]) == 0
    assert len(more(image)[0]) == len(more.reference(image)[0]) > 0


@pytest.mark.slow
@pytest.mark.parametrize('name', RECORDED)
def test_a_recorded_graph_takes_other_sizes(name):
    assert_computes_the_same(build_graph(build(name), 'model'), recorded, smallest=65)


def test_a_detector_with_another_head_is_refused_and_its_backbone_is_not():
    model = build('mask_rcnn_xcit_n12_16_shapes')
    assert build_graph(model, 'backbone').outputs == ('stride4', 'stride8', 'stride16', 'stride32')
    model.roi_head = torch.nn.Identity()
    with pytest.raises(UserError, match='MaskRCNN cannot be exported as a whole: only detectors'):
        build_graph(model, 'model')


def test_float16_rounds_neither_pixels_nor_boxes():
    graph = build_graph(build('mask_rcnn_xcit_n12_16_shapes'), 'model')
    narrowed = for_any_size(graph)
    to_float16(narrowed)
    wide = {name for name, p in narrowed.named_parameters() if p.dtype == torch.float32}
    assert wide and all('.norm.' in name for name in wide)
    image = noise(1, 3, 99, 131)
    with torch.no_grad():
        assert {output.dtype for output in narrowed(image)} == {torch.float32, torch.int64}
        maps, expected = (g.model.extract_feat(g.normalize(image)) for g in (narrowed, graph))
    for narrow_map, wide_map in zip(maps, expected, strict=True):
        assert 1e-6 < relative_error(narrow_map, wide_map) <= 1e-2


@pytest.mark.parametrize('size', [1, 2, 3, 6, (2, 5)])
def test_pooling_by_matrices_is_adaptive_average_pooling(size):
    pool = torch.nn.AdaptiveAvgPool2d(size)
    for height, width in ((1, 1), (2, 7), (6, 6), (13, 17), (25, 42)):
        x = torch.randn(2, 3, height, width)
        assert relative_error(MatrixPool(pool)(x), pool(x)) <= 1e-6


class Pool(torch.nn.Module):
    batched, side, channels, outputs = True, None, 3, ('maps',)

    def __init__(self):
        super().__init__()
        self.pool = torch.nn.AdaptiveAvgPool2d(2)

    def forward(self, image):
        return (self.pool(image),)


def test_a_recorded_graph_pools_by_matrices():
    x = torch.rand(2, 3, 7, 13)
    assert relative_error(recorded(Pool())(x)['maps'], Pool()(x)[0]) <= 1e-6
