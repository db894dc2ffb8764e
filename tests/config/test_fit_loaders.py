import pytest
import torch
from mmengine.config import Config

from xcit_mm.config import adapt
from xcit_mm.config.adapt import DATALOADERS, fit_loaders
from xcit_mm.config.load import load_config


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    monkeypatch.setattr(adapt, 'cores_of_process', lambda launcher: 3)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)


def test_workers_are_counted_where_the_config_has_no_number():
    options = {'val_dataloader.num_workers': 2}
    cfg = load_config('mask_rcnn_xcit_s12_16_3x.py', options)
    notes = fit_loaders(cfg)
    assert [cfg[name].num_workers for name in DATALOADERS] == [3, 2, 3]
    names = 'train_dataloader, test_dataloader'
    assert notes == [f'{names}: num_workers=3, because a process may use 3 cores.']
    assert 'pin_memory' not in cfg.train_dataloader


def test_many_cores_start_a_bounded_number_of_workers(monkeypatch):
    monkeypatch.setattr(adapt, 'cores_of_process', lambda launcher: 200)
    cfg = Config(dict(train_dataloader=dict(num_workers='auto'), val_dataloader=None))
    fit_loaders(cfg)
    assert cfg.train_dataloader.num_workers == adapt.MAX_WORKERS


def test_batches_are_pinned_for_a_gpu_unless_the_config_says_otherwise(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    loaders = [dict(num_workers=n, **pins) for n, pins in enumerate([{}, dict(pin_memory=False)])]
    cfg = Config(dict(zip(DATALOADERS, loaders, strict=False)))
    notes = fit_loaders(cfg)
    assert cfg.train_dataloader.pin_memory and not cfg.val_dataloader.pin_memory
    assert notes == ['train_dataloader: pin_memory=True, for copies that do not wait.']
