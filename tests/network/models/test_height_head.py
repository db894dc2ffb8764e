"""Heights of any sign, and losses that leave out what has no label."""

import numpy as np
import pytest
import torch
from helpers.heights import build_heights
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from xcit_mm.base.environment import require_framework

require_framework('mmseg')
from xcit_mm.network.models.height_losses import LabeledL1Loss, LabeledSiLogLoss  # noqa: E402


@pytest.fixture
def heights():
    labels = torch.rand(3, 1, 5, 7) * 9 + 1
    labels[0, 0, :2] = torch.nan
    labels[1] = torch.nan
    return labels


def test_the_absolute_error_is_the_mean_over_labeled_pixels(heights):
    predicted = torch.randn(3, 1, 5, 7, requires_grad=True)
    loss = LabeledL1Loss(loss_weight=2.0)(predicted, heights)
    loss.backward()
    error = np.abs(predicted.detach().numpy() - heights.numpy())
    assert loss.item() == pytest.approx(2 * np.nanmean(error), rel=1e-6)
    assert (predicted.grad[heights.isnan()] == 0).all()
    assert (predicted.grad[~heights.isnan()] != 0).all()


def test_the_logarithmic_loss_is_the_mean_over_labeled_images(heights):
    predicted = (torch.rand(3, 1, 5, 7) + 0.5).requires_grad_()
    loss = LabeledSiLogLoss()(predicted, heights)
    loss.backward()
    of_images = []
    for image, label in zip(predicted.detach().numpy(), heights.numpy(), strict=True):
        d = np.log(label / image)[~np.isnan(label)]
        of_images += [np.sqrt((d**2).mean() - 0.5 * d.mean() ** 2)] if len(d) else []
    assert len(of_images) == 2
    assert loss.item() == pytest.approx(np.mean(of_images), rel=1e-5)
    assert predicted.grad.isfinite().all()


@pytest.mark.parametrize('kind', [LabeledL1Loss, LabeledSiLogLoss])
def test_a_batch_without_labels_has_a_loss_of_zero(kind):
    predicted = torch.ones(2, 1, 3, 3, requires_grad=True)
    loss = kind()(predicted, torch.full((2, 1, 3, 3), torch.nan))
    loss.backward()
    assert loss.item() == 0 and (predicted.grad == 0).all()


def heights_of_equal_weights(image: torch.Tensor, *heads: dict) -> list[torch.Tensor]:
    models = [build_heights(**head) for head in heads]
    with torch.no_grad():
        for model in models:
            model.load_state_dict(models[0].state_dict())
        return [model.decode_head(model.extract_feat(image)) for model in models]


def test_heights_are_negative_unless_the_head_is_positive():
    heads = [dict(mean=0.0, std=9.0, positive=p) for p in (False, True)]
    heights, clipped = heights_of_equal_weights(torch.randn(1, 3, 64, 96), *heads)
    assert heights.shape == clipped.shape == (1, 1, 16, 24)
    assert heights.min() < 0
    assert clipped.min() > 0
    torch.testing.assert_close(clipped, 9 * torch.log1p(torch.exp(heights / 9)))


def test_the_last_layer_is_scaled_and_moved_to_the_mean():
    heads = dict(mean=0.0, std=1.0), dict(mean=100.0, std=3.0)
    one, other = heights_of_equal_weights(torch.randn(1, 3, 64, 64), *heads)
    torch.testing.assert_close(other, 100 + 3 * one)


def test_what_fills_up_smaller_images_of_a_batch_has_no_loss():
    model = build_heights().train()
    model.decode_head.eval()

    def loss(fill: float) -> float:
        model.data_preprocessor.seg_pad_val, model.data_preprocessor.size = fill, (64, 64)
        torch.manual_seed(0)
        data = dict(inputs=[], data_samples=[])
        for size in ((64, 64), (40, 56)):
            sample = SegDataSample()
            sample.gt_depth_map = PixelData(data=torch.rand(1, *size))
            data['inputs'].append(torch.randint(256, (3, *size), dtype=torch.uint8))
            data['data_samples'].append(sample)
        data = model.data_preprocessor(data, True)
        return model.loss(**data)['decode.loss_l1'].item()

    assert loss(255) == pytest.approx(loss(-1000), rel=1e-6)
