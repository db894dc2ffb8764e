"""Trainings of real models that are stopped and resumed, with all parts of a recipe together."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from helpers.resumed_runs import assert_same_run, names  # registers StopHook, too
from helpers.runs import DETECTOR, UNDRAWN

from xcit_mm.train import test as evaluate
from xcit_mm.train import train

COMMON = {
    'default_hooks.checkpoint.interval': 1,
    **UNDRAWN,
    'train_dataloader.batch_size': 2,
    'val_dataloader.dataset.indices': 1,
    'env_cfg.mp_cfg.mp_start_method': 'fork',
}
for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
    COMMON |= {f'{loader}.num_workers': 0, f'{loader}.persistent_workers': False}
# Four iterations are two updates.
RECIPE = COMMON | {
    'train_cfg.max_iters': 4,
    'train_cfg.val_interval': 4,
    'optim_wrapper.constructor': 'LayerDecayConstructor',
    'optim_wrapper.paramwise_cfg.layer_decay': 0.8,
    'optim_wrapper.accumulative_counts': 2,
    'default_hooks.ema.type': 'EMAHook',
    'default_hooks.ema.momentum': 0.1,
    'default_hooks.pictures': None,
    'param_scheduler.0.end': 4,
}
# Heads that draw random numbers for their losses: what takes the maps.
HEADS = {
    'mask2former_panoptic': ('panoptic_head', 4),
    'mask2former_semantic': ('decode_head', 4),
    'dino': ('neck', 2),
}


def on_a_small_backbone(part: str, maps: int) -> dict:
    return COMMON | {
        'train_cfg.max_iters': 2,
        'model.backbone.arch': dict(_delete_=True, embed_dim=64, depth=4, num_heads=2, eta=1.0),
        'model.backbone.out_indices': (0, 1, 2, 3),
        'model.backbone.drop_path_rate': 0.2,
        f'model.{part}.in_channels': [64] * maps,
    }


# Config, options, and the last checkpoint before the stop.
CASES = {'boxes': (DETECTOR, RECIPE | {'lsj': 160}, 2)}
CASES |= {
    head: (f'configs/{head}_xcit_n12_16_shapes.py', on_a_small_backbone(*takes_maps), 1)
    for head, takes_maps in HEADS.items()
}
QUICK = 'mask2former_panoptic'


@pytest.mark.parametrize(
    'case', [pytest.param(case, marks=[pytest.mark.slow] * (case != QUICK)) for case in CASES]
)
def test_a_stopped_training_ends_like_another(shapes_root, tmp_path, case):
    config, options, saved = CASES[case]
    last, whole, cut = options['train_cfg.max_iters'], tmp_path / 'whole', tmp_path / 'cut'
    options = options | {'data_root': str(shapes_root)}

    def run(folder: Path, resume: bool = False, **more: object) -> None:
        # mmengine removes _delete_ from the options.
        train(config, str(folder), resume=resume, options=deepcopy(options | more))

    run(whole)
    with pytest.raises(Exception, match='planted'):
        run(cut, custom_hooks=[dict(type='StopHook', after=last - 1)])
    assert names(cut) == [f'iter_{saved}.pth']
    run(cut, resume=True)
    assert_same_run(whole, cut, last)
    if 'default_hooks.pictures' not in options:
        assert (cut / 'pictures/000000000025.png').is_file()
        return
    name = 'backbone.blocks.0.mlp.fc1.weight'  # averaged where it is tested
    state = torch.load(cut / f'iter_{last}.pth', weights_only=False)
    assert not torch.equal(state['state_dict'][name], state['ema_state_dict'][f'module.{name}'])
    validated = (cut / 'metrics.jsonl').read_text()
    plain = {k: v for k, v in options.items() if k.startswith(('data_root', 'test_', 'env_cfg'))}
    plain['test_dataloader.dataset.indices'] = 1
    metrics = evaluate(config, str(cut / f'iter_{last}.pth'), str(tmp_path), options=plain)
    assert all(f'"{name}": {value}' in validated for name, value in metrics.items())
