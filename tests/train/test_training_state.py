"""What a checkpoint holds in addition to the weights is resumed, or refused with its name."""

import numpy as np
import pytest
import torch
from helpers import ROOT
from helpers.resumed_runs import hooks, interrupted, resumed
from helpers.toy import toy_runner
from mmengine.logging import HistoryBuffer

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.train.checkpoints.recipe import compare_recipes, recipe_of
from xcit_mm.train.checkpoints.training_state import RECIPE, STEP_LAYOUT, require_training_state


@pytest.mark.parametrize('content', [None, 3, [], 'a', {'a': torch.zeros(1)}])
def test_weights_alone_cannot_be_resumed(content):
    with pytest.raises(UserError, match=r'run\.pth cannot be resumed.*load_from=run\.pth'):
        require_training_state(content, 'run.pth')


SCHEDULED = {
    'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)],
    'default_hooks.checkpoint.save_best': 'acc',
    'default_hooks.checkpoint.rule': 'greater',
    'steps': 3,
}
INFO = 'message_hub.runtime_info.'
WRONG = {
    'state_dict': [None, 3, []],
    'ema_state_dict': [None, 3, {'module.linear.bias': torch.zeros(3)}, {'steps': torch.zeros(3)}],
    'message_hub': [None, [], 'hub', {}],
    'message_hub.log_scalars': [None, []],
    'message_hub.log_scalars.train/lr': [None, [1.0], HistoryBuffer([], [])],
    'message_hub.resumed_keys': [None, 'a'],
    'message_hub.resumed_keys.iter': [False, 'a'],
    'message_hub.runtime_info': [None, 1],
    f'{INFO}bad_data': [None, 3, ['a'], {'a': 1}],
    f'{INFO}{STEP_LAYOUT}': [3, {'images a step': np.zeros(3)}],
    f'{INFO}{RECIPE}': [3, {'model.type': 3}],
    f'{INFO}validation_scores': [3, {'2': 0.5}, {2: 'a'}],
    f'{INFO}best_score': [None, 'a', float('nan'), torch.zeros(3)],
    f'{INFO}eta': ['a', float('inf')],
    'meta': [None, 3, [], {}],
    'meta.epoch': [None, -1, True, 1.0, '1', torch.tensor(1), [1]],
    'meta.iter': [None, -1, False, 1.0, '2', 2**63],
    'meta.seed': ['a', 2**40],
    'optimizer': [None, [], {}, {'state': {}}],
    'optimizer.state': [None, []],
    'optimizer.state.0': [None, {'step': 1}, {'momentum_buffer': torch.zeros(2)}],
    'optimizer.state.0.step': ['a', torch.zeros(3)],
    'optimizer.state.0.exp_avg': [1.0, np.zeros(2), torch.zeros(3), torch.full((2,), torch.nan)],
    'optimizer.param_groups': [None, {}, (1,)],
    'optimizer.param_groups.0': [{}, {'params': [0]}],
    'optimizer.param_groups.0.lr': ['a', None, [0.1]],
    'optimizer.param_groups.0.betas': [0.9, (0.9,), ('a', 'b'), (1, 2)],
    'optimizer.param_groups.0.amsgrad': [True, 'a'],
    'optimizer.base_param_settings': [3, {}],
    'param_schedulers': [None, 3],
    'param_schedulers.0.step': [3],
    'param_schedulers.0.last_step': ['a', None],
    'param_schedulers.0.param_name': ['betas'],
    'param_schedulers.0._last_value': [3, [], ['a']],
}


def test_an_invalid_state_is_refused_in_a_sentence(tmp_path):
    """The run would fail in mmengine or PyTorch, at once or hours later."""
    both = [dict(type='EMAHook'), dict(type='ScoreHook')]
    stop = dict(type='StopHook', after=2)
    runner = toy_runner(tmp_path, custom_hooks=hooks(*both, stop), **SCHEDULED)
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()
    runner._resume = True  # as if built to be resumed
    path = tmp_path / 'iter_2.pth'
    genuine = path.read_bytes()
    runner.resume(str(path))
    for place, values in WRONG.items():
        for value in values:
            path.write_bytes(genuine)
            plant(path, place, value)
            with pytest.raises(UserError, match=r'iter_2\.pth') as error:
                runner.resume(str(path))
            message = str(error.value)
            assert message.isprintable() and len(message) < 2500, place
            assert any(part[:20] in message for part in place.split('.')[:2]), (place, message)


def plant(path, place: str, value) -> None:
    """Replace the value at a dotted place of a checkpoint."""
    checkpoint = node = torch.load(path, weights_only=False)
    *outer, last = [int(part) if part.isdecimal() else part for part in place.split('.')]
    for part in outer:
        node = node[part]
    node[last] = value
    torch.save(checkpoint, path)


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
            'optim_wrapper.optimizer.lr=0.01 (before: 0.1): this has no effect, because',
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
            'optim_wrapper.paramwise_cfg.layer_decay=0.7 (before: None): this has no effect',
        ),
        ({'model.backbone.drop_path_rate': 0.2}, 'model.backbone.drop_path_rate=0.2 (before: '),
        (
            {'optim_wrapper.accumulative_counts': 2},
            'optim_wrapper.accumulative_counts=2 (before: None): the steps from here on differ',
        ),
        ({'optim_wrapper.type': 'OptimWrapper'}, "optim_wrapper.type='OptimWrapper' (before: "),
        ({'pretrained': 'other.pth', 'train_dataloader.num_workers': 7}, None),
        ({'train_cfg.max_iters': 900, 'train_cfg.val_interval': 300}, None),
        ({'model.test_cfg.rcnn.score_thr': 0.1, 'model.backbone.with_cp': True}, None),
    ],
)
def test_recipes_differ_in_what_decides_the_steps(options, sentence):
    before, now = (recipe_of(load_config(DETECTOR, given)) for given in ({}, options))
    sentences, continued = compare_recipes(before, now)
    assert [sentence in text for text in sentences] == ([True] if sentence else [])
    assert continued == (before if sentence is None or 'no effect' in sentence else now)
