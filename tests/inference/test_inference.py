"""A loaded model predicts what mmdet and mmseg do, whatever an image comes as."""

import weakref
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from mmengine.registry import DefaultScope
from mmengine.runner import CheckpointLoader
from PIL import Image
from pycocotools import mask as coco_mask

from xcit_mm import UserError, environment
from xcit_mm.engine.config.load import load_config
from xcit_mm.errors import ArgumentError
from xcit_mm.inference import label_maps, load_model
from xcit_mm.inference.classes import category_ids, classes_and_palette, distinct_colours

COCO = 'configs/mask_rcnn_xcit_n12_16_3x.py'
SHAPES = ('circle', 'square', 'triangle')


@pytest.fixture(scope='module')
def weights(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {
        config: save_random_weights(config, folder / f'{Path(config).stem}.pth')
        for config in (DETECTOR, SEGMENTOR)
    }


@pytest.fixture(scope='module')
def detector(weights):
    return load_model(DETECTOR, weights[DETECTOR], device='cpu')


@pytest.fixture(scope='module')
def segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], device='cpu')


@pytest.fixture(scope='module')
def image(shapes_root) -> np.ndarray:
    """RGB, with sides that differ."""
    path = sorted((shapes_root / 'coco/val2017').iterdir())[0]
    return np.ascontiguousarray(cv2.imread(str(path))[:130, :, ::-1])


def seen_sizes(model) -> list[tuple[int, int]]:
    """The height and width of what the backbone is given from now on."""
    sizes = []
    model.module.backbone.register_forward_pre_hook(
        lambda _, inputs: sizes.append(tuple(inputs[0].shape[2:]))
    )
    return sizes


def assert_same(one, other, tolerance: float = 0) -> None:
    assert type(one) is type(other) and np.array_equal(one.image, other.image)
    if hasattr(one, 'boxes'):
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e3 * tolerance)
        np.testing.assert_allclose(one.scores, other.scores, atol=tolerance)
        assert np.array_equal(one.labels, other.labels)
        assert (one.masks != other.masks).mean() <= tolerance
    else:
        assert (one.labels != other.labels).mean() <= tolerance


def test_detections_are_those_of_mmdet(detector, weights, image):
    from mmdet.apis import inference_detector, init_detector

    reference = init_detector(DETECTOR, str(weights[DETECTOR]), device='cpu')
    expected = inference_detector(reference, image[..., ::-1].copy()).pred_instances
    found = detector.predict(image)
    assert detector.task == 'detection' and detector.classes == found.classes == SHAPES
    assert len(found) == len(expected) > 10
    assert np.array_equal(found.boxes, expected.bboxes.numpy())
    assert np.array_equal(found.scores, expected.scores.numpy())
    assert np.array_equal(found.labels, expected.labels.numpy())
    assert np.array_equal(found.masks, expected.masks.numpy()) and found.masks.any()
    assert found.masks.shape[1:] == image.shape[:2]


def test_labels_are_those_of_mmseg(segmentor, weights, image):
    from mmseg.apis import inference_model, init_model

    reference = init_model(SEGMENTOR, str(weights[SEGMENTOR]), device='cpu')
    expected = inference_model(reference, image[..., ::-1].copy()).pred_sem_seg.data[0].numpy()
    found = segmentor.predict(image)
    assert segmentor.task == 'segmentation' and found.classes == ('background', *SHAPES)
    assert len(np.unique(expected)) > 1
    assert np.array_equal(found.labels, expected) and found.labels.dtype == np.uint8


