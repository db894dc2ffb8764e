"""Trainings that replay graphs, with a stand-in that computes again on a CPU."""

import pytest
import torch
from helpers.graph_stand_in import on_cpu
from helpers.runs import SEGMENTOR, UNDRAWN, losses, weights
from mmengine.config import Config

from xcit_mm.config.adapt import adapt_for_training
from xcit_mm.train import train

OPTIONS = {
    'val_cfg': None,
    'val_evaluator': None,
    'train_dataloader.batch_size': 2,
    'train_dataloader.num_workers': 0,
    'val_dataloader': None,
    'default_hooks.checkpoint.interval': 2,
    'default_hooks.logger.interval': 1,
    'default_hooks.ema': dict(type='EMAHook', momentum=0.1),
    'param_scheduler.0.end': 8,
    'optim_wrapper.type': 'OptimWrapper',
    'optim_wrapper.accumulative_counts': 2,
    'model.backbone.with_cp': True,
    'model.backbone.drop_path_rate': 0.3,
    **UNDRAWN,
}


def run(folder, shapes_root, steps: int = 6, **kwargs) -> None:
    options = OPTIONS | {'data_root': str(shapes_root), 'train_cfg.max_iters': steps}
    train(SEGMENTOR, str(folder), options=options, **kwargs)


@pytest.mark.slow
def test_a_run_with_graphs_is_one_without_them_also_after_a_resume(
    tmp_path, shapes_root, monkeypatch, caplog
):
    run(tmp_path / 'eager', shapes_root)
    on_cpu(monkeypatch)
    run(tmp_path / 'cut', shapes_root, steps=4, graphs=True)
    run(tmp_path / 'cut', shapes_root, resume=True, graphs=True)

    expected = losses(tmp_path / 'eager')
    assert len(expected) == 6
    assert losses(tmp_path / 'cut') == expected
    ours, wanted = (weights(tmp_path / folder / 'iter_6.pth') for folder in ('cut', 'eager'))
    for key, value in wanted.items():
        assert torch.equal(ours[key], value), key
    text = ''.join(path.read_text() for path in (tmp_path / 'cut').glob('*/*.log'))
    assert 'CUDA graphs: 3 of 4 steps ran captured; captured sizes of batches: 1' in text


@pytest.mark.parametrize('asked', ['option', 'config'])
def test_an_option_and_a_config_add_the_hook(asked):
    cfg = Config.fromfile('configs/sem_fpn_xcit_n12_16_shapes.py')
    cfg.launcher, cfg.work_dir = 'none', 'nowhere'
    if asked == 'config':
        cfg.graphs = True
    adapt_for_training(cfg, graphs=asked == 'option')
    assert cfg.default_hooks.graphs == dict(type='GraphsHook')
