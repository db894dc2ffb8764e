"""The size of the images that a config trains on, as far as it says."""

import pytest

from xcit_mm.config.load import load_config
from xcit_mm.config.trained_size import trained_size

SEGMENTOR = 'sem_fpn_xcit_n12_16_shapes'
PIPELINE = 'train_dataloader.dataset.pipeline'
SIZES = {
    'mask_rcnn_xcit_n12_16_3x': (1333, 800),  # the largest of the scales after the crop
    'mask_rcnn_xcit_s12_16_lsj_3x': (1024, 1024),
    'retinanet_xcit_t12_16_1x': (1333, 800),
    'fine_tune_mask_rcnn_xcit_t12_16': (320, 320),
    'sem_fpn_xcit_t12_16_80k': (512, 512),
    'mask_rcnn_xcit_n12_16_scene_windows': (160, 160),
    'sem_fpn_xcit_n12_16_context_crops': (160, 160),
    'sem_fpn_xcit_n12_16_context': None,  # whole images
    'sem_fpn_xcit_n12_16_shapes': None,  # as the files have them
}


@pytest.mark.parametrize(('name', 'size'), SIZES.items())
def test_the_training_pipeline_tells_the_size(name, size):
    assert trained_size(load_config(name)) == size


@pytest.mark.parametrize(
    ('transform', 'size'),
    [
        (dict(type='RandomCrop', crop_size=96), (96, 96)),
        (dict(type='mmdet.RandomCrop', crop_type='relative', crop_size=(0.5, 0.5)), (80, 60)),
        (dict(type='Resize', scale_factor=0.5), (80, 60)),
        (dict(type='RandomChoiceResize', scales=[(120, 90), 64], keep_ratio=True), (120, 90)),
        (dict(type='RandomResize', scale=[(120, 90), (64, 100)], keep_ratio=True), (120, 90)),
    ],
)
def test_the_last_size_in_pixels_counts(transform, size):
    resize = dict(type='Resize', scale=(60, 80), keep_ratio=True)
    options = {PIPELINE: [dict(type='LoadImage'), resize, transform, dict(type='PackSegInputs')]}
    assert trained_size(load_config(SEGMENTOR, options)) == size


def test_a_config_without_training_data_has_no_size():
    cfg = load_config(SEGMENTOR)
    cfg.train_dataloader = None
    assert trained_size(cfg) is None
