"""Toy runs with validations."""

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS, MODELS

from helpers.toy import Toy, toy_runner
from xcit_mm.engine.checkpoints.newest import newest_checkpoint


@MODELS.register_module()
class EvaluatedToy(Toy):
    def forward(self, inputs, data_samples=None, mode='loss'):
        return super().forward(inputs) if mode == 'loss' else data_samples


@METRICS.register_module()
class ToyMetric(BaseMetric):
    def process(self, data_batch, data_samples) -> None:
        self.results.append(0.25)

    def compute_metrics(self, results) -> dict:
        return dict(mIoU=np.mean(results), mAcc=np.float32(0.5), text='not a number')


def evaluated_run(work_dir, *hooks: str, **kwargs):
    """A run of eight iterations or of two epochs of five, with a validation after every second."""
    data = dict(dataset=dict(type='ToyDataset'), sampler=dict(type='DefaultSampler', shuffle=False))
    settings = {
        'model.type': 'EvaluatedToy',
        'val_dataloader': dict(batch_size=1, num_workers=0, **data),
        'val_evaluator': dict(type='ToyMetric'),
        'val_cfg': dict(),
        'train_cfg.val_interval': 1 if kwargs.get('by_epoch') else 2,
        'custom_hooks': [dict(type=name) for name in ('LossLogHook', *hooks)],
    }
    return toy_runner(work_dir, **settings | kwargs)


def resumed_run(work_dir, *hooks: str, **kwargs):
    path, _ = newest_checkpoint(str(work_dir))
    return evaluated_run(work_dir, *hooks, resume=True, load_from=str(path), **kwargs)
