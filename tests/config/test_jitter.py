"""Large-scale jitter with copy-paste: its config, its images, and the checks around it."""

import numpy as np
import pytest
from helpers import ROOT
from helpers.runs import DETECTOR
from mmengine.registry import DATASETS, init_default_scope

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.config.load import load_config
from xcit_mm.data.datasets.samples import seed_all

SIZE = 160
RATIOS = 'train_dataloader.dataset.dataset.pipeline.2.ratio_range'


def test_the_option_makes_of_a_config_what_the_file_says():
    jittered = load_config(ROOT / 'configs/mask_rcnn_xcit_s12_16_lsj_3x.py')
    plain = load_config(ROOT / 'configs/mask_rcnn_xcit_s12_16_3x.py', {'lsj': 1024})
    for name in plain.keys() - {'train_pipeline', 'work_dir'}:
        assert plain[name] == jittered[name], name
    again = load_config(ROOT / 'configs/mask_rcnn_xcit_s12_16_lsj_3x.py', {'lsj': 1024})
    assert again.train_dataloader == jittered.train_dataloader


def test_data_without_masks_is_refused():
    with pytest.raises(UserError, match=r'is not a single dataset that loads boxes'):
        load_config('configs/retinanet_xcit_t12_16_1x.py', {'lsj': 800})


@pytest.fixture
def config(shapes_root):
    return load_config(DETECTOR, {'data_root': str(shapes_root), 'lsj': SIZE, RATIOS: (0.5, 1.5)})


@pytest.fixture
def dataset(config):
    environment.require_framework('mmdet')
    init_default_scope('mmdet')
    return DATASETS.build(config.train_dataloader.dataset)


def pixels(sample: dict) -> np.ndarray:
    return sample['inputs'].numpy().transpose(1, 2, 0)


def test_objects_of_another_image_are_pasted_with_their_boxes_and_masks(dataset):
    num_pasted = []
    for i in range(12):
        seed_all(i)
        sample = dataset[i]
        seed_all(i)  # the same image, and the same as source of what is pasted
        target = dataset.dataset[i]
        source = dataset.dataset[np.random.randint(0, len(dataset))]
        objects = sample['data_samples'].gt_instances
        boxes, masks = objects.bboxes.tensor.numpy(), objects.masks.masks
        is_pasted = [
            any((mask == other).all() for other in source['gt_masks'].masks) for mask in masks
        ]
        num_pasted.append(sum(is_pasted))
        area = masks[is_pasted].any(axis=0) if any(is_pasted) else np.zeros((SIZE, SIZE), bool)
        assert (pixels(sample) == np.where(area[..., None], source['img'], target['img'])).all()
        kept = masks[np.invert(is_pasted)]
        assert not (kept & area).any()  # what is hidden is in no mask
        for box, mask in zip(boxes, masks, strict=True):
            ys, xs = np.nonzero(mask)
            assert box == pytest.approx([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    assert 0 in num_pasted and max(num_pasted) > 1
