"""Accumulated gradients and averaged weights, over interruptions and in several processes."""

import pytest
import torch
from helpers.processes import in_processes
from helpers.resumed_runs import (
    DRAWS,
    assert_same_checkpoint,
    hooks,
    interrupted,
    names,
    resumed,
)
from helpers.runs import SEGMENTOR, steps
from helpers.toy import toy_runner
from mmengine.optim import OptimWrapper

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check_recipe

EMA = {'default_hooks.ema': dict(type='EMAHook', momentum=0.1)}
ACCUMULATED = {
    'optim_wrapper.accumulative_counts': 3,
    'optim_wrapper.clip_grad': dict(max_norm=0.5),
    'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)],
}
RECIPE = ACCUMULATED | EMA


@pytest.mark.parametrize('by_epoch', [False, True], ids=['iterations', 'epochs'])
@pytest.mark.parametrize('interval', [1, 2])
def test_a_run_that_is_killed_between_two_updates_ends_like_another(tmp_path, by_epoch, interval):
    """Eight iterations, and two epochs of five: neither is a multiple of three."""
    options = RECIPE | {'by_epoch': by_epoch, 'default_hooks.checkpoint.interval': interval}
    DRAWS.clear()
    toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **options).train()
    expected = DRAWS.copy()
    # A checkpoint that is due while gradients are held is written after their update.
    updates = [3, 5, 8, 10] if by_epoch else [3, 6, 8]
    assert names(tmp_path / 'whole') == sorted(f'iter_{step}.pth' for step in updates)
    for after in (4, 7):
        DRAWS.clear()
        cut = tmp_path / f'cut_{after}'
        interrupted(cut, after, **options)
        resumed(cut, **options)
        assert sorted(set(DRAWS)) == expected
        last = f'iter_{updates[-1]}.pth'
        assert_same_checkpoint(tmp_path / 'whole' / last, cut / last)
        assert steps(cut) == [*range(1, updates[-1] + 1)]
        logs = [(folder / 'losses.jsonl').read_text() for folder in (tmp_path / 'whole', cut)]
        assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ('by_epoch', 'expected'), [(False, [3] * 6 + [2] * 2), (True, ([3] * 3 + [2] * 2) * 2)]
)
def test_an_update_is_the_mean_of_its_iterations(tmp_path, monkeypatch, by_epoch, expected):
    """Also of those that are left at the end of the run or of an epoch."""
    divisors = []
    scale_loss = OptimWrapper.scale_loss

    def recorded(wrapper: OptimWrapper, loss: torch.Tensor) -> torch.Tensor:
        scaled = scale_loss(wrapper, loss)
        divisors.append(round((loss / scaled).item()))
        return scaled

    monkeypatch.setattr(OptimWrapper, 'scale_loss', recorded)
    toy_runner(tmp_path, by_epoch=by_epoch, **ACCUMULATED).train()
    assert divisors == expected


def test_the_learning_rate_is_scaled_with_the_images_of_an_update(tmp_path):
    options = {'auto_scale_lr': dict(enable=True, base_batch_size=24)}
    runner = toy_runner(tmp_path, **options, **{'optim_wrapper.accumulative_counts': 3})
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.scale_lr(runner.optim_wrapper, runner.auto_scale_lr)
    assert runner.optim_wrapper.get_lr()['lr'] == [pytest.approx(0.1 * 2 * 3 / 24)]


def test_a_run_with_averaged_weights_is_not_resumed_without_them(tmp_path):
    interrupted(tmp_path, 4, **RECIPE)
    with pytest.raises(UserError, match=r'iter_3\.pth is of a run that averages its weights'):
        resumed(tmp_path, **ACCUMULATED)


@pytest.mark.parametrize('momentum', [0, 1.5, '0.1'])
def test_a_momentum_that_is_not_a_share_is_refused(momentum):
    hook = dict(type='EMAHook', momentum=momentum)
    for name, value in (('default_hooks.ema', hook), ('custom_hooks', [hook])):
        cfg = load_config(SEGMENTOR, {name: value})
        with pytest.raises(UserError, match=rf'\.\w+\.momentum={momentum!r} is not between'):
            check_recipe(cfg)


def test_two_processes_resume_between_two_updates(tmp_path):
    def run(rank: int) -> None:
        wrapper = dict(type='MMDistributedDataParallel', device_ids=None)
        options = RECIPE | dict(launcher='pytorch', model_wrapper_cfg=wrapper)
        options |= {'train_dataloader.drop_last': True}  # BatchNorm needs two
        runner = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **options)
        runner.train()
        weights = [torch.zeros(1, 2) for _ in (0, 1)]
        torch.distributed.all_gather(weights, runner.model.module.linear.weight.data)
        assert torch.equal(*weights)
        interrupted(tmp_path / 'cut', 5, **options)
        torch.distributed.barrier()
        resumed(tmp_path / 'cut', **options)

    in_processes(2, run, tmp_path)
    for name in ('whole', 'cut'):
        assert names(tmp_path / name) == ['iter_3.pth', 'iter_6.pth', 'iter_8.pth']
    assert_same_checkpoint(*(tmp_path / name / 'iter_8.pth' for name in ('whole', 'cut')))
