"""The frequencies of classes against counts of the files, and the configs that are printed."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.config.adapt import adapt
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.class_frequencies import ClassFrequencies, class_frequencies

TRAIN = 'coco/annotations/instances_train2017.json'


def frequencies(config: str | Path, **options):
    cfg = load_config(ROOT / config, options)
    adapt(cfg)
    return class_frequencies(cfg, workers=1)


def labels_of(root: Path) -> list[np.ndarray]:
    """The label images, in which 0 is unlabeled and 1 the first class."""
    files = sorted((root / 'ade/annotations/training').glob('*.png'))
    return [np.asarray(Image.open(file)) for file in files]


def test_weights_are_by_median_frequency(shapes_root):
    found = frequencies(SEGMENTOR, data_root=str(shapes_root))
    images = labels_of(shapes_root)
    classes = range(1, len(found.classes) + 1)
    assert found.counts == [sum(int((image == c).sum()) for image in images) for c in classes]
    assert found.images == [sum(bool((image == c).any()) for image in images) for c in classes]
    around = [sum(int((i > 0).sum()) for i in images if (i == c).any()) for c in classes]
    shares = np.array(found.counts) / around
    assert found.factors == pytest.approx(np.median(shares) / shares, rel=1e-3)
    assert (found.unit, found.number, found.left_out) == ('pixels', 24, [])


@pytest.fixture
def rare(root) -> Path:
    """Shapes of which only two images have a triangle, and others a crowd of triangles."""
    path = root / TRAIN
    content = json.loads(path.read_text())
    (number,) = (c['id'] for c in content['categories'] if c['name'] == 'triangle')
    triangles = [a for a in content['annotations'] if a['category_id'] == number]
    kept = sorted({a['image_id'] for a in triangles})[:2]
    for annotation in triangles:
        annotation['iscrowd'] = int(annotation['image_id'] not in kept)
    path.write_text(json.dumps(content))
    return root


def test_images_of_rare_classes_are_repeated_as_the_wrapper_repeats_them(rare, tmp_path):
    found = frequencies(DETECTOR, data_root=str(rare))
    content = json.loads((rare / TRAIN).read_text())
    names = [c['name'] for c in content['categories']]
    numbers = [c['id'] for c in content['categories']]
    assert found.counts == [
        sum(a['category_id'] == n and not a['iscrowd'] for a in content['annotations'])
        for n in numbers
    ]
    assert found.images[names.index('triangle')] == 2 and found.unit == 'objects'
    (tmp_path / 'rare.py').write_text(found.text())
    cfg = load_config(tmp_path / 'rare.py', dict(data_root=f'{rare}/'))
    wrapper = cfg.train_dataloader.dataset
    assert wrapper.keys() == {'type', 'oversample_thr', 'dataset'}
    environment.require_framework('mmdet')
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(wrapper)
    times = np.bincount(dataset.repeat_indices)
    expected = [
        max([1, *(found.factors[i] for i in set(dataset.dataset.get_cat_ids(index)))])
        for index in range(len(dataset.dataset))
    ]
    assert times.tolist() == expected and max(expected) > 1


def test_the_printed_config_is_whole_and_runs_nothing_of_the_data():
    weights = [round(1 + i / 7, 3) for i in range(1203)]
    config = f'class_weight = {weights}'
    name = 'a\nimport os; raise SystemExit'
    found = ClassFrequencies([name], 'pixels', [1], [1], 1, [1.0], config, '', [f'x.png: {name}'])
    content = {}
    exec(found.text(), content)
    assert content['class_weight'] == weights


def test_classes_of_equal_frequency_need_no_factors(shapes_root):
    found = frequencies(DETECTOR, data_root=str(shapes_root))
    assert found.config == '' and set(found.factors) == {1}
    assert found.text().endswith(
        '# Every class is in at least 0.5 times as many images as the median class.'
    )


def test_a_head_with_several_losses_gets_the_weights_where_they_belong(shapes_root, tmp_path):
    losses = [dict(type='DiceLoss'), dict(type='CrossEntropyLoss', loss_weight=0.5)]
    (tmp_path / 'two.py').write_text(
        f'_base_ = {str(ROOT / SEGMENTOR)!r}\nmodel = _base_.model\n'
        f'model.decode_head.loss_decode = {losses!r}\n'
    )
    found = frequencies(tmp_path / 'two.py', data_root=str(shapes_root))
    (tmp_path / 'weighted.py').write_text(found.text())
    first, second = Config.fromfile(tmp_path / 'weighted.py').model.decode_head.loss_decode
    assert 'class_weight' not in first and second.class_weight == found.factors


def test_what_cannot_be_counted_is_said(root):
    next(iter(sorted((root / 'ade/annotations/training').glob('*.png')))).write_bytes(b'broken')
    found = frequencies(SEGMENTOR, data_root=str(root))
    assert found.number == 23 and len(found.left_out) == 1
    assert '# 1 images are left out, such as ' in found.text()
    for path in (root / 'ade/annotations/training').glob('*.png'):
        path.write_bytes(b'broken')
    with pytest.raises(UserError, match='no image of the training data can be read; the first: '):
        frequencies(SEGMENTOR, data_root=str(root))
    with pytest.raises(UserError, match='has no train_dataloader with a dataset'):
        frequencies(SEGMENTOR, train_dataloader=None)