def test_labels_of_many_classes_need_no_scores_of_all_at_the_size_of_the_image(
    tmp_path, image, monkeypatch
):
    options = {
        'model.decode_head.num_classes': 150,
        'model.decode_head.channels': 32,
        'test_dataloader.dataset.metainfo': None,
        'test_dataloader.dataset.type': 'ADE20KDataset',
    }
    checkpoint = save_random_weights(SEGMENTOR, tmp_path / 'random.pth', **options)
    model = load_model(SEGMENTOR, checkpoint, 'cpu', options)
    assert len(model.classes) == len(set(model.classes)) == 150
    prepared = {key: [value] for key, value in model._prepare(image).items()}
    with torch.inference_mode():
        [expected] = model.module.test_step(prepared)
    labels = expected.pred_sem_seg.data[0].numpy()
    best, second = expected.seg_logits.data.topk(2, dim=0).values
    assert len(np.unique(labels)) > 2
    assert np.array_equal(model.predict(image).labels, labels)

    monkeypatch.setattr(label_maps, 'NUMBERS', 0)
    with torch.profiler.profile(profile_memory=True) as profile:
        found = model.predict(image).labels
    clear = (best - second > 1e-5).numpy()
    assert clear.mean() > 0.99 and np.array_equal(found[clear], labels[clear])
    events = profile.profiler.kineto_results.events()
    largest = max(event.nbytes() for event in events if event.name() == '[memory]')
    assert largest < 150 * image.shape[0] * image.shape[1] * 4 / 4


def test_a_sliding_window_is_left_to_mmseg(weights, image):
    sliding = {'model.test_cfg': dict(mode='slide', crop_size=(96, 96), stride=(64, 64))}
    model = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', sliding)
    sizes = seen_sizes(model)
    assert model.predict(image).labels.shape == image.shape[:2]
    assert len(sizes) > 1 and set(sizes) == {(96, 96)}


@pytest.mark.parametrize('name', ['detector', 'segmentor'])
def test_a_path_an_array_and_a_pil_image_are_the_same(request, name, image, tmp_path):
    model = request.getfixturevalue(name)
    path = tmp_path / 'image.png'
    Image.fromarray(image).save(path)
    expected = model.predict(image)
    for given in (path, str(path), Image.fromarray(image)):
        assert_same(model.predict(given), expected)


@pytest.mark.parametrize('name', ['detector', 'segmentor'])
def test_a_prediction_does_not_depend_on_what_else_is_in_the_batch(request, name, image):
    model = request.getfixturevalue(name)
    batch = [image, image[:64, :100].copy(), image[::-1].copy()]
    sizes = seen_sizes(model)
    together = model.predict_batch(batch)
    assert len(sizes) == 2  # the first and the last are of one size
    for one, alone in zip(together, batch, strict=True):
        assert_same(one, model.predict(alone), tolerance=1e-4)


def test_the_model_sees_an_image_at_the_size_of_the_config_or_its_own(detector, weights, image):
    image = np.tile(image, (3, 3, 1))  # 390 x 480, which the config makes 130 x 160
    sizes = seen_sizes(detector)
    detector.predict(image)
    whole = load_model(DETECTOR, weights[DETECTOR], 'cpu', full_size=True)
    sizes_of_whole = seen_sizes(whole)
    found = whole.predict(image)
    assert sizes == [(160, 160)] and sizes_of_whole == [(416, 480)]  # padded to 32
    assert found.boxes.max() <= 480 and found.boxes.max() > 200
    assert found.masks.shape[1:] == (390, 480)


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_the_maps_of_the_backbone_are_freed_once_the_pyramid_has_read_them(weights, image, config):
    module = (model := load_model(config, weights[config], 'cpu')).module
    maps, left = [], []
    # On the last part of the backbone, and the first after the maps were read.
    for part in (module.backbone.fpn1, module.backbone.fpn2):
        part.register_forward_hook(lambda _, inputs, output: maps.append(weakref.ref(output)))
    module.neck.fpn_convs[0].register_forward_pre_hook(
        lambda *_: left.extend(one() is not None for one in maps)
    )
    model.predict(image)
    assert left == [False, False]


