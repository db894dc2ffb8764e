"""The loss of whole models, as a training computes it, against mmdet and mmseg."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import relative_error
from helpers.detectors import build as build_detector
from helpers.detectors import compute_losses_in_mmdet
from helpers.segmentors import build as build_segmentor
from mmdet.structures import DetDataSample
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.image_views import RGBImage
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.labels.label_windows import LabelWindows
from xcit_mm.large.losses.step import require_trainable_model, streamed_loss

BOXES = [[3.0, 5, 40, 60], [100, 90, 190, 147], [150, 20, 199, 70]]


def whole_loss(model: nn.Module, image: np.ndarray, sample: BaseDataElement) -> Tensor:
    """Return the loss of mmdet or mmseg for an image in memory."""
    inputs = torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)  # the loader returns BGR
    batch = dict(inputs=[inputs], data_samples=[sample])
    losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    return model.parse_losses(losses)[0]


def normalized(model: nn.Module, image: np.ndarray) -> NormalizedImage:
    source = RGBImage(Array(image, 'an image'))
    return NormalizedImage(source, model.data_preprocessor, (), None)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('name', ['retinanet_xcit_t12_16_1x', 'faster_rcnn_xcit_n12_16_small'])
def test_a_detector_counts_the_anchors_of_the_padding(name, monkeypatch):
    torch.manual_seed(0)
    model = build_detector(name)
    require_trainable_model(model)
    image = np.random.default_rng(0).integers(0, 255, (150, 203, 3), np.uint8)
    sample = DetDataSample(metainfo=dict(img_shape=image.shape[:2], scale_factor=(1.0, 1.0)))
    sample.gt_instances = InstanceData(bboxes=torch.tensor(BOXES), labels=torch.arange(3))
    sample.ignored_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    torch.manual_seed(1)
    with monkeypatch.context() as patched:
        compute_losses_in_mmdet(patched)
        expected = whole_loss(model, image, copy.deepcopy(sample))
    wanted = gradients(model, expected)
    torch.manual_seed(1)
    loss, _ = streamed_loss(model, normalized(model, image), sample)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    found = gradients(model, loss)
    assert found.keys() == wanted.keys()
    scale = max(value.norm() for value in wanted.values())
    for key, value in wanted.items():
        assert (found[key] - value).norm() <= 1e-4 * max(value.norm(), 1e-2 * scale), key


@pytest.mark.parametrize('name', ['sem_fpn_xcit_t12_16_80k', 'upernet_xcit_t12_8_160k'])
def test_three_steps_have_the_losses_of_the_whole_image(name):
    torch.manual_seed(0)
    models = [build_segmentor(name, norm_eval=True, drop_path_rate=0.1)]
    models.append(copy.deepcopy(models[0]))
    for model in models:
        model.data_preprocessor.size, model.data_preprocessor.size_divisor = None, 1
        model.train()
        for layer in model.modules():
            if hasattr(layer, 'reset_parameters'):  # random weights would amplify differences
                torch.manual_seed(0)
                layer.reset_parameters()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4) for model in models]
    rng = np.random.default_rng(0)
    for step in range(3):
        size = rng.integers(64, 110, 2)
        image = rng.integers(0, 255, (*size, 3), np.uint8)
        labels = (image[..., 0] // 90).astype(np.uint8)
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.from_numpy(labels)[None].long()))
        windows = SimpleNamespace(label_windows=LabelWindows(Array(labels[..., None], 'labels')))
        torch.manual_seed(step)
        whole = whole_loss(models[0], image, sample)
        torch.manual_seed(step)
        streamed, _ = streamed_loss(models[1], normalized(models[1], image), windows)
        assert relative_error(streamed.detach(), whole.detach()) <= 1e-4, step
        for optimizer, loss in zip(optimizers, (whole, streamed), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
