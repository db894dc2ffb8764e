"""Steps whose loss or gradient is not finite."""

import json
import re

import pytest
import torch
from helpers.toy import SIZE, toy_runner

from xcit_mm import UserError
from xcit_mm.network.weights.read import read_checkpoint
from xcit_mm.train.checkpoints.newest import newest_checkpoint

ALL = tuple(range(SIZE))
# The optimizer skips a step itself, instead of the hook.
FUSED = {
    'optim_wrapper.optimizer.fused': True,
    'default_hooks.runtime_info': dict(type='StepInfoHook'),
}
KINDS = pytest.mark.parametrize('kind', [{}, FUSED], ids=['hook', 'kernel'])


def poisoned(*samples: int) -> dict:
    return {'train_dataloader.dataset.poison': samples}


def checkpoint_of(work_dir, step: int) -> dict:
    return torch.load(work_dir / f'iter_{step}.pth', weights_only=False)


@KINDS
def test_a_step_without_finite_gradients_changes_nothing(tmp_path, kind):
    """One poisoned sample in five batches of an epoch: the others are learned from."""
    hooks = [dict(type='LossLogHook'), dict(type='NonFiniteHook')]
    hooks.append(dict(type='EMAHook', update_buffers=True))
    toy_runner(tmp_path, steps=5, custom_hooks=hooks, **poisoned(3), **kind).train()
    losses = [json.loads(line)['loss'] for line in (tmp_path / 'losses.jsonl').open()]
    (skipped,) = (i for i, loss in enumerate(losses, 1) if loss is None)
    # EMAHook writes the averages as state_dict, and the weights as ema_state_dict.
    states = {i: checkpoint_of(tmp_path, i)['ema_state_dict'] for i in range(1, 6)}
    for name, value in states[skipped].items():
        is_count = name.endswith(('num_batches_tracked', 'steps'))
        assert is_count or torch.equal(states[skipped - 1][name], value), name
    weights = {tuple(state['module.linear.weight'].flatten().tolist()) for state in states.values()}
    assert len(weights) == 4  # all other steps change them
    averages = [checkpoint_of(tmp_path, i)['state_dict'] for i in range(1, 6)]
    for values in (*states.values(), *averages):
        assert all(value.isfinite().all() for value in values.values())


@KINDS
def test_too_many_in_a_row_end_the_run_and_leave_the_batch_and_the_weights(tmp_path, kind):
    hooks = [dict(type='NonFiniteHook', limit=3)]
    runner = toy_runner(tmp_path, custom_hooks=hooks, **poisoned(*ALL), **kind)
    with pytest.raises(UserError) as stopped:
        runner.train()
    message = str(stopped.value)
    assert re.match(r'iteration 3: the gradient is not finite, 3 times in a row', message)
    assert 'loss_square nan' in message
    assert len(re.findall(r'\d\.png', message)) == 2
    file = tmp_path / 'non_finite_iter_3_rank_0.pth'
    assert str(file) in message
    content = read_checkpoint(file)
    assert torch.stack(content['inputs']).isinf().all()
    assert content['images'] == re.findall(r'\d\.png', message)
    for name, value in content['state_dict'].items():
        assert torch.equal(value, runner.model.state_dict()[name])
    assert newest_checkpoint(str(tmp_path))[0].name == 'iter_2.pth'  # whose weights are finite


def root_at_zero(model, inputs, losses: dict) -> None:
    losses['loss_square'] = losses['loss_square'] + (0 * losses['loss_square']).sqrt()


@KINDS
def test_only_a_finite_step_resets_the_count(tmp_path, kind):
    """One poisoned batch in each of six epochs of five; at most two of them come in a row."""
    options = kind | dict(steps=30, custom_hooks=[dict(type='NonFiniteHook', limit=3)])
    runner = toy_runner(tmp_path, **options, **poisoned(1))
    runner.train()
    assert runner.iter == 30
    # Iterations that only accumulate gradients are no such steps.
    runner = toy_runner(tmp_path, **options, **{'optim_wrapper.accumulative_counts': 3})
    runner.model.register_forward_hook(root_at_zero)
    with pytest.raises(UserError, match='iteration 9: the gradient is not finite, 3 times in a'):
        runner.train()


def test_a_run_whose_steps_were_all_skipped_can_be_resumed(tmp_path):
    """The moments of a fused optimizer are there, after no step."""
    hooks = [dict(type='NonFiniteHook')]
    toy_runner(tmp_path, steps=2, custom_hooks=hooks, **poisoned(*ALL), **FUSED).train()
    state = checkpoint_of(tmp_path, 2)['optimizer']['state']
    assert len(state) == 4 and not any(of_parameter['step'] for of_parameter in state.values())
    path, _ = newest_checkpoint(str(tmp_path))
    runner = toy_runner(
        tmp_path, steps=4, custom_hooks=hooks, resume=True, load_from=str(path), **FUSED
    )
    runner.train()
    assert checkpoint_of(tmp_path, 4)['optimizer']['state'][0]['step'] == 2
