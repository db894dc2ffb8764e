"""Crops, batches and numbers of images that a training on whole images cannot use."""

from pathlib import Path

import pytest
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.config.channel_rules import check_image_channels
from xcit_mm.config.image_rules import check_images

MULTI_CROP = dict(type='MultiCrop', global_size=48, local_size=24)


@pytest.fixture(autouse=True)
def registered() -> None:
    require_framework('mmengine')


@pytest.fixture
def folder(tmp_path) -> Path:
    """Six images in two folders, and a file that is none."""
    for name in ('a/0.png', 'a/1.PNG', 'a/notes.txt', 'b/0.jpg', 'b/1.jpg', 'b/2.jpg', 'c.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def config(folder: Path, batch_size: int = 4, crop: dict | None = MULTI_CROP, **dataset) -> Config:
    pipeline = [dict(type='LoadImage'), *([crop] if crop else []), dict(type='PackImage')]
    dataset = dict(type='UnlabeledImages', data_root=str(folder), pipeline=pipeline) | dataset
    dataset.setdefault('data_prefix', dict(img=''))
    loader = dict(batch_size=batch_size, dataset=dataset)
    return Config(dict(default_scope='mmengine', train_dataloader=loader))


def test_enough_images_and_crops_that_fit_pass(folder):
    check_images(config(folder, 6))
    check_images(config(folder, 2, data_prefix=dict(img='a')))
    check_images(config(folder, 1, crop=None))  # of a classifier
    check_images(config(folder, 4, MULTI_CROP | dict(local_size=48)))
    check_images(config(folder, 4, MULTI_CROP | dict(local_size=99, num_local=0)))
    of_detector = config(folder, 1)
    of_detector.default_scope = 'mmdet'
    check_images(of_detector)


@pytest.mark.parametrize('kind', ['UnlabeledImages', 'ClassFolders'])
def test_fewer_images_than_a_batch_has_are_refused(folder, kind):
    with pytest.raises(UserError) as refused:
        check_images(config(folder, 7, type=kind))
    assert str(refused.value) == (
        f'train_dataloader.batch_size=7, but {folder} has 6 images: write a smaller batch_size, '
        'or add images'
    )
    with pytest.raises(UserError, match='has 2 images: write a smaller batch_size, or add images'):
        check_images(config(folder, 3, data_prefix=dict(img='a'), type=kind))
    with pytest.raises(UserError, match='has 3 images'):
        check_images(config(folder, 4, suffixes=('.jpg',), type=kind))


def test_copies_of_one_file_are_refused_where_images_are_compared(folder):
    for path in folder.glob('b/*.jpg'):
        path.write_text('one image')
    with pytest.raises(UserError, match=r'3 images in .*/b are copies of one file \(.*jpg\), but'):
        check_images(config(folder, 3, data_prefix=dict(img='b')))
    check_images(config(folder, 3, crop=None, data_prefix=dict(img='b')))
    check_images(config(folder, 6))


def test_joined_folders_are_counted_together(folder):
    parts = [config(folder, data_prefix=dict(img=name)).train_dataloader.dataset for name in 'ab']
    joined = config(folder, 5)
    joined.train_dataloader.dataset = dict(type='ConcatDataset', datasets=parts)
    check_images(joined)
    joined.train_dataloader.batch_size = 6
    with pytest.raises(UserError, match=rf'{folder}/a, {folder}/b has 5 images'):
        check_images(joined)


@pytest.mark.parametrize(
    ('batch_size', 'options', 'message'),
    [
        (
            1,
            {},
            'train_dataloader.batch_size=1: a training without labels compares the images of a '
            'batch: write at least 2',
        ),
        (
            4,
            dict(local_size=64),
            'train_dataloader.dataset.pipeline.1: MultiCrop: local_size=64 is larger than '
            'global_size=48: the local crops are the small ones',
        ),
        (
            4,
            dict(local_size=0),
            'train_dataloader.dataset.pipeline.1: MultiCrop: local_size=0 is not a positive '
            'integer',
        ),
        (
            4,
            dict(global_size=-48),
            'train_dataloader.dataset.pipeline.1: MultiCrop: global_size=-48 is not a positive '
            'integer',
        ),
    ],
)
def test_crops_and_batches_without_use_are_refused(folder, batch_size, options, message):
    with pytest.raises(UserError) as refused:
        check_images(config(folder, batch_size, MULTI_CROP | options))
    assert str(refused.value) == message


def test_bands_have_no_hue(folder):
    cfg = config(folder, crop=MULTI_CROP | dict(color='rgb'))
    cfg.model = dict(backbone=dict(type='ImageXCiT', in_channels=3))
    check_image_channels(cfg, ('train',))
    cfg.model.backbone.in_channels = 5
    loader = cfg.train_dataloader.dataset.pipeline[0]
    loader.update(type='LoadMultiband', channels=5)
    with pytest.raises(UserError) as refused:
        check_image_channels(cfg, ('train',))
    assert str(refused.value) == (
        "train_dataloader.dataset.pipeline.1: color='rgb' of MultiCrop changes hue and saturation, "
        "which 5 bands of any type do not have: write color='bands'"
    )
    cfg.train_dataloader.dataset.pipeline[1].color = 'bands'
    check_image_channels(cfg, ('train',))
