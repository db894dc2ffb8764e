"""Labels outside the classes are named with their file and value."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.model import BaseTTAModel
from mmengine.structures import BaseDataElement, PixelData

from xcit_mm import UserError
from xcit_mm.train.hooks.label_check import LabelCheckHook


class Views(BaseTTAModel):
    def __init__(self, module: SimpleNamespace) -> None:
        vars(self).update(module=module)

    def merge_preds(self, data_samples_list: list) -> list: ...


def check(
    labels: list, num_classes: int = 4, method: str = 'before_train_iter', views: int = 0, **meta
) -> None:
    head = SimpleNamespace(num_classes=num_classes, out_channels=num_classes, ignore_index=255)
    model = SimpleNamespace(decode_head=head)
    sample = BaseDataElement(metainfo=dict(seg_map_path='labels/7.png', **meta))
    sample.set_data(dict(gt_sem_seg=PixelData(data=torch.as_tensor(labels))))
    runner = SimpleNamespace(model=Views(model) if views else model)
    samples = [[sample]] * views if views else [sample]
    getattr(LabelCheckHook(), method)(runner, 0, dict(data_samples=samples))


@pytest.mark.parametrize(
    ('method', 'views'),
    [
        *(('before_train_iter', 0), ('before_val_iter', 0), ('before_test_iter', 0)),
        ('before_test_iter', 2),
    ],
)
def test_a_label_of_no_class_is_named_with_its_file(method, views):
    check([[[0, 3, 255]]], method=method, views=views)
    for label in (4, 200, -1):
        with pytest.raises(UserError, match=rf'labels/7\.png: the label {label} is outside 0\.\.3'):
            check([[[1, label]]], method=method, views=views)


def test_what_a_label_is_depends_on_the_config():
    with pytest.raises(UserError, match=r'labels/7\.png: the labels have the shape \(5, 7, 3\)'):
        check(torch.ones(5, 7, 3))
    with pytest.raises(UserError, match=r'the label 5 is outside 1\.\.4'):
        check([[[4]]], reduce_zero_label=True)
    with pytest.raises(UserError, match=r'the label 2 is outside 0\.\.1, the 2 classes'):
        check([[[0, 1, 2]]], num_classes=1)  # one output for two classes


def test_detectors_and_samples_without_labels_pass():
    model = SimpleNamespace(decode_head=SimpleNamespace(num_classes=4, out_channels=4))
    unlabeled = dict(data_samples=[BaseDataElement(metainfo=dict(img_path='7.png'))])
    LabelCheckHook().before_test_iter(SimpleNamespace(model=model), 0, unlabeled)
    LabelCheckHook().before_train_iter(SimpleNamespace(model=SimpleNamespace()), 0, {})
