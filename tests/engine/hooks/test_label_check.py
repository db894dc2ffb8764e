"""Labels outside the classes are named with their file and value."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from xcit_mm import UserError
from xcit_mm.engine.hooks import LabelCheckHook

RUNNER = SimpleNamespace(
    model=SimpleNamespace(
        decode_head=SimpleNamespace(num_classes=4, out_channels=4, ignore_index=255)
    )
)


def batch(*labels: int, reduce_zero_label: bool = False) -> dict:
    sample = BaseDataElement(
        metainfo=dict(seg_map_path='labels/7.png', reduce_zero_label=reduce_zero_label)
    )
    sample.set_data(dict(gt_sem_seg=PixelData(data=torch.tensor([[list(labels)]]))))
    return dict(data_samples=[sample])


METHODS = ['before_train_iter', 'before_val_iter', 'before_test_iter']


@pytest.mark.parametrize('method', METHODS)
def test_labels_of_classes_and_the_ignored_one_pass(method):
    getattr(LabelCheckHook(), method)(RUNNER, 0, batch(0, 3, 255))


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('label', [4, 200, -1])
def test_a_label_of_no_class_is_named_with_its_file(method, label):
    with pytest.raises(UserError, match=rf'labels/7\.png: the label {label} is outside 0\.\.3'):
        getattr(LabelCheckHook(), method)(RUNNER, 0, batch(1, label))


def test_an_image_of_colours_is_named_with_its_file():
    coloured = batch(1)
    coloured['data_samples'][0].set_data(dict(gt_sem_seg=PixelData(data=torch.ones(5, 7, 3))))
    with pytest.raises(UserError, match=r'labels/7\.png: labels of the shape \(5, 7, 3\)'):
        LabelCheckHook().before_train_iter(RUNNER, 0, coloured)


def test_where_zero_is_unlabelled_the_value_is_that_of_the_file():
    with pytest.raises(UserError, match=r'the label 5 is outside 1\.\.4'):
        LabelCheckHook().before_train_iter(RUNNER, 0, batch(4, reduce_zero_label=True))


def test_one_output_tells_two_classes_apart():
    head = SimpleNamespace(num_classes=1, out_channels=1, ignore_index=255)
    runner = SimpleNamespace(model=SimpleNamespace(decode_head=head))
    LabelCheckHook().before_train_iter(runner, 0, batch(0, 1, 255))
    with pytest.raises(UserError, match=r'the label 2 is outside 0\.\.1, the 2 classes'):
        LabelCheckHook().before_train_iter(runner, 0, batch(2))


def test_detectors_and_samples_without_labels_pass():
    unlabelled = dict(data_samples=[BaseDataElement(metainfo=dict(img_path='7.png'))])
    LabelCheckHook().before_test_iter(RUNNER, 0, unlabelled)
    LabelCheckHook().before_train_iter(SimpleNamespace(model=SimpleNamespace()), 0, {})
