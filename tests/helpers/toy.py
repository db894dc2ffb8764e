"""The smallest model that mmengine trains, in the runner, loops and loaders of our tools."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from xcit_mm.train.data.loader import CheckedLoader, evaluation_loader, training_loader
from xcit_mm.train.runner import CheckedRunner

SIZE = 10  # samples
NUMBERS = count()


@DATASETS.register_module()
class ToyDataset(Dataset):
    """Numbers with noise in place of augmentation; ``bad`` ones cannot be read."""

    def __init__(self, bad: tuple[int, ...] = (), poison: tuple[int, ...] = ()) -> None:
        self.bad, self.poison = bad, poison

    def __len__(self) -> int:
        return SIZE

    def get_data_info(self, index: int) -> dict[str, Any]:
        return {'img_path': f'{index}.png', 'width': 2 + index % 3, 'height': 3}

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise ValueError('planted')
        value = torch.full((2,), float(index)) + torch.rand(2)
        if index in self.poison:
            value = value / 0
        sample = BaseDataElement(metainfo=dict(img_path=f'{index}.png', index=index))
        return {'inputs': value, 'data_samples': sample}


@MODELS.register_module()
class Toy(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.linear = nn.Linear(2, 1)

    def forward(
        self, inputs: list[Tensor], data_samples: list | None = None, mode: str = 'loss'
    ) -> dict[str, Tensor]:
        x = self.linear(self.norm(torch.stack(inputs)))
        return {'loss_square': ((x - torch.rand(1)) ** 2).mean()}


def toy_runner(
    work_dir: Path, *, by_epoch: bool = False, steps: int = 8, **kwargs
) -> CheckedRunner:
    """A run of ``steps`` iterations, or of two epochs, with a checkpoint after each iteration."""
    epochs = dict(type='ResumableEpochLoop', max_epochs=2)
    iterations = dict(type='ResumableIterLoop', max_iters=steps)
    defaults = dict(
        model=dict(type='Toy'),
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=True),
            dataset=dict(type='ToyDataset'),
        ),
        train_cfg=epochs if by_epoch else iterations,
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1),
            checkpoint=dict(type='WholeCheckpointHook', by_epoch=False, interval=1),
        ),
        custom_hooks=[dict(type=name) for name in ('NonFiniteHook', 'LossLogHook', 'BadDataHook')],
        randomness=dict(seed=0),
        log_level='WARNING',
        max_bad_share=0.5,
        work_dir=str(work_dir),
        experiment_name=f'toy {next(NUMBERS)}',  # mmengine shares objects between runs of one name
        default_scope='mmengine',
    )
    cfg = Config(defaults)
    cfg.merge_from_dict(kwargs)
    return CheckedRunner.from_cfg(cfg)


def ignore(**_: Any) -> None:
    """The events that a loader reports."""


def toy_loader(
    dataset: Dataset,
    workers: int = 0,
    is_training: bool = True,
    endless: bool = True,
    on_bad: Callable[..., None] = ignore,
    **kwargs: Any,
) -> CheckedLoader:
    kwargs = dict(batch_size=2, collate_fn=pseudo_collate, num_workers=workers) | kwargs
    loader = DataLoader(
        dataset, sampler=DefaultSampler(dataset, shuffle=is_training, seed=5), **kwargs
    )
    if is_training:
        return training_loader(loader, 7, endless, on_bad, ignore)
    return evaluation_loader(loader, ignore)
