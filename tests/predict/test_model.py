"""A loaded model predicts what mmdet and mmseg predict, whatever form an image has."""

import warnings
import weakref

import numpy as np
import pytest
import torch
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from mmengine.runner import CheckpointLoader
from PIL import Image

from xcit_mm import UserError, load_model
from xcit_mm.base import device
from xcit_mm.base.errors import ArgumentError
from xcit_mm.large.maps import resized_labels

SHAPES = ('circle', 'square', 'triangle')


def seen_sizes(model) -> list[tuple[int, int]]:
    """Return a list to which the sizes (H, W) of all further inputs of the backbone are added."""
    sizes = []
    model.module.backbone.register_forward_pre_hook(
        lambda _, inputs: sizes.append(tuple(inputs[0].shape[2:]))
    )
    return sizes


def assert_same(prediction, expected, tolerance: float = 0) -> None:
    assert np.array_equal(prediction.image, expected.image)
    if hasattr(expected, 'boxes'):
        np.testing.assert_allclose(prediction.boxes, expected.boxes, atol=1e3 * tolerance)
        np.testing.assert_allclose(prediction.scores, expected.scores, atol=tolerance)
        assert (prediction.masks != expected.masks).mean() <= tolerance
    assert (prediction.labels != expected.labels).mean() <= tolerance


def test_detections_are_those_of_mmdet(detector, weights, image):
    from mmdet.apis import inference_detector, init_detector

    with warnings.catch_warnings(record=True):  # they set filters of their own
        reference = init_detector(DETECTOR, str(weights[DETECTOR]), device='cpu')
    expected = inference_detector(reference, image[..., ::-1].copy()).pred_instances
    detections = detector.predict(image)
    assert detector.task == 'detection' and detector.classes == detections.classes == SHAPES
    assert len(detections) == len(expected) > 10
    # Fused layers round in another way.
    assert np.allclose(detections.boxes, expected.bboxes.numpy(), rtol=0, atol=1e-3)
    assert np.allclose(detections.scores, expected.scores.numpy(), rtol=0, atol=1e-5)
    assert np.array_equal(detections.labels, expected.labels.numpy())
    assert np.mean(detections.masks != expected.masks.numpy()) < 1e-4
    assert detections.masks.any() and detections.masks.shape[1:] == image.shape[:2]
    assert (np.diff(detections.scores) <= 0).all()
    median = float(np.median(detections.scores))
    kept = detections.above(median)
    assert 0 < len(kept) == len(kept.masks) < len(detections) and kept.scores.min() >= median


def test_labels_are_those_of_mmseg(segmentor, weights, image):
    from mmseg.apis import inference_model, init_model

    with warnings.catch_warnings(record=True):  # they set filters of their own
        reference = init_model(SEGMENTOR, str(weights[SEGMENTOR]), device='cpu')
    expected = inference_model(reference, image[..., ::-1].copy()).pred_sem_seg.data[0].numpy()
    segmentation = segmentor.predict(image)
    assert segmentor.task == 'segmentation' and segmentation.classes == ('background', *SHAPES)
    assert len(np.unique(expected)) > 1
    assert np.mean(segmentation.labels != expected) < 1e-4  # fused layers round in another way
    assert segmentation.labels.dtype == np.uint8


def test_the_scores_of_many_classes_are_not_in_memory_together(tmp_path, image, monkeypatch):
    options = {
        'model.decode_head.num_classes': 300,
        'model.decode_head.channels': 32,
        'test_dataloader.dataset.metainfo': None,
    }
    checkpoint = save_random_weights(SEGMENTOR, tmp_path / 'random.pth', **options)
    model = load_model(SEGMENTOR, checkpoint, 'cpu', options)
    with torch.inference_mode():
        data = {key: [value] for key, value in model.pack(model.prepare(image)).items()}
        [expected] = model.module.test_step(data)
    labels = expected.pred_sem_seg.data[0].numpy()
    best, second = expected.seg_logits.data.topk(2, dim=0).values
    monkeypatch.setattr(resized_labels, 'MAX_SCORES', 7 * image[..., 0].size)
    with torch.profiler.profile(profile_memory=True) as profile:
        predicted = model.predict(image).labels
    is_clear = (best - second > 1e-5).numpy()
    assert predicted.dtype == np.int16 and len(np.unique(labels)) > 2
    assert is_clear.mean() > 0.99 and np.array_equal(predicted[is_clear], labels[is_clear])
    events = profile.profiler.kineto_results.events()
    largest = max(event.nbytes() for event in events if event.name() == '[memory]')
    assert largest < 300 * image[..., 0].size * 4 / 4


def test_a_sliding_window_is_left_to_mmseg(weights, image):
    sliding = {'model.test_cfg': dict(mode='slide', crop_size=(96, 96), stride=(64, 64))}
    model = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', sliding)
    sizes = seen_sizes(model)
    assert model.predict(image).labels.shape == image.shape[:2]
    assert len(sizes) > 1 and set(sizes) == {(96, 96)}


@pytest.mark.parametrize('name', ['detector', 'segmentor'])
def test_a_prediction_depends_on_neither_the_kind_of_input_nor_the_batch(
    request, name, image, tmp_path
):
    model = request.getfixturevalue(name)
    path = tmp_path / 'image.png'
    Image.fromarray(image).save(path)
    expected = model.predict(image)
    for source in (path, str(path), Image.fromarray(image)):
        assert_same(model.predict(source), expected)
    gray = np.array(Image.fromarray(image).convert('L'))
    Image.fromarray(gray.astype(np.uint16) * 256).save(path)
    for source in (gray.astype(np.uint16) * 256, gray):
        assert_same(model.predict(source), model.predict(path))
    batch = [image, image[:64, :100].copy(), image[::-1].copy()]
    sizes = seen_sizes(model)
    predictions = model.predict_batch(batch)
    assert len(sizes) == 2  # the first and the last have one size
    for prediction, alone in zip(predictions, batch, strict=True):
        assert_same(prediction, model.predict(alone), tolerance=1e-4)


