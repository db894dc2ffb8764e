"""A batch in a file gives the losses that it gave, of detectors and of segmentors."""

import copy

import pytest
import torch
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope

from xcit_mm.engine import losses_of_batch
from xcit_mm.engine.config.load import load_config, ours
from xcit_mm.engine.data.seeding import seed_all
from xcit_mm.engine.hooks.batch_file import save_batch
from xcit_mm.environment import require

PLACE = (0, 0, 7)


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR], ids=['detector', 'segmentor'])
def test_the_losses_are_those_of_the_step(shapes_root, tmp_path, config):
    cfg = load_config(ROOT / config, {'data_root': str(shapes_root)})
    for part in ('models', 'datasets'):
        require(f'{cfg.default_scope}.{part}')
    if cfg.default_scope == 'mmdet':
        require('xcit_mm.datasets.coco')
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(ours(cfg.train_dataloader.dataset))
    model = MODELS.build(cfg.model)
    batch = pseudo_collate([dataset[0], dataset[1]])
    given = copy.deepcopy(batch)

    model.train()
    seed_all(*PLACE)  # for the boxes that are drawn, and dropout
    losses = model(**model.data_preprocessor(given, True), mode='loss')
    weights = copy.deepcopy(model.state_dict())
    save_batch(tmp_path / 'batch.pth', batch, PLACE, 'loss 1', weights)
    again = losses_of_batch(model, tmp_path / 'batch.pth')
    assert again.keys() == losses.keys()
    for name, value in losses.items():
        pairs = zip(value, again[name], strict=True) if isinstance(value, list) else None
        assert all(torch.equal(a, b) for a, b in pairs or [(value, again[name])]), name
    # Mmdet and mmseg load the weights from the file, as of any checkpoint.
    assert torch.load(tmp_path / 'batch.pth', weights_only=True)['state_dict'].keys() == (
        weights.keys()
    )
