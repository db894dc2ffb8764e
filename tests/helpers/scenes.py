"""Trainings on whole images of the shapes with a small XCiT, streamed or not."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch.nn.modules.batchnorm import _BatchNorm

from xcit_mm.train import train

from . import ROOT
from .small_xcit import SMALL

NUMBERS = count()
WIDTH = SMALL['embed_dim']
MAPS = dict(in_channels=[WIDTH] * 4)
BACKBONE = dict(arch=dict(**SMALL, _delete_=True), out_indices=(0, 1, 2, 3), norm_eval=True)
MODELS = {
    'sem_fpn_xcit_n12_16_shapes': dict(
        data_preprocessor=dict(size=None, size_divisor=1),
        backbone=BACKBONE,
        neck=dict(**MAPS, out_channels=WIDTH),
        decode_head=dict(**MAPS, channels=16, dropout_ratio=0.0),
    ),
    'mask_rcnn_xcit_n12_16_shapes': dict(
        backbone=BACKBONE, neck=MAPS, test_cfg=dict(rpn=dict(max_per_img=20))
    ),
}
SEGMENTOR, DETECTOR = MODELS
ANNOTATIONS = {
    SEGMENTOR: dict(type='OpenLabels'),
    DETECTOR: dict(type='LoadObjects', with_mask=True),
}
# Of the same images in memory, in which nothing is augmented either.
LOADED = [dict(type=name) for name in ('LoadImage', 'LoadLabels', 'PackSegInputs')]
STREAM = dict(memory='1GiB', store=None, shared=False)


@HOOKS.register_module()
class NormEvalHook(Hook):
    """Keep BatchNorm of the whole model in evaluation mode, as streamed trainings do."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        for module in runner.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


def scene_config(folder: Path, name: str = SEGMENTOR, **values: Any) -> Path:
    """Write a config that trains on the shapes.

    ``values`` are parts of the config; ``augmented`` adds flips, quarter turns and other colors.
    """
    augmented = [dict(type='FlipAndTurn'), dict(type='DistortColors')]
    opened = dict(type='OpenImage'), ANNOTATIONS[name], dict(type='PackScene')
    trained = [*opened[:2], *(augmented if values.pop('augmented', False) else []), opened[2]]
    if values.get('stream', STREAM) is None:
        opened = trained = LOADED
    loader = dict(batch_size=1, num_workers=0, persistent_workers=False)
    evaluated = dict(**loader, dataset=dict(pipeline=[*opened]))
    defaults = dict(
        stream=STREAM,
        model=MODELS[name],
        train_dataloader=dict(**loader, dataset=dict(pipeline=trained)),
        val_dataloader=evaluated,
        test_dataloader=evaluated,
        train_cfg=dict(max_iters=4, val_interval=4),
        optim_wrapper=dict(type='OptimWrapper'),
        param_scheduler=[],
        auto_scale_lr=dict(base_batch_size=1),
        default_hooks=dict(
            logger=dict(interval=1),
            checkpoint=dict(interval=1),
            report=None,
            pictures=None,
            errors=None,
        ),
        log_processor=dict(window_size=1),
        log_level='WARNING',
    )
    number = next(NUMBERS)  # mmengine shares objects between runs of one name
    base = _written(folder / f'base_{number}.py', ROOT / 'configs' / f'{name}.py', defaults)
    return _written(folder / f'scenes_{number}.py', base, values)


def _written(path: Path, base: Path, values: Mapping[str, Any]) -> Path:
    lines = [f'_base_ = {str(base)!r}', *(f'{key} = {value!r}' for key, value in values.items())]
    path.write_text('\n'.join(lines))
    return path


def train_scenes(
    work_dir: Path, root: Path, name: str = SEGMENTOR, resume: bool = False, **values: Any
) -> Path:
    """Train with such a config on the shapes of ``root``, and return ``work_dir``."""
    config = scene_config(work_dir.parent, name, **values)
    train(str(config), str(work_dir), options=dict(data_root=str(root)), resume=resume)
    return work_dir
