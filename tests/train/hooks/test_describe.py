"""What a checkpoint says about the images that its model expects."""

import pytest
from helpers.toy import Toy, toy_runner
from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from xcit_mm.network.models.image_preprocessor import ImagePreprocessor
from xcit_mm.train.hooks.describe import DescribeHook

BANDS = dict(channels=3, nan=0.0, rgb=(2, 1, 0))
LOADER = dict(type='LoadMultiband', **BANDS)


@MODELS.register_module()
class DescribedToy(Toy):
    """A model with a preprocessor of images and a backbone that has a number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.data_preprocessor = ImagePreprocessor(mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0])
        self.backbone, self.linear.in_channels = self.linear, 3
        self.image_size, self.description = 48, dict(teacher='convnext')


@pytest.mark.parametrize(
    ('first', 'bands'),
    [
        (dict(type='LoadImage'), None),
        (LOADER, LOADER),
        (dict(type='ReadWindow'), None),
        (dict(type='ReadWindow', bands=BANDS), LOADER),
    ],
)
def test_the_loader_of_bands_is_described_for_images_and_windows(tmp_path, first, bands):
    runner = toy_runner(tmp_path, model=dict(type='DescribedToy'))
    runner._train_dataloader = runner.build_dataloader(runner.cfg.train_dataloader)
    runner.train_dataloader.dataset.dataset.metainfo = dict(classes=('cat', 'dog'))
    runner.cfg.train_dataloader.dataset.pipeline = [ConfigDict(first), dict(type='PackImage')]
    checkpoint = dict(meta={})
    DescribeHook().before_save_checkpoint(runner, checkpoint)
    assert checkpoint['meta'] == dict(
        images=dict(
            channels=3,
            mean=[1, 2, 3],
            std=[4, 5, 6],
            bgr_to_rgb=False,
            size=48,
            bands=bands,
        ),
        classes=['cat', 'dog'],
        teacher='convnext',
    )
