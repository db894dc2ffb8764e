"""The graphs that are exported compute what mmdet and mmseg do, at any size."""

import pytest
import torch
from helpers import ROOT, randomize, relative_error
from helpers.heads import HEADS, narrow
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope

from xcit_mm import UserError
from xcit_mm.engine.config.load import load_config
from xcit_mm.engine.model import build_model
from xcit_mm.environment import require
from xcit_mm.export.capture import capture, module_of
from xcit_mm.export.comparison import TOLERANCES, compare
from xcit_mm.export.dynamic_sizes import MatrixPool, for_any_size
from xcit_mm.export.export import build_graph
from xcit_mm.export.float16 import to_float16
from xcit_mm.export.graphs import ThresholdGraph

CONFIGS = (
    'mask_rcnn_xcit_n12_16_shapes',
    'mask2former_instance_xcit_n12_16_shapes',
    'mask2former_panoptic_xcit_n12_16_shapes',
    'mask2former_semantic_xcit_n12_16_shapes',
    'retinanet_xcit_t12_16_1x',
    'sem_fpn_xcit_n12_16_shapes',
)
SIZES = ((96, 128), (99, 131), (160, 160))  # multiples of 32, and odd


def build(name):
    """Return a small model with random weights, whose scores differ from place to place."""
    torch.manual_seed(0)
    if name in CONFIGS:
        model = build_model(load_config(ROOT / 'configs' / f'{name}.py'), 'cpu')
    else:
        require('mmdet.models')
        with DefaultScope.overwrite_default_scope('mmdet'):
            model = MODELS.build(ConfigDict(narrow(name))).eval()
    randomize(model)
    return model


def images(graph, batch=1):
    return {
        f'{height}x{width}': 255 * torch.rand(batch if graph.batched else 1, 3, height, width)
        for height, width in SIZES
    }


def in_pytorch(graph):
    """Return what a runtime would compute from a file of a graph."""
    return named(graph, for_any_size(graph))


def recorded(graph):
    """Return what a runtime would compute from a file of a graph that PyTorch records."""
    return named(graph, module_of(capture(for_any_size(graph))))


def named(graph, model):
    def run(image):
        with torch.no_grad():
            return dict(zip(graph.outputs, model(image), strict=True))

    return run


def assert_computes_the_same(graph, run, smallest=1):
    inputs = images(graph, batch=2)
    inputs = {name: image for name, image in inputs.items() if min(image.shape[2:]) >= smallest}
    if isinstance(graph, ThresholdGraph):
        with torch.no_grad():
            graph.lower_threshold(inputs['160x160'], 100)
    differences = compare(graph, run(graph), inputs, TOLERANCES['float32'])
    assert max(difference.error for difference in differences.values()) <= 1e-4
    objects = [difference.objects for difference in differences.values()]
    assert objects == [None] * len(inputs) if graph.batched else min(objects) >= 2


@pytest.mark.parametrize('name', [*CONFIGS, *HEADS])
def test_a_graph_computes_what_mmdet_and_mmseg_do(name):
    assert_computes_the_same(build_graph(build(name), 'model'), in_pytorch)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*CONFIGS, *HEADS])
def test_a_recorded_graph_takes_other_sizes(name):
    smallest = 129 if name.startswith('retinanet') else 65  # its map at stride 128 has 2 rows then
    assert_computes_the_same(build_graph(build(name), 'model'), recorded, smallest)


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
    image = images(graph)['99x131']
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
