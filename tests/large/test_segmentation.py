"""Labels and scores of large images against the scores of the whole image, enlarged 4 times."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import network_error, relative_error
from helpers.segmentors import HEADS, build
from torch.nn import functional as F

from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import tiles, whole
from xcit_mm.large.maps import segment as segmentation
from xcit_mm.large.maps.streamed_maps import Pyramid
from xcit_mm.large.tokens.passes import Passes


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=pytest.mark.slow) if n.startswith('upernet') else n for n in HEADS],
)
def test_logits_and_labels_equal_those_of_the_whole_image(name, monkeypatch):
    monkeypatch.setattr(segmentation, 'MAX_TILE', 64)
    model = build(name)
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        tolerance = network_error(model, dtype)
        for size in ((161, 75), (66, 129)):
            image = torch.randn(3, *size, dtype=dtype)
            with torch.no_grad():
                expected = model.decode_head(model.extract_feat(image[None]))
                resized = F.interpolate(expected, scale_factor=4, mode='bilinear')
                resized = resized[..., : size[0], : size[1]]
                top = resized[0].topk(2, dim=0)
            for rows in (1, None):  # test_stream.py has more of them
                passes = Passes(model.backbone, image, rows)
                passes.run()
                maps = Pyramid(passes).maps
                with torch.inference_mode():
                    logits = model.decode_head(model.neck(maps) if model.with_neck else maps)
                    parts = [logits.read(w) for w in tiles(whole(expected.shape[2:]), (999, 7))]
                assert relative_error(torch.cat(parts, dim=3), expected) <= tolerance
                made = dict(labels=torch.uint8, scores=torch.uint8, probabilities=torch.float16)
                found = segmentation.label(model, passes, size, made)
                arrays = [torch.from_numpy(store.array()) for store in found.values()]
                labels, scores = (array[..., 0] for array in arrays[:2])
                is_tie = top.values[0] - top.values[1] <= 20 * tolerance * resized.abs().max()
                assert (labels == top.indices[0])[~is_tie].all()
                shares = resized[0].softmax(0).amax(0)
                assert (scores / 255 - shares).abs().max() <= 0.51 / 255
                probabilities = resized[0].softmax(0).permute(1, 2, 0)
                assert (arrays[2] - probabilities).abs().max() <= 1e-3


def test_a_prediction_equals_that_of_the_whole_image(full_size_segmentor, image):
    whole_image, large = (
        full_size_segmentor.predict(image),
        full_size_segmentor.predict_large(image),
    )
    assert np.array_equal(large.labels, whole_image.labels)
    assert large.shares() == pytest.approx(whole_image.shares())
    assert np.array_equal(large.image, image)
    assert np.array_equal(large.draw(), whole_image.draw())
    assert large.scores is None


@pytest.mark.parametrize('padding', [dict(size_divisor=64), dict(size=(160, 192))])
def test_a_model_that_pads_its_images_is_streamed(full_size_segmentor, image, padding, monkeypatch):
    preprocessor = full_size_segmentor.module.data_preprocessor
    monkeypatch.setattr(preprocessor, 'test_cfg', padding)
    expected = full_size_segmentor.predict(image).labels
    assert expected.shape == image.shape[:2]
    large = full_size_segmentor.predict_large(image)
    assert (large.labels != expected).mean() < 1e-3  # fused layers round in another way
    monkeypatch.setattr(preprocessor, 'test_cfg', None)
    assert (full_size_segmentor.predict(image).labels != expected).mean() > 1e-3


def test_labels_in_16_bits(full_size_segmentor, image):
    narrow = dataclasses.replace(full_size_segmentor, streamed_dtype=torch.bfloat16)
    labels = narrow.predict_large(image).labels
    different = (labels != full_size_segmentor.predict_large(image).labels).mean()
    assert 0 < different < 0.1  # random weights give all classes similar scores


def test_slices_keep_the_middle_of_what_they_share(full_size_segmentor, image):
    large = full_size_segmentor.predict_large(
        image, sliced=96, overlap=32, batch_size=1
    )  # of 130 x 160 pixels
    corner = full_size_segmentor.predict(np.ascontiguousarray(image[-96:, -96:])).labels
    assert np.array_equal(large.labels[-65:, -80:], corner[-65:, -80:])
    assert large.labels.shape == image.shape[:2]


def test_a_window_of_statistics_that_holds_the_image_is_the_whole_image(full_size_segmentor, image):
    large = full_size_segmentor.predict_large(image, statistics_window=320)
    assert np.array_equal(large.labels, full_size_segmentor.predict_large(image).labels)
    local = full_size_segmentor.predict_large(image, statistics_window=64)
    assert not np.array_equal(large.labels, local.labels)


def test_heads_that_are_not_known_are_named(full_size_segmentor, image, monkeypatch):
    monkeypatch.setattr(type(full_size_segmentor.module.decode_head), 'predict', lambda *args: None)
    with pytest.raises(
        UserError, match='which pixels of its maps FPNHead reads is not known; use --sl'
    ):
        full_size_segmentor.predict_large(image)
