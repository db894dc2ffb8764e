"""Evaluation does not mix sizes of images, and a hook leaves padding out of the attention."""

from types import SimpleNamespace

import pytest
import torch
from helpers.small_xcit import small_xcit
from torch import nn

from xcit_mm import UserError
from xcit_mm.network.rows import ALONE
from xcit_mm.predict.same_sizes import predict_by_size
from xcit_mm.train.hooks.leave_out_padding import LeaveOutPaddingHook
from xcit_mm.train.padded_rows import PaddedRows

SIZES = (32, 48), (64, 32), (32, 48), (32, 32), (64, 32)


def step(batch: dict) -> list[str]:
    """Predict the name of each image, and the sizes that it is predicted with."""
    inputs = batch['inputs']
    of_images = zip(*inputs, strict=True) if isinstance(inputs[0], list) else [(x,) for x in inputs]
    shapes = {tuple(tuple(x.shape[1:]) for x in views) for views in of_images}
    assert len(shapes) == 1, 'sizes are mixed'
    samples = batch['data_samples']
    return samples[0] if isinstance(samples[0], list) else samples


def test_images_are_predicted_with_those_of_their_size_and_keep_their_order():
    images, names = [torch.zeros(3, *size) for size in SIZES], list('abcde')
    batch = dict(inputs=images, data_samples=names)
    assert predict_by_size(step, batch) == names
    views = [images, [image.flip(2) for image in images]]
    augmented = dict(inputs=views, data_samples=[names, names])
    assert predict_by_size(step, augmented) == names
    assert batch['inputs'] is images  # the metrics read the whole batch
    with pytest.raises(AssertionError, match='mixed'):
        step(batch)


def test_a_hook_tells_the_backbone_the_sizes_of_the_images_of_each_step():
    backbone, hook = small_xcit(), LeaveOutPaddingHook()
    model = nn.Module()
    model.backbone, model.data_preprocessor = backbone, SimpleNamespace(batch_augments=None)
    runner = SimpleNamespace(model=model)
    hook.before_train(runner)
    samples = [SimpleNamespace(img_shape=(64, 48)), SimpleNamespace(img_shape=(32, 64, 3))]
    hook.before_train_iter(runner, batch_idx=0, data_batch=dict(data_samples=samples))
    assert isinstance(backbone.rows, PaddedRows)
    backbone(torch.zeros(2, 3, 64, 64))
    assert backbone.rows.valid.sum((1, 2, 3)).tolist() == [4 * 3, 2 * 4]
    hook.after_train_iter(runner, batch_idx=0)
    assert backbone.rows is ALONE
    model.data_preprocessor.batch_augments = [object()]
    with pytest.raises(UserError, match='batch_augments of data_preprocessor change the sizes'):
        hook.before_train(runner)
