"""Missing data is found before anything is built, and named."""

import shutil

import pytest
from conftest import ROOT
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.engine.config import load_config
from xcit_mm.engine.data_check import check_data

DETECTOR = ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'
ALL = ('train', 'val', 'test')


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_whole_data_passes(config, shapes_root):
    check_data(load_config(config, {'data_root': shapes_root}), ALL)


@pytest.mark.parametrize(
    ('config', 'removed', 'split', 'what'),
    [
        (DETECTOR, 'coco', 'train', 'folder'),
        (DETECTOR, 'coco/val2017', 'val', 'folder'),
        (DETECTOR, 'coco/annotations/instances_train2017.json', 'train', 'annotation file'),
        (SEGMENTOR, 'ade/annotations/validation', 'val', 'folder'),
    ],
)
def test_what_is_missing_is_named_with_its_place_and_the_remedy(
    tmp_path, shapes_root, config, removed, split, what
):
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)
    target = root / removed
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    cfg = load_config(config, {'data_root': root})
    with pytest.raises(UserError) as error:
        check_data(cfg, ALL)
    message = str(error.value)
    assert message.startswith(f'{split} data: {what} {target} is missing')
    assert f'make_shapes.py {root}/ draws it' in message


def test_wrapped_and_joined_datasets_are_looked_into(tmp_path):
    inner = dict(type='CocoDataset', data_root=str(tmp_path), ann_file='gone.json')
    joined = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=inner)])
    cfg = Config(dict(train_dataloader=dict(dataset=joined)))
    with pytest.raises(UserError, match=r'gone\.json is missing.*--cfg-options data_root'):
        check_data(cfg, ('train',))


def test_the_evaluator_is_looked_into(tmp_path):
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'gone.json'))
    with pytest.raises(UserError, match=r'val data: annotation file .*gone\.json'):
        check_data(Config(dict(val_evaluator=[metric])), ('val',))


def test_a_config_without_validation_passes():
    check_data(Config(dict(val_dataloader=None, val_evaluator=None)), ('val',))
