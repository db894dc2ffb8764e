"""JPEG files decoded at the size that a pipeline needs: everything but pixels is as without it."""

import cv2
import numpy as np
import pytest
from mmdet.structures.mask import BitmapMasks
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.config.draft import check_draft
from xcit_mm.config.load import load_config
from xcit_mm.data.transforms.decode import LoadImage

COCO, ADE = 'mask_rcnn_xcit_s12_16_3x.py', 'sem_fpn_xcit_s12_16_80k.py'
SCALE = (133, 80)
LOAD = dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=True)
# Sides that no divisor divides; the second is twice as long as needed, less a pixel.
SIZES = [(403, 301), (265, 159)]


def photo(path, size, orientation=1):
    """A smooth image, as the pixels of a photo are, (width, height) as it is shown."""
    width, height = size if orientation < 5 else size[::-1]
    coarse = np.random.default_rng(0).integers(0, 255, (9, 9, 3), np.uint8)
    image = Image.fromarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, quality=95, exif=exif)
    return str(path)


def results_of(path, size):
    width, height = size
    x1, y1, x2, y2 = box = [10, 20, width // 2, height - 9]
    outline = [x1, y1, x2, y1, x2, y2, x1, y2]
    instance = dict(bbox=box, bbox_label=1, mask=[outline], ignore_flag=0)
    return dict(img_path=path, width=width, height=height, img_id=1, instances=[instance])


def pipelines(resize, **arguments):
    """Compose a pipeline without and with draft."""
    require_framework('mmdet')
    init_default_scope('mmdet')
    flip, pack = dict(type='RandomFlip', prob=1.0), dict(type='PackDetInputs')
    drawn = resize != 'Resize'
    for draft, kind in ((None, 'Resize'), (SCALE, 'DraftResize')):
        named = dict(resize_type=kind, type=resize) if drawn else dict(type=kind)
        yield Compose(
            [
                dict(type='LoadImage', draft=draft),
                LOAD,
                dict(keep_ratio=True, **named, **arguments),
                flip,
                pack,
            ]
        )


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('orientation', [1, 6])
@pytest.mark.parametrize(
    'resize',
    [
        dict(resize='Resize', scale=SCALE),
        dict(resize='RandomChoiceResize', scales=[(133, 48), SCALE]),
        dict(resize='RandomResize', scale=SCALE, ratio_range=(0.3, 1.0)),
    ],
)
def test_boxes_masks_and_scales_are_as_without_draft(tmp_path, size, orientation, resize):
    path = photo(tmp_path / 'a.jpg', size, orientation)
    samples = []
    for pipeline in pipelines(**resize):
        np.random.seed(1)
        samples.append(pipeline(results_of(path, size)))
    plain, draft = samples
    assert draft['inputs'].shape == plain['inputs'].shape
    difference = (draft['inputs'].float() - plain['inputs'].float()).abs().mean()
    assert difference < 4  # of 255: the last pixel of a fraction may lie outside of the image
    before, now = plain['data_samples'], draft['data_samples']
    assert now.metainfo == before.metainfo and now.ori_shape == size[::-1]
    assert now.gt_instances.bboxes.tensor.equal(before.gt_instances.bboxes.tensor)
    masks = [sample.gt_instances.masks for sample in (now, before)]
    assert isinstance(masks[0], BitmapMasks) and masks[0].masks.any()
    assert np.array_equal(masks[0].masks, masks[1].masks)


@pytest.mark.parametrize(
    ('size', 'expected'),
    [((403, 301), (202, 151)), ((265, 159), (265, 159)), ((266, 160), (133, 80))],
)
def test_an_image_is_decoded_at_the_least_size_that_is_not_too_small(tmp_path, size, expected):
    path = photo(tmp_path / 'a.jpg', size)
    results = LoadImage(draft=SCALE)(dict(img_path=path))
    assert results['img'].shape[1::-1] == expected
    assert results['img_shape'] == results['ori_shape'] == size[::-1]


def test_other_files_and_decoded_images_keep_their_pixels(tmp_path):
    path = photo(tmp_path / 'a.png', (1000, 1000))
    image = LoadImage()(dict(img_path=path))['img']
    assert np.array_equal(LoadImage(draft=SCALE)(dict(img_path=path))['img'], image)
    assert LoadImage(draft=SCALE)(dict(img=image))['img'] is image


@pytest.mark.parametrize(
    ('config', 'train', 'test'),
    [(COCO, (1333, 800), (1333, 800)), (ADE, (4096, 1024), (2048, 512))],
)
def test_the_option_changes_all_pipelines_of_a_recipe(config, train, test):
    cfg = load_config(config, {'draft': True})
    loaders = {split: cfg[f'{split}_dataloader'].dataset for split in ('train', 'val', 'test')}
    drafts = {split: loader.pipeline[0].draft for split, loader in loaders.items()}
    assert drafts == dict(train=train, val=test, test=test)
    assert 'DraftResize' in str(loaders['train'].pipeline)
    assert load_config(config).train_dataloader.dataset.pipeline[0].get('draft') is None


@pytest.mark.parametrize(
    ('config', 'options', 'message'),
    [
        ('pretrain_xcit_s12_16_300e.py', {'draft': True}, 'has MultiCrop before it resizes'),
        (
            'mask_rcnn_xcit_n12_16_shapes.py',
            {'draft': True},
            'the train pipeline does not resize its images: leave draft out',
        ),
    ],
)
def test_pipelines_without_a_size_are_refused(config, options, message):
    with pytest.raises(UserError, match=message):
        load_config(config, options)


def test_a_resize_that_does_not_know_the_whole_size_is_refused():
    cfg = load_config(COCO, {'test_dataloader.dataset.pipeline.0.draft': (1333, 800)})
    with pytest.raises(UserError, match=r'test pipeline has LoadImage\.draft and then Resize,'):
        check_draft(cfg)


def test_boxes_follow_the_objects_through_the_augmentation_of_a_recipe(tmp_path):
    require_framework('mmdet')
    cfg = load_config(COCO, {'draft': True})
    init_default_scope('mmdet')
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline)
    size = 3001, 2003
    path = photo(tmp_path / 'a.jpg', size)
    for _ in range(4):  # crops and flips are drawn
        instances = pipeline(results_of(path, size))['data_samples'].gt_instances
        for box, mask in zip(instances.bboxes.tensor, instances.masks.masks, strict=True):
            x, y, width, height = cv2.boundingRect(mask)
            seen = np.array([x, y, x + width, y + height])
            assert np.abs(seen - box.numpy()).max() <= 2
