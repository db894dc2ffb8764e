"""Files for Deepness hold what that plugin of QGIS reads, and find what xcit_mm does."""

import json

import numpy as np
import pytest
import torch
from helpers import ROOT, relative_error
from helpers.random_weights import SEGMENTOR
from helpers.small_models import pixels
from mmengine.config import Config

from xcit_mm import UserError, load_model
from xcit_mm.apps.export import ExportSettings, export, load_runtime
from xcit_mm.apps.export.graphs import build_graph
from xcit_mm.apps.export.graphs.deepness import DeepnessGraph
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config

TILE = 96


def tiles_of_deepness(batch=1):
    """Return pixels, and what Deepness makes of them: values from 0 to 1."""
    tiles = pixels(batch, TILE, TILE)
    return tiles, torch.from_numpy(np.float32(tiles / 255))


def deepness_graph(models, kind, **options):
    model = load_model(*models(kind), 'cpu', full_size=True, options=options)
    graph = build_graph(model.module, 'model')
    is_bgr = not options.get('model.data_preprocessor.bgr_to_rgb', True)
    return model, DeepnessGraph(graph, TILE, len(model.classes), is_bgr)


def objects_of_deepness(output):
    """Read detections (1, 4 + K, n) as Deepness does: boxes, scores, labels."""
    rows = output[0].T.numpy()
    center, size, scores = rows[:, :2], rows[:, 2:4], rows[:, 4:]
    return np.hstack([center - size / 2, center + size / 2]), scores.max(1), scores.argmax(1)


@torch.no_grad()
@pytest.mark.parametrize('bgr_to_rgb', [True, False])
def test_detections_are_the_objects_of_xcit_mm(models, bgr_to_rgb):
    options = {'model.data_preprocessor.bgr_to_rgb': bgr_to_rgb}
    model, graph = deepness_graph(models, 'detector', **options)
    tiles, values = tiles_of_deepness()
    expected = model.predict(np.ascontiguousarray(tiles[0].transpose(1, 2, 0)))
    (output,) = graph(values)
    assert output.shape == (1, 4 + 3, len(expected))
    boxes, scores, labels = objects_of_deepness(output)
    assert len(expected) > 5
    assert np.abs(boxes - expected.boxes).max() <= 1e-2
    assert np.abs(scores - expected.scores).max() <= 1e-4
    assert np.array_equal(labels, expected.labels)


@torch.no_grad()
def test_probabilities_are_largest_for_the_labels_of_xcit_mm(models):
    model, graph = deepness_graph(models, 'sem_fpn')
    tiles, values = tiles_of_deepness(2)
    (output,) = graph(values)
    assert output.shape == (2, 4, TILE, TILE)
    assert relative_error(output.sum(1), torch.ones(2, TILE, TILE)) <= 1e-5
    for tile, probabilities in zip(tiles, output, strict=True):
        expected = model.predict(np.ascontiguousarray(tile.transpose(1, 2, 0))).labels
        assert (probabilities.argmax(0).numpy() == expected).mean() >= 0.999


def test_the_metadata_has_what_deepness_reads(models):
    _, detector = deepness_graph(models, 'detector')
    content = detector.metadata(('circle', 'square', 'triangle'), 0.25)
    assert {name: json.loads(value) for name, value in content.items()} == dict(
        model_type='Detector',
        det_type='YOLO_Ultralytics',
        det_conf=0.3,
        det_iou_thresh=0.5,
        det_remove_overlap=False,
        tile_size=TILE,
        tiles_overlap=15,
        resolution=25.0,
        class_names={'0': 'circle', '1': 'square', '2': 'triangle'},
    )
    _, segmentor = deepness_graph(models, 'sem_fpn')
    content = segmentor.metadata(('a', 'b', 'c', 'd'), None)
    assert json.loads(content['model_type']) == 'Segmentor'
    assert json.loads(content['seg_thresh']) == 0
    assert 'resolution' not in content


@torch.no_grad()
def test_a_foreground_alone_has_its_probability_and_threshold():
    options = {
        'model.decode_head.num_classes': 2,
        'model.decode_head.out_channels': 1,
        'model.decode_head.threshold': 0.4,
        'model.decode_head.loss_decode.use_sigmoid': True,
    }
    inner = build_graph(build_model(load_config(ROOT / SEGMENTOR, options), 'cpu'), 'model')
    graph = DeepnessGraph(inner, TILE, 2, is_bgr=False)
    tiles, values = tiles_of_deepness()
    logits, _ = inner(torch.from_numpy(tiles).float())
    assert relative_error(graph(values)[0], logits.sigmoid()) <= 1e-4
    content = graph.metadata(('background', 'field'), None)
    assert json.loads(content['class_names']) == {'0': 'field'}
    assert json.loads(content['seg_thresh']) == 0.4


def test_a_panoptic_model_without_objects_is_refused():
    cfg = Config.fromfile(ROOT / 'configs/mask2former_panoptic_xcit_n12_16_shapes.py')
    cfg.model.test_cfg.instance_on = False
    graph = build_graph(build_model(cfg, 'cpu'), 'model')
    with pytest.raises(UserError, match='but the outputs are panoptic: of a panoptic model, exp'):
        DeepnessGraph(graph, TILE, 4, is_bgr=False)


@pytest.mark.slow
def test_a_file_takes_tiles_of_one_size(models, tmp_path, shapes_root):
    pytest.importorskip('onnx')
    onnxruntime = pytest.importorskip('onnxruntime')
    photo = str(min((shapes_root / 'coco/val2017').iterdir()))
    path = tmp_path / 'x.onnx'
    settings = ExportSettings(deepness=TILE, resolution=0.5, verify=[photo])
    exported = export(*models('detector'), path, settings)
    assert [d.objects > 0 for d in exported.differences.values()] == [True] * 4
    session = onnxruntime.InferenceSession(path)
    (image,), (output,) = session.get_inputs(), session.get_outputs()
    assert image.shape == [1, 3, TILE, TILE]
    assert output.shape == [1, 7, 'objects']
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata['tile_size']) == TILE
    assert not {'resizing', 'threshold'} & metadata.keys()
    model = load_model(*models('detector'), 'cpu', full_size=True)
    tiles, values = tiles_of_deepness()
    expected = model.predict(np.ascontiguousarray(tiles[0].transpose(1, 2, 0)))
    outputs = load_runtime(path)(values)
    boxes, _, labels = objects_of_deepness(outputs['detections'])
    assert np.abs(boxes - expected.boxes).max() <= 1e-2
    assert np.array_equal(labels, expected.labels)