@pytest.mark.parametrize('size', [(1, 1), (1, 40), (97, 3)])
def test_an_image_of_a_few_pixels_is_predicted_or_an_error(detector, segmentor, size):
    image = np.zeros((*size, 3), np.uint8)
    found = detector.predict(image)  # it is padded to 32 pixels
    assert found.masks.shape[1:] == size and found.draw().ndim == 3
    with pytest.raises(UserError, match='both sides need at least 17'):
        segmentor.predict(image)


def test_an_image_that_cannot_be_resized_is_named(detector):
    with pytest.raises(UserError, match='3000x1 pixels cannot be resized'):
        detector.predict(np.zeros((1, 3000, 3), np.uint8))


@pytest.mark.parametrize(
    ('given', 'says'),
    [
        (np.zeros((8, 8), np.uint8), r'this array is \(8, 8\) of uint8'),
        (np.zeros((8, 8, 3)), 'of float64'),
        (np.zeros((0, 8, 3), np.uint8), r'\(0, 8, 3\)'),
        (3, 'no int'),
    ],
)
def test_what_is_no_image_is_an_argument_error(detector, given, says):
    with pytest.raises(ArgumentError, match=says):
        detector.predict(given)


def test_a_file_that_is_no_image_is_named(detector, tmp_path):
    (tmp_path / 'text.jpg').write_text('hello')
    with pytest.raises(UserError, match=r'text\.jpg: it is no image that can be read'):
        detector.predict(tmp_path / 'text.jpg')
    with pytest.raises(UserError, match=r'gone\.jpg does not exist'):
        detector.predict(tmp_path / 'gone.jpg')


def test_objects_below_a_score_are_left_out(detector, image):
    found = detector.predict(image)
    middle = float(np.median(found.scores))
    kept = found.above(middle)
    assert 0 < len(kept) < len(found) and kept.scores.min() >= middle
    assert len(kept.boxes) == len(kept.labels) == len(kept.masks) == len(kept)
    assert (np.diff(found.scores) <= 0).all()
    assert len(found.above(1.0)) == 0 and found.above(1.0).draw().shape == (390, 480, 3)


def test_annotations_are_of_coco(detector, image):
    found = detector.predict(image)
    annotations = found.to_coco(7)
    assert len(annotations) == len(found)
    for i, one in enumerate(annotations):
        left, top, width, height = one['bbox']
        np.testing.assert_allclose(
            [left, top, left + width, top + height], found.boxes[i], rtol=1e-5
        )
        assert one['image_id'] == 7 and one['category_id'] == found.labels[i] + 1
        assert np.array_equal(coco_mask.decode(one['segmentation']), found.masks[i])
        assert one['area'] == found.masks[i].sum()


@pytest.mark.parametrize(
    ('config', 'weights_of', 'options', 'says'),
    [
        (DETECTOR, SEGMENTOR, {}, 'is of a segmentor, and'),
        (SEGMENTOR, DETECTOR, {}, 'is of a detector, and'),
        (DETECTOR, DETECTOR, {'device': 'tpu9'}, "device='tpu9' cannot be used"),
        (DETECTOR, DETECTOR, {'device': 'cuda:77'}, "device='cuda:77' cannot be used"),
        (DETECTOR, None, {}, r'nowhere\.pth does not exist'),
        ('configs/_base_/mask_rcnn_xcit.py', DETECTOR, {}, 'has no test_dataloader'),
    ],
)
def test_a_model_that_cannot_be_loaded_is_an_error(weights, config, weights_of, options, says):
    checkpoint = weights.get(weights_of, 'nowhere.pth')
    with pytest.raises(UserError, match=says):
        load_model(config, checkpoint, **options)


def test_nothing_is_fetched_for_the_backbone(weights):
    nowhere = {'pretrained': 'http://127.0.0.1:9/weights.pth'}
    model = load_model(DETECTOR, weights[DETECTOR], 'cpu', nowhere)
    state = torch.load(weights[DETECTOR])['state_dict']
    assert not model.module.training
    assert all(torch.equal(v, state[name]) for name, v in model.module.state_dict().items())


