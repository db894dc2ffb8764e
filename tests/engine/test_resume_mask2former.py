"""A run of Mask2Former, whose losses are taken at random points, ends alike after a stop."""

import pytest
from helpers import ROOT
from helpers.resumed_runs import StopHook, assert_same_checkpoint

from xcit_mm.engine import train
from xcit_mm.errors import ConfigError

SMALL = """
_base_ = '{root}/configs/mask2former_panoptic_xcit_n12_16_shapes.py'
arch = dict(_delete_=True, embed_dim=64, depth=4, num_heads=2, eta=1.0)
model = dict(
    backbone=dict(arch=arch, out_indices=(0, 1, 2, 3), drop_path_rate=0.2),
    panoptic_head=dict(in_channels=[64] * 4),
)
"""
OPTIONS = {
    'train_cfg.max_iters': 2,
    'train_dataloader.batch_size': 2,
    'train_dataloader.num_workers': 0,
    'val_dataloader.num_workers': 0,
    'val_dataloader.dataset.indices': 1,
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.report': None,
}


def test_a_resumed_run_ends_like_an_uninterrupted_one(shapes_root, tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(SMALL.format(root=ROOT))

    def run(name: str, stop: int = 0, resume: bool = False) -> None:
        options = OPTIONS | {'data_root': shapes_root}
        options['custom_hooks'] = [dict(type=StopHook.__name__, after=stop)]
        # mmengine shares objects between the runs of a process that have one name.
        options['experiment_name'] = f'{name} {stop}'
        train(str(config), str(tmp_path / name), resume=resume, options=options)

    run('whole')
    with pytest.raises(ConfigError, match='planted'):
        run('cut', stop=1)
    assert not (tmp_path / 'cut/iter_2.pth').exists()
    run('cut', resume=True)
    assert_same_checkpoint(*(tmp_path / name / 'iter_2.pth' for name in ('whole', 'cut')))
    assert (tmp_path / 'cut/pictures/000000000025.png').is_file()
    logs = [(tmp_path / name / 'losses.jsonl').read_text() for name in ('whole', 'cut')]
    assert logs[0] == logs[1] and logs[0].count('\n') == 2
