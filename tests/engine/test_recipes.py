"""Parts of recipes together in trainings of a real detector and segmentor."""

import pytest
import torch
from helpers.resumed_runs import assert_same_checkpoint  # registers StopHook, too
from helpers.runs import DETECTOR, SEGMENTOR

from xcit_mm.engine.run import test as evaluate
from xcit_mm.engine.run import train

LAST = 4  # iterations, which are two updates
RECIPE = {
    'optim_wrapper.constructor': 'LayerDecayConstructor',
    'optim_wrapper.paramwise_cfg.layer_decay': 0.8,
    'optim_wrapper.accumulative_counts': 2,
    'default_hooks.ema.type': 'EMAHook',
    'default_hooks.ema.momentum': 0.1,
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.report': None,
    'default_hooks.pictures': None,
    'train_cfg.max_iters': LAST,
    'train_cfg.val_interval': LAST,
    'train_dataloader.batch_size': 2,
    'val_dataloader.dataset.indices': 1,
    'param_scheduler.0.end': 4,
    'env_cfg.mp_cfg.mp_start_method': 'fork',
}
for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
    RECIPE |= {f'{loader}.num_workers': 0, f'{loader}.persistent_workers': False}


@pytest.mark.slow
@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR], ids=['boxes', 'labels'])
def test_a_killed_run_with_the_whole_recipe_ends_like_another(
    shapes_root, tmp_path, monkeypatch, config
):
    # Unformatted, the text of a config means the same and is there seconds earlier.
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))
    options = RECIPE | {'data_root': str(shapes_root)}
    if config == DETECTOR:
        options['lsj'] = 160
    train(config, str(tmp_path / 'whole'), options=options)
    stop = {'custom_hooks': [dict(type='StopHook', after=LAST - 1)]}
    with pytest.raises(RuntimeError, match='planted'):
        train(config, str(tmp_path / 'cut'), options=options | stop)
    assert [path.name for path in (tmp_path / 'cut').glob('*.pth')] == ['iter_2.pth']
    train(config, str(tmp_path / 'cut'), resume=True, options=options)
    last = tmp_path / f'whole/iter_{LAST}.pth'
    assert_same_checkpoint(last, tmp_path / f'cut/iter_{LAST}.pth')
    logs = [(tmp_path / run / 'losses.jsonl').read_text() for run in ('whole', 'cut')]
    assert logs[0] == logs[1]

    name = 'backbone.blocks.0.mlp.fc1.weight'  # averaged where it is tested
    whole = torch.load(last, weights_only=False)
    assert not torch.equal(whole['state_dict'][name], whole['ema_state_dict'][f'module.{name}'])
    validated = (tmp_path / 'cut/metrics.jsonl').read_text()
    plain = {k: v for k, v in options.items() if k.startswith(('data_root', 'test_', 'env_cfg'))}
    plain['test_dataloader.dataset.indices'] = 1
    metrics = evaluate(config, str(tmp_path / f'cut/iter_{LAST}.pth'), str(tmp_path), options=plain)
    assert all(f'"{name}": {value}' in validated for name, value in metrics.items())
