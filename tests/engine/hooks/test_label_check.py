"""Labels outside the classes are named with their file and value."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from xcit_mm import UserError
from xcit_mm.engine.hooks.label_check import LabelCheckHook

METHODS = ['before_train_iter', 'before_val_iter', 'before_test_iter']


def runner(num_classes: int = 4) -> SimpleNamespace:
    head = SimpleNamespace(num_classes=num_classes, out_channels=num_classes, ignore_index=255)
    return SimpleNamespace(model=SimpleNamespace(decode_head=head))


def batch(labels: list | torch.Tensor, reduce_zero_label: bool = False) -> dict:
    meta = dict(seg_map_path='labels/7.png', reduce_zero_label=reduce_zero_label)
    sample = BaseDataElement(metainfo=meta)
    sample.set_data(dict(gt_sem_seg=PixelData(data=torch.as_tensor(labels))))
    return dict(data_samples=[sample])


@pytest.mark.parametrize('method', METHODS)
def test_a_label_of_no_class_is_named_with_its_file(method):
    check = getattr(LabelCheckHook(), method)
    check(runner(), 0, batch([[[0, 3, 255]]]))
    for label in (4, 200, -1):
        with pytest.raises(UserError, match=rf'labels/7\.png: the label {label} is outside 0\.\.3'):
            check(runner(), 0, batch([[[1, label]]]))


@pytest.mark.parametrize(
    ('num_classes', 'labels', 'message'),
    [
        (4, batch(torch.ones(5, 7, 3)), r'labels/7\.png: the labels have the shape \(5, 7, 3\)'),
        (4, batch([[[4]]], reduce_zero_label=True), r'the label 5 is outside 1\.\.4'),
        (1, batch([[[0, 1, 2]]]), r'the label 2 is outside 0\.\.1, the 2 classes'),
    ],
    ids=['colours', 'zero is unlabelled', 'one output for two classes'],
)
def test_what_a_label_is_depends_on_the_config(num_classes, labels, message):
    with pytest.raises(UserError, match=message):
        LabelCheckHook().before_train_iter(runner(num_classes), 0, labels)


def test_detectors_and_samples_without_labels_pass():
    unlabelled = dict(data_samples=[BaseDataElement(metainfo=dict(img_path='7.png'))])
    LabelCheckHook().before_test_iter(runner(), 0, unlabelled)
    LabelCheckHook().before_train_iter(SimpleNamespace(model=SimpleNamespace()), 0, {})
