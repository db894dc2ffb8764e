"""A panoptic model predicts mmdet's segments: a class and an object for each pixel."""

import json
import warnings

import numpy as np
import pytest
import torch
from helpers.random_weights import save_random_weights
from PIL import Image

from xcit_mm import load_model
from xcit_mm.apps.infer.run import infer

PANOPTIC = 'configs/mask2former_panoptic_xcit_n12_16_shapes.py'
CLASSES = ('circle', 'square', 'triangle', 'background')
# Weights that were not trained are sure of nothing.
OPTIONS = {'model.test_cfg.object_mask_thr': 0.0, 'model.test_cfg.iou_thr': 0.0}


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory) -> str:
    path = save_random_weights(PANOPTIC, tmp_path_factory.mktemp('weights') / 'random.pth')
    content = torch.load(path)
    # Larger masks' weights, without a bias: otherwise the mask of a query is the whole image.
    content['state_dict']['panoptic_head.mask_embed.4.weight'] *= 20
    content['state_dict']['panoptic_head.mask_embed.4.bias'] *= 0
    torch.save(content, path)
    return str(path)


@pytest.fixture(scope='module')
def segments(checkpoint, image) -> np.ndarray:
    """What mmdet predicts, (H, W)."""
    from mmdet.apis import inference_detector, init_detector

    with warnings.catch_warnings(record=True):  # they set filters of their own
        reference = init_detector(PANOPTIC, checkpoint, device='cpu', cfg_options=OPTIONS)
    predicted = inference_detector(reference, image[..., ::-1].copy()).pred_panoptic_seg
    return predicted.sem_seg[0].numpy()


def test_segments_are_those_of_mmdet(checkpoint, image, segments):
    model = load_model(PANOPTIC, checkpoint, 'cpu', OPTIONS)
    prediction = model.predict(image)
    assert model.task == 'panoptic' and prediction.classes == CLASSES
    assert len(np.unique(segments)) > 1
    assert np.array_equal(prediction.segments, segments)
    assert np.array_equal(prediction.labels, segments % 1000)
    assert sum(prediction.shares().values()) == (segments % 1000 < 4).mean()


def test_without_its_panoptic_part_the_model_detects_things(checkpoint, image):
    model = load_model(PANOPTIC, checkpoint, 'cpu', {'model.test_cfg.panoptic_on': False})
    prediction = model.predict(image)
    assert model.task == 'detection' and len(prediction) > 0
    assert set(prediction.labels) <= {0, 1, 2}
    assert prediction.masks.shape == (len(prediction), *image.shape[:2])


def test_labels_and_pictures_are_written(checkpoint, image, segments, tmp_path):
    Image.fromarray(image).save(tmp_path / 'a.png')
    out = tmp_path / 'out'
    number, problems, _ = infer(
        PANOPTIC, checkpoint, [str(tmp_path / 'a.png')], str(out), device='cpu', options=OPTIONS
    )
    assert (number, problems) == (1, [])
    classes = json.loads((out / 'classes.json').read_text())['classes']
    assert [entry['name'] for entry in classes] == list(CLASSES)
    assert np.array_equal(np.asarray(Image.open(out / 'labels/a.png')), segments % 1000)
    assert (out / 'pictures/a.jpg').is_file()
