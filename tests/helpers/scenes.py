"""Trainings on whole images of the shapes with a small XCiT, streamed or not."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch.nn.modules.batchnorm import _BatchNorm

from xcit_mm.engine import train

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
    'mask_rcnn_xcit_n12_16_shapes': dict(backbone=BACKBONE, neck=MAPS),
}
SEGMENTOR, DETECTOR = MODELS
OPENED = dict(
    (
        (SEGMENTOR, [dict(type='OpenLabels')]),
        (DETECTOR, [dict(type='LoadObjects', with_mask=True)]),
    )
)
# Of the same images in memory, in which nothing is augmented either.
LOADED = [dict(type=name) for name in ('LoadImage', 'LoadAnnotations', 'PackSegInputs')]
STREAM = dict(memory='1GiB', store=None, shared=False)


@HOOKS.register_module()
class NormEvalHook(Hook):
    """Keep BatchNorm of the whole model in evaluation mode, as streamed trainings do."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        for module in runner.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


def scene_config(folder: Path, root: Path, name: str = SEGMENTOR, **values: Any) -> Path:
    """Write a config that trains on the shapes of ``root``; ``values`` replace some of it."""
    is_streamed = values.get('stream', STREAM) is not None
    opened = [dict(type='OpenImage'), *OPENED[name], dict(type='PackScene')]
    loader = dict(
        batch_size=1,
        num_workers=0,
        persistent_workers=False,
        dataset=dict(pipeline=opened if is_streamed else LOADED),
    )
    defaults = dict(
        stream=STREAM,
        model=MODELS[name],
        train_dataloader=loader,
        val_dataloader=loader,
        test_dataloader=loader,
        train_cfg=dict(max_iters=4, val_interval=4),
        optim_wrapper=dict(type='OptimWrapper'),
        default_hooks=dict(logger=dict(interval=1), checkpoint=dict(interval=1, max_keep_ckpts=2)),
        log_processor=dict(window_size=1),
        log_level='WARNING',
    )
    lines = [f'_base_ = {str(ROOT / "configs" / name)!r} + ".py"']
    lines += [f'{key} = {value!r}' for key, value in (defaults | values).items()]
    # mmengine shares objects between runs of one name.
    path = folder / f'scenes_{next(NUMBERS)}.py'
    path.write_text('\n'.join(lines))
    return path


def train_scenes(
    work_dir: Path,
    root: Path,
    name: str = SEGMENTOR,
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    launcher: str = 'none',
    **values: Any,
) -> Path:
    """Train with such a config in this process, and return the work dir."""
    config = scene_config(work_dir.parent, root, name, **values)
    options = {'data_root': str(root), **(options or {})}
    train(str(config), str(work_dir), options=options, resume=resume, launcher=launcher)
    return work_dir
