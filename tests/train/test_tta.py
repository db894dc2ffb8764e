"""Test-time augmentation as a user types it, and the views of other configs."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR
from PIL import Image
from pycocotools import mask as rle

from xcit_mm import UserError
from xcit_mm.config.adapt import adapt_for_test
from xcit_mm.config.load import load_config


@pytest.fixture
def mirrored_root(shapes_root, tmp_path) -> Path:
    """An image and its mirror image, 1.png and 2.png, in both layouts."""
    coco = json.loads((shapes_root / 'coco/annotations/instances_val2017.json').read_text())
    info = coco['images'][0]
    annotations = [a for a in coco['annotations'] if a['image_id'] == info['id']]
    coco['images'] = [info | dict(id=i, file_name=f'{i}.png') for i in (1, 2)]
    coco['annotations'] = [
        a | dict(id=2 * k + i, image_id=i) for k, a in enumerate(annotations) for i in (1, 2)
    ]
    root = tmp_path / 'mirrored'
    labels = root / 'ade/annotations/validation'
    folders = root / 'coco/val2017', root / 'ade/images/validation'
    for folder in (*folders, labels, root / 'coco/annotations'):
        folder.mkdir(parents=True)
    path = root / 'coco/annotations/instances_val2017.json'
    path.write_text(json.dumps(coco))
    image = Image.open(shapes_root / 'coco/val2017' / info['file_name'])
    for number, view in ((1, image), (2, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))):
        for folder in folders:
            view.save(folder / f'{number}.png')
        Image.new('L', image.size, 1).save(labels / f'{number}.png')
    return root


@pytest.fixture
def predict(run_tool, mirrored_root, weights, tmp_path):
    """Test random weights, with metrics in tmp_path/out.json; return what is printed."""

    def predict(config: str, *options: str) -> str:
        folders = ['--work-dir', tmp_path / 'work', '--out', tmp_path / 'out.json']
        folders += ['--show-dir', tmp_path / 'shown', '--tta']
        data = ['--cfg-options', f'data_root={mirrored_root}', *options]
        done = run_tool('test.py', config, weights[config], *folders, *data)
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(list((tmp_path / 'shown').glob('*.png'))) == 2
        assert json.loads((tmp_path / 'out.json').read_text())['metrics']
        return done.stdout + done.stderr

    return predict


def detections(path: Path, width: int) -> list[list[tuple]]:
    """Boxes with scores and areas of masks of both images, the second mirrored, in one order."""
    images = {1: [], 2: []}
    for entry in json.loads(path.read_text()):
        x, y, w, h = entry['bbox']
        mask = rle.decode(entry['segmentation'])
        if entry['image_id'] == 2:
            x, mask = width - x - w, mask[:, ::-1]
        columns = np.nonzero(mask.any(0))[0]
        extent = (columns.min(), columns.max()) if len(columns) else (0, 0)
        row = entry['category_id'], entry['score'], x, y, w, h, mask.sum(), *extent
        images[entry['image_id']].append(tuple(map(float, row)))
    return [sorted(rows, reverse=True) for rows in images.values()]


def test_a_detector_finds_the_same_boxes_and_masks_in_a_mirrored_image(predict, tmp_path):
    options = [
        f'test_evaluator.outfile_prefix={tmp_path}/found',
        'model.test_cfg.rcnn.score_thr=0.3',
    ]
    output = predict(DETECTOR, *options)
    assert (
        '3 sizes (0.5, 1.0, 1.5 times the size of the test), plain and mirrored, merged' in output
    )
    first, second = detections(tmp_path / 'found.segm.json', width=160)
    assert 5 < len(first) == len(second)
    assert np.array(first) == pytest.approx(np.array(second), abs=1e-2, rel=1e-3)


def test_a_segmentor_predicts_the_same_labels_for_a_mirrored_image(predict, tmp_path):
    options = (
        f'test_evaluator.output_dir={tmp_path}/labels',
        'test_dataloader.dataset.img_suffix=.png',
    )
    output = predict(SEGMENTOR, *options)
    assert '6 sizes (0.5, 0.75, 1.0, 1.25' in output and 'merged by SegTTAModel' in output
    labels, mirrored = (np.asarray(Image.open(tmp_path / f'labels/{i}.png')) for i in (1, 2))
    assert len(np.unique(labels)) > 1
    assert (labels == mirrored[:, ::-1]).mean() > 0.999


def test_the_views_follow_from_the_pipeline_of_the_test(tmp_path):
    """Those of mmdet's RTMDet, which pads, and the own ones of a config."""
    (tmp_path / 'rtmdet.py').write_text("_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'")
    cfg = load_config(tmp_path / 'rtmdet.py')
    cfg.pop('tta_pipeline'), cfg.pop('tta_model')
    for transform in cfg.test_dataloader.dataset.pipeline[2:]:
        transform.type = f'mmdet.{transform.type}'
    note = adapt_for_test(cfg, 'a.pth', tta=True)[-1]
    assert note.endswith('mirrored, merged by InstanceTTAModel.')
    load, augment = cfg.test_dataloader.dataset.pipeline
    resizes, flips, (pad,), _, (pack,) = augment.transforms
    assert load.type == 'LoadImage'
    assert [tuple(resize.scale) for resize in resizes] == [(320, 320), (640, 640), (960, 960)]
    assert [flip.prob for flip in flips] == [0, 1]
    assert tuple(pad.size) == (960, 960)
    assert {'scale_factor', 'flip', 'flip_direction'} <= {*pack.meta_keys}
    assert cfg.default_hooks.tta.model.tta_cfg == dict(nms=cfg.model.test_cfg.nms, max_per_img=300)

    cfg = load_config('configs/mask_rcnn_xcit_s12_16_3x.py', {'draft': True})
    adapt_for_test(cfg, 'a.pth', tta=True)
    load, augment, *rest = cfg.test_dataloader.dataset.pipeline
    assert load.type == 'LoadImage' and 'draft' not in load and not rest
    assert {resize.type for resize in augment.transforms[0]} == {'Resize'}

    cfg = load_config(tmp_path / 'rtmdet.py')
    notes = adapt_for_test(cfg, 'a.pth', tta=True)
    assert notes[-1].startswith('Test-time augmentation: the views of tta_pipeline, merged by Inst')
    assert cfg.test_dataloader.dataset.pipeline[1].transforms[0][0].scale == (640, 640)
    assert cfg.default_hooks.tta.model.tta_cfg.max_per_img == 100


def test_the_objects_of_a_panoptic_model_are_merged_without_its_segments():
    config = ROOT / 'configs/mask2former_panoptic_xcit_n12_16_shapes.py'
    with pytest.raises(UserError, match=r'--tta .* add --cfg-options .*panoptic_on=False'):
        adapt_for_test(load_config(config), 'a.pth', tta=True)
    cfg = load_config(config, {'model.test_cfg.panoptic_on': False})
    notes = adapt_for_test(cfg, 'a.pth', tta=True)
    assert 'test_evaluator has no PanopticQualityMetric: panoptic_on=False.' in notes
    assert [metric.type for metric in cfg.test_evaluator] == ['CocoAPMetric']
    assert cfg.tta_model.type == 'InstanceTTAModel'