def test_the_model_sees_an_image_at_the_size_of_the_config_or_its_own(detector, weights, image):
    image = np.tile(image, (3, 3, 1))  # 390 x 480, which the config makes 130 x 160
    sizes = seen_sizes(detector)
    detector.predict(image)
    full_size = load_model(DETECTOR, weights[DETECTOR], 'cpu', full_size=True)
    full_sizes = seen_sizes(full_size)
    detections = full_size.predict(image)
    assert sizes == [(160, 160)] and full_sizes == [(416, 480)]  # padded to 32
    assert 200 < detections.boxes.max() <= 480
    assert detections.masks.shape[1:] == (390, 480)


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_the_maps_of_the_backbone_are_freed_once_the_pyramid_has_read_them(weights, image, config):
    module = (model := load_model(config, weights[config], 'cpu')).module
    maps, alive = [], []
    for part in (module.backbone.fpn1, module.backbone.fpn2):
        part.register_forward_hook(lambda _, inputs, output: maps.append(weakref.ref(output)))
    module.neck.fpn_convs[0].register_forward_pre_hook(
        lambda *_: alive.extend(feature_map() is not None for feature_map in maps)
    )
    model.predict(image)
    assert alive == [False, False]


def test_predictions_in_16_bits(detector, segmentor, weights, image):
    model = load_model(DETECTOR, weights[DETECTOR], 'cpu', dtype='bfloat16')
    wide, narrow = detector.predict(image), model.predict(image)
    assert model.dtype == torch.bfloat16
    assert narrow.boxes.dtype == narrow.scores.dtype == np.float32
    assert len(narrow) == len(wide) > 10
    assert abs(narrow.scores[0] - wide.scores[0]) < 0.05
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    with model._fused.of(model.module) as fused:
        assert fused.neck.fpn_convs[0].conv.weight.dtype == model.dtype
    model = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', dtype='bfloat16')
    different = model.predict(image).labels != segmentor.predict(image).labels
    assert different.mean() < 0.2  # random weights give all classes similar scores


def test_auto_is_the_fastest_dtype_of_the_device(monkeypatch):
    cpu, cuda = torch.device('cpu'), torch.device('cuda')
    for multiplies, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(device, 'multiplies_bfloat16', lambda result=multiplies: result)
        assert device.choose_dtype('auto', cpu) == dtype
        assert device.choose_dtype(None, cpu) == torch.float32
        assert device.choose_dtype(torch.bfloat16, cpu) == torch.bfloat16
    for is_native, dtype in ((False, torch.float16), (True, torch.bfloat16)):
        monkeypatch.setattr(
            torch.cuda, 'is_bf16_supported', lambda including_emulation, result=is_native: result
        )
        assert device.choose_dtype(None, cuda) == device.choose_dtype('auto', cuda) == dtype
    with pytest.raises(ArgumentError, match="dtype='half' is not one of"):
        device.choose_dtype('half', cpu)


def test_an_image_of_a_few_pixels_is_predicted_or_an_error(detector, segmentor):
    for size in ((1, 1), (97, 3)):
        image = np.zeros((*size, 3), np.uint8)
        detections = detector.predict(image)  # it is padded to 32 pixels
        assert detections.masks.shape[1:] == size and detections.draw().ndim == 3
        with pytest.raises(UserError, match='both sides need at least 17'):
            segmentor.predict(image)


@pytest.mark.parametrize(
    ('image', 'error', 'message'),
    [
        (np.zeros((8, 8, 2), np.uint8), ArgumentError, r'not \(8, 8, 2\) of uint8'),
        (np.zeros((1, 3000, 3), np.uint8), UserError, '3000x1 pixels cannot be resized'),
        ('gone.jpg', UserError, 'gone.jpg does not exist'),
        ('setup.py', UserError, r'setup\.py: it is not a readable image'),
    ],
)
def test_an_invalid_image_is_an_error(detector, image, error, message):
    with pytest.raises(error, match=message):
        detector.predict(image)


@pytest.mark.parametrize(
    ('config', 'weights_of', 'options', 'message'),
    [
        (DETECTOR, SEGMENTOR, {}, 'does not hold the weights of this model'),
        (DETECTOR, DETECTOR, {'device': 'cuda:77'}, "device='cuda:77' cannot be used"),
        (DETECTOR, None, {}, r'nowhere\.pth does not exist'),
    ],
)
def test_a_model_that_cannot_be_loaded_is_an_error(weights, config, weights_of, options, message):
    with pytest.raises(UserError, match=message):
        load_model(config, weights.get(weights_of, 'nowhere.pth'), **options)


def test_nothing_is_fetched_for_the_backbone_and_nothing_is_left_in_mmengine(weights):
    nowhere = {'pretrained': 'http://127.0.0.1:9/weights.pth'}
    schemes = dict(CheckpointLoader._schemes)
    model = load_model(DETECTOR, weights[DETECTOR], 'cpu', nowhere, trust_checkpoint=True)
    state = torch.load(weights[DETECTOR])['state_dict']
    assert not model.module.training
    assert all(torch.equal(v, state[name]) for name, v in model.module.state_dict().items())
    assert CheckpointLoader._schemes == schemes