def classes_of(config: str, meta: dict, num_classes: int, **options):
    cfg = load_config(config, options)
    environment.require(f'{cfg.default_scope}.datasets')
    head = SimpleNamespace(num_classes=num_classes)
    model = SimpleNamespace(roi_head=SimpleNamespace(bbox_head=head))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return classes_and_palette(cfg, {'meta': meta}, model)


def test_the_classes_that_the_config_names_come_first():
    classes, palette = classes_of(DETECTOR, {'dataset_meta': {'classes': list('abc')}}, 3)
    assert classes == SHAPES and palette[0] == (220, 60, 60)


@pytest.mark.parametrize(
    'meta',
    [
        {'dataset_meta': {'classes': tuple('abcdefgh' * 10), 'palette': [(1, 2, 3)] * 80}},
        {'CLASSES': list('abcdefgh' * 10), 'PALETTE': [[1, 2, 3]] * 80},  # mmdet 2
    ],
)
def test_then_those_of_the_checkpoint(meta):
    assert classes_of(COCO, meta, 80) == (tuple('abcdefgh' * 10), ((1, 2, 3),) * 80)


def test_then_those_of_the_dataset():
    classes, palette = classes_of(COCO, {'dataset_meta': 'junk'}, 80)
    assert classes[:2] == ('person', 'bicycle') and palette[0] == (220, 20, 60)


def test_classes_of_another_number_are_an_error():
    with pytest.raises(UserError, match='have 4 classes, but 3 are named'):
        classes_of(DETECTOR, {}, 4)


@pytest.mark.parametrize(
    'colour', ['red', ('a', 'b', 'c'), (-1, 0, 0), (0, 0), (0, float('nan'), 0), None, 5]
)
def test_a_palette_of_a_checkpoint_that_is_no_colours_is_left(colour):
    meta = {'classes': tuple('abcdefgh' * 10), 'palette': [colour] * 80}
    classes, palette = classes_of(COCO, {'dataset_meta': meta}, 80)
    assert classes == meta['classes'] and palette == tuple(distinct_colours(80))


def test_names_of_a_checkpoint_are_made_printable_and_short():
    odd = ['\x1b[2Ja', 'a\nb', '\ud800', 'a' * 10**6]
    classes, _ = classes_of(COCO, {'dataset_meta': {'classes': odd * 20}}, 80)
    assert classes[:3] == ('?[2Ja', 'a b', '?') and len(classes[3]) < 120
    for names in ([0] * 80, 'person', 5, {'a': 1}, [None] * 80):
        classes, _ = classes_of(COCO, {'dataset_meta': {'classes': names}}, 80)
        assert classes[0] == 'person'


def test_a_palette_is_made_where_there_is_none():
    without = {'test_dataloader.dataset.metainfo.palette': None}
    classes, palette = classes_of(DETECTOR, {}, 3, **without)
    assert classes == SHAPES and palette == tuple(distinct_colours(3))


def test_colours_that_are_made_differ():
    colours = distinct_colours(150)
    assert len(set(colours)) == 150
    first = np.array(colours[:12], float)
    apart = np.linalg.norm(first[:, None] - first[None], axis=-1) + 1e3 * np.eye(12)
    assert apart.min() > 40


def test_the_classes_of_coco_have_the_numbers_of_its_annotations():
    from mmdet.datasets import CocoDataset

    classes = CocoDataset.METAINFO['classes']
    numbers = dict(zip(classes, category_ids(classes), strict=True))
    assert [numbers[n] for n in ('person', 'stop sign', 'tv', 'toothbrush')] == [1, 13, 72, 90]
    assert category_ids(('a', 'b')) == [1, 2]


def test_loading_a_model_leaves_mmengine_as_it_was(weights):
    schemes = dict(CheckpointLoader._schemes)
    load_model(DETECTOR, weights[DETECTOR], 'cpu', trust_checkpoint=True)
    assert dict(CheckpointLoader._schemes) == schemes
