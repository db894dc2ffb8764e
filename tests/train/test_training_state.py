"""What a checkpoint holds in addition to the weights is resumed, or refused with its name."""

import pytest
import torch
from helpers import ROOT
from helpers.resumed_runs import interrupted, resumed

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.train.checkpoints.recipe import compare_recipes, recipe_of
from xcit_mm.train.checkpoints.training_state import require_training_state


def test_weights_alone_cannot_be_resumed():
    with pytest.raises(UserError, match=r'run\.pth cannot be resumed.*load_from=run\.pth'):
        require_training_state({'a': torch.zeros(1)}, 'run.pth')


def test_a_checkpoint_of_another_optimizer_is_an_error(tmp_path):
    interrupted(tmp_path, 2)
    other = {'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(norm=dict(lr_mult=0.1)))}
    configs = {path: path.read_text() for path in tmp_path.glob('*.py')}
    changed = r'changed since: optim_wrapper\.paramwise_cfg\.custom_keys\.norm\.lr_mult=0\.1 \(be'
    with pytest.raises(UserError, match=rf'iter_2\.pth does not belong to this run .*{changed}'):
        resumed(tmp_path, **other)
    assert {path: path.read_text() for path in tmp_path.glob('*.py')} == configs != {}
    resumed(tmp_path, **{'default_hooks.logger.interval': 2})
    text = max(tmp_path.glob('*.py')).read_text()  # named by the second of the start
    assert 'interval=2' in text and 'resume = True' not in text


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (
            {'optim_wrapper.optimizer.lr': 0.01},
            'These changes have no effect: optim_wrapper.optimizer.lr=0.01 (before: 0.1). For a',
        ),
        ({'train_dataloader.pin_memory': True}, None),
    ],
)
def test_a_resumed_run_says_what_has_changed_as_often_as_it_starts(tmp_path, capsys, options, said):
    """What it continues with is remembered, not what has no effect."""
    interrupted(tmp_path, 2)
    for _ in range(2):
        runner = resumed(tmp_path, **options)
        printed = capsys.readouterr().out
        assert (said or '') in printed and ('before:' in printed) == bool(said)
        assert runner.optim_wrapper.get_lr()['lr'] == [0.1]


DETECTOR = ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py'


@pytest.mark.parametrize(
    ('options', 'sentence'),
    [
        ({'lsj': 512}, "train_dataloader.dataset.type='MultiImageMixDataset' (before: 'CheckedC"),
        (
            {
                'optim_wrapper.constructor': 'LayerDecayConstructor',
                'optim_wrapper.paramwise_cfg.layer_decay': 0.7,
            },
            'optim_wrapper.paramwise_cfg.layer_decay=0.7 (before: None). For a new schedule',
        ),
        (
            {'optim_wrapper.accumulative_counts': 2},
            'because of these changes: optim_wrapper.accumulative_counts=2 (before: None)',
        ),
        ({'pretrained': 'other.pth', 'train_dataloader.num_workers': 7}, None),
        ({'model.test_cfg.rcnn.score_thr': 0.1, 'model.backbone.with_cp': True}, None),
    ],
)
def test_recipes_differ_in_what_decides_the_steps(options, sentence):
    before, now = (recipe_of(load_config(DETECTOR, given)) for given in ({}, options))
    sentences, continued = compare_recipes(before, now)
    assert [sentence in text for text in sentences] == ([True] if sentence else [])
    assert continued == (before if sentence is None or 'schedule' in sentence else now)
