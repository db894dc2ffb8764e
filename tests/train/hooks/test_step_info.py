"""The waits of a step around the model, and the values that they read."""

import json

import pytest
import torch
from helpers.toy import toy_runner
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from xcit_mm.network.waits import Operations, counted
from xcit_mm.train.hooks.step_info import StepInfoHook

FUSED = {
    'default_hooks.runtime_info': dict(type='StepInfoHook'),
    'optim_wrapper.optimizer.fused': True,
    'optim_wrapper.constructor': 'MergedGroupsConstructor',
    'optim_wrapper.paramwise_cfg': dict(bias_lr_mult=2),
    'optim_wrapper.clip_grad': dict(max_norm=0.5),
    'default_hooks.logger.interval': 100,
    'default_hooks.checkpoint.interval': 100,
    'steps': 3,
}
COUNTED: list[Operations] = []


@HOOKS.register_module()
class CountedStepHook(Hook):
    """Counts the waits of each step, up to the hooks that act after it."""

    priority = 'HIGHEST'

    def before_train(self, runner) -> None:
        run_iter = runner.train_loop.run_iter

        def run_counted(*args) -> None:
            with counted() as operations:
                run_iter(*args)
            COUNTED.append(operations)

        runner.train_loop.run_iter = run_counted


@pytest.mark.parametrize(
    ('options', 'waits'),
    [
        (FUSED, {'tolist': 1}),
        (FUSED | {'optim_wrapper.clip_grad': None}, {'tolist': 1}),
        # Python itself skips a step that another optimizer would make.
        (
            FUSED | {'optim_wrapper.optimizer': dict(_delete_=True, type='SGD', lr=0.1)},
            {'tolist': 1, '_local_scalar_dense': 1},
        ),
    ],
    ids=['clipped', 'not clipped', 'another optimizer'],
)
def test_a_step_waits_once_around_the_model(tmp_path, options, waits):
    COUNTED.clear()
    watched = [dict(type=name) for name in ('NonFiniteHook', 'LossLogHook', 'CountedStepHook')]
    options = {'default_hooks.checkpoint': None} | options
    options.pop('default_hooks.checkpoint.interval')
    toy_runner(tmp_path, custom_hooks=watched, **options).train()
    assert len(COUNTED) == 3
    assert all(operations.waits == waits for operations in COUNTED)


@pytest.mark.parametrize('counts', [1, 2])  # with two, every other step has a norm
def test_the_log_is_that_of_mmengine(tmp_path, counts):
    lines = []
    for name in ('StepInfoHook', 'RuntimeInfoHook'):
        options = FUSED | {
            'default_hooks.runtime_info.type': name,
            'default_hooks.logger.interval': 1,
            'optim_wrapper.accumulative_counts': counts,
        }
        toy_runner(tmp_path / name, **options).train()
        lines.append((tmp_path / name / 'losses.jsonl').read_text())
    assert lines[0] == lines[1]
    assert json.loads(lines[0].splitlines()[-1]).keys() > {'lr', 'base_lr', 'grad_norm', 'loss'}


def test_values_are_exact_in_every_dtype(tmp_path):
    runner = toy_runner(tmp_path, **FUSED)
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, StepInfoHook))
    outputs = {
        'loss': torch.tensor(1 / 3, requires_grad=True),
        'double': torch.tensor([1 / 3], dtype=torch.float64),
        'half': torch.tensor(1 / 3, dtype=torch.bfloat16),
        'count': torch.tensor(2**53 + 1),
        'number': 1 / 7,
    }
    runner.train()
    with counted() as operations:
        hook.after_train_iter(runner, 0, outputs=outputs)
    assert operations.waits == {'tolist': 4}  # of one dtype each
    for name, value in outputs.items():
        value = value.item() if isinstance(value, torch.Tensor) else value
        assert runner.message_hub.get_scalar(f'train/{name}').current() == value
