"""What the command line changes in a config."""

import pytest
from helpers import ROOT

from xcit_mm import UserError, environment
from xcit_mm.config.load import load_config

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


def test_data_root_moves_datasets_and_evaluators_or_is_refused(tmp_path):
    cfg = load_config(REAL, {'data_root': '/data/coco'})
    for split in ('train', 'val', 'test'):
        assert cfg[f'{split}_dataloader'].dataset.data_root == '/data/coco/'
    for split in ('val', 'test'):
        ann_file = cfg[f'{split}_evaluator'].ann_file
        assert ann_file == '/data/coco/annotations/instances_val2017.json'
    assert cfg.train_dataloader.dataset.ann_file == 'annotations/instances_train2017.json'
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)
    cfg = load_config(SHAPES, {'data_root': 'elsewhere/'})
    assert cfg.train_dataloader.dataset.data_root == 'elsewhere/ade/'
    assert cfg.work_dir == 'work_dirs/sem_fpn_xcit_n12_16_shapes'
    own = f"_base_ = '{SHAPES}'\ndata_root = 'data/mine/'"  # and the datasets as they were
    (tmp_path / 'own.py').write_text(own)
    with pytest.raises(UserError, match=r'no path of .*own\.py starts with its data/mine/'):
        load_config(tmp_path / 'own.py', {'data_root': 'elsewhere'})


def test_pretrained_is_what_the_backbone_starts_from():
    cfg = load_config(REAL, {'pretrained': 'mine.pth'})
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint='mine.pth')
    assert load_config(REAL, {'pretrained': None}).model.backbone.init_cfg is None
    cfg = load_config(SHAPES, {'pretrained': 'mine.pth'})  # whose config names none
    assert cfg.model.backbone.init_cfg.checkpoint == 'mine.pth'


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('train_dataloder.batch_size', r'did you mean train_dataloader\?'),
        ('train_cfg.max_epoch', r'did you mean max_epochs\?'),
        ('train_cfg.max_iter', r'did you mean max_iters\?'),
        ('model.backbone.patchsize', r'did you mean patch_size\?'),
        ('auto_scale_lr.enabled', r'did you mean enable\?'),
        ('param_scheduler.0.start_facto', r'did you mean start_factor\?'),
        ('train_dataloader.dataset.pipeline.1.with_mas', r'did you mean with_mask\?'),
        ('model.backbone.drop_path_rat', r'did you mean drop_path_rate\?'),  # of the class alone
        ('train_pipeline', 'would change nothing: .* reads'),  # only the config itself reads these
        ('short_sides.start', 'would change nothing: .* reads'),
    ],
)
def test_an_option_that_nothing_reads_is_refused(option, message):
    with pytest.raises(UserError, match=rf'{option}.*{message}'):
        load_config(REAL, {option: 1})


def test_the_size_of_a_prepared_config_is_refused_with_what_reads_it(tmp_path):
    path = tmp_path / 'own.py'
    path.write_text(
        f"_base_ = '{SHAPES.with_name('mask_rcnn_xcit_n12_16_shapes.py')}'\nscale = (96, 96)\n"
        "pipeline = [dict(type='LoadImage'), dict(type='Resize', scale=scale)]\n"
        'train_dataloader = dict(dataset=dict(pipeline=pipeline))\n'
    )
    with pytest.raises(UserError, match=r'those: train_dataloader\.dataset\.pipeline\.1\.scale$'):
        load_config(path, {'scale': (128, 128)})


def test_names_that_the_config_does_not_show_may_be_added():
    """But not to a list."""
    names = 'find_unused_parameters', 'compile', 'experiment_name', 'sync_bn'
    options = {'optim_wrapper.dtype': 'bfloat16', 'model.roi_head.bbox_head.conv_out_channels': 8}
    options['custom_hooks'] = []
    cfg = load_config(REAL, {**options, **dict.fromkeys(names, 'value')})
    assert cfg.optim_wrapper.dtype == 'bfloat16'
    assert {cfg[name] for name in names} == {'value'}
    with pytest.raises(UserError, match=r'param_scheduler\.7\.end'):
        load_config(SHAPES, {'param_scheduler.7.end': 3})


def test_a_config_that_does_not_exist_is_refused_with_a_similar_name():
    with pytest.raises(UserError, match=r'nowhere\.py does not exist'):
        load_config('nowhere.py')
    with pytest.raises(UserError, match=r'did you mean mask_rcnn_xcit_s12_8_3x\.py'):
        load_config(REAL.with_name('mask_rcnn_xcit_s12_8.py'))


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('model = dict(', r'SyntaxError.*never closed'),
        ("_base_ = 'gone.py'", r'gone\.py'),
        ("_base_ = 'nothere::folder/gone.py'", r'not support to load nothere'),
        ("_base_ = 'mmpretrain::folder/gone.py'", r'mmpretrain is not installed\..*docs/errors'),
        ("custom_imports = dict(imports=['nothere'])", r'import nothere.*PYTHONPATH'),
        ('value = 1 / 0', r'ZeroDivisionError'),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_the_reason(tmp_path, code, message):
    (tmp_path / 'broken.py').write_text(code)
    with pytest.raises(UserError, match=rf'broken\.py cannot be read.*{message}'):
        load_config(tmp_path / 'broken.py')


def test_a_base_of_mmseg_is_loaded_or_refused_with_the_alternative(tmp_path):
    """onedl-mmengine looks for it under a distribution name that onedl does not have."""
    (tmp_path / 'own.py').write_text("_base_ = 'mmseg::_base_/default_runtime.py'")
    if environment.installed('mmsegmentation'):
        assert load_config(tmp_path / 'own.py').default_scope == 'mmseg'
    else:
        with pytest.raises(UserError, match=r'mmsegmentation is not installed.*docs/errors\.md'):
            load_config(tmp_path / 'own.py')
