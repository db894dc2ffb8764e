"""The configs of the trainings whose steps are measured: recipes on drawn images, or files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from xcit_mm.base.environment import require, require_framework
from xcit_mm.base.errors import ArgumentError, UserError
from xcit_mm.config.adapt import (
    HOOKS_OF_MMENGINE,
    WORKER_ARGUMENTS,
    adapt_for_training,
)
from xcit_mm.config.load import load_config
from xcit_mm.config.replacements import REPLACEMENTS
from xcit_mm.config.rules import check
from xcit_mm.config.tree import replace_nodes
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes

from .models import XCIT
from .whole_models import BACKBONES, BASES

SEM_FPN, STOCK = '+sem_fpn', '+stock'  # suffixes: Semantic FPN, and as mmdet or mmseg train
# Our classes, and what mmdet and mmseg use in their place.
STOCK_CLASSES = {row.replacement: row.name for row in REPLACEMENTS.values()}
STOCK_CLASSES |= {
    'AlignedEncoderDecoder': 'EncoderDecoder',
    'BatchedRPNHead': 'RPNHead',
    'BatchedRoIHead': 'StandardRoIHead',
}
# Options of our recipes that the configs of mmdet and mmseg do not have.
OUR_OPTIONS = ('graphs', 'optim_wrapper.constructor', 'optim_wrapper.optimizer.fused')
STOCK_WORKERS = 2  # in the configs of mmdet
ENDLESS = 10**7  # iterations: a measurement never reaches the end of a run
IMAGES, LARGEST = 32, 640  # drawn images, and their largest side in pixels
REPEATS = 10**4  # of the drawn images in an epoch, after which mmengine starts workers again
NAMES = (
    'xcit_mm_ARCH_PATCH (as in xcit_mm_s12_16), resnet50, swin_t or convnext_t, in Mask R-CNN or '
    f'with the suffix {SEM_FPN} in Semantic FPN, on drawn images; or a config file with its data'
)


@dataclass(frozen=True)
class Training:
    """A training of the benchmark.

    Its ``name`` is the name of a model or the path of a config, with the suffix ``+stock`` if it
    runs with the classes and the settings of mmdet or mmseg.
    """

    name: str
    size: tuple[int, int] | None  # (height, width) of drawn images; None: a config has its own
    batch_size: int | None  # None: of the config
    dtype: str

    def __post_init__(self) -> None:
        if self.is_file:
            object.__setattr__(self, 'size', None)
        model = self.model.removesuffix(SEM_FPN)
        is_xcit = model.startswith('xcit_mm') and XCIT.fullmatch(model)
        if not (self.is_file or is_xcit or model in BACKBONES):
            raise ArgumentError(f'{self.name!r} is not a training: choose {NAMES}')

    @property
    def model(self) -> str:
        return self.name.removesuffix(STOCK)

    @property
    def is_file(self) -> bool:
        return self.model.endswith('.py')

    def config(
        self, folder: Path, options: Mapping[str, Any] | None = None
    ) -> tuple[Config, list[str]]:
        """Return the config, ready for its runner, and what was adapted in it.

        Args:
            folder: Where images are drawn, and where the run writes.
            options: Dotted names and values that replace values of the config.

        Raises:
            UserError: If the config is wrong, has no data, or streams its images.
        """
        options = {**self._options(), **(options or {})}
        if self.is_file:
            cfg = self._of_file(folder, options)
        else:
            cfg = self._on_drawn_images(folder, options)
        if cfg.train_dataloader.get('num_workers', 0) == 0:
            cfg.train_dataloader = without_workers(cfg.train_dataloader)
        else:
            cfg.train_dataloader.persistent_workers = True  # workers that TrainingSteps can end
        cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
        cfg.log_level = 'ERROR'
        cfg.experiment_name = f'{self.name} {self.size} {self.dtype}'.replace('/', '-')
        if self.batch_size is not None:
            cfg.train_dataloader.batch_size = self.batch_size
        if self.name.endswith(STOCK):
            require_framework(cfg.default_scope)
            if not isinstance(options.get('train_dataloader.num_workers'), int):  # 'auto' is ours
                cfg.train_dataloader.num_workers = STOCK_WORKERS
            return _as_stock(cfg), []
        options['train_cfg.max_iters'] = cfg.train_cfg.max_iters = ENDLESS
        notes = adapt_for_training(cfg, options)
        try:
            check(cfg, 'train')
        except UserError as error:
            hint = '; to measure on drawn images, name a model, such as xcit_mm_s12_16'
            raise UserError(f'{error}{hint if self.is_file else ""}') from None
        return cfg, notes

    def _options(self) -> dict[str, Any]:
        """Return the options that train in the dtype, from random weights."""
        wrapper = 'OptimWrapper' if self.dtype == 'float32' else 'AmpOptimWrapper'
        options = {'pretrained': None, 'optim_wrapper.type': wrapper}
        return options if self.dtype == 'float32' else options | {'optim_wrapper.dtype': self.dtype}

    def _of_file(self, folder: Path, options: dict[str, Any]) -> Config:
        cfg = load_config(self.model, options, str(folder))
        if cfg.get('stream') is not None:
            raise UserError(
                f'{self.model} streams its images, one step of which takes many passes: name a '
                'config without stream'
            )
        return cfg

    def _on_drawn_images(self, folder: Path, options: dict[str, Any]) -> Config:
        model, (height, width) = self.model.removesuffix(SEM_FPN), self.size
        is_segmentor = self.model.endswith(SEM_FPN)
        arch, patch_size = ('s12', '16') if model in BACKBONES else model.split('_')[-2:]
        recipe = BASES['segmentor' if is_segmentor else 'detector'].format(arch, patch_size)
        root = folder / f'images_{height}x{width}'
        spec = ShapesSpec(num_train=IMAGES, num_val=1, size=min(height, width, LARGEST))
        if make_shapes(root, spec):
            _name_as_in_coco(root / 'coco/annotations/instances_train2017.json')
        data_root = root / ('ade' if is_segmentor else 'coco')
        cfg = load_config(recipe, options | {'data_root': str(data_root)}, str(folder))
        dataset = cfg.train_dataloader.dataset
        dataset.pipeline = _pipeline(is_segmentor, (height, width))
        cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=REPEATS, dataset=dataset)
        if is_segmentor:
            cfg.model.data_preprocessor.size = (height, width)
        if model in BACKBONES:
            require('mmseg')  # whose TIMMBackbone mmdet builds as well
            require_framework('mmseg')
            backbone, channels = BACKBONES[model]
            cfg.model.backbone, cfg.model.neck.in_channels = backbone, list(channels)
        return cfg


def without_workers(loader: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dataloader that loads in this process, without what PyTorch then refuses."""
    return {k: v for k, v in loader.items() if k not in WORKER_ARGUMENTS} | {'num_workers': 0}


def _pipeline(is_segmentor: bool, size: tuple[int, int]) -> list[dict]:
    """Return the transforms of COCO's and ADE20k's recipes, for images of one size."""
    resize = dict(type='Resize', scale=size[::-1], keep_ratio=False)
    flip = dict(type='RandomFlip', prob=0.5)
    if is_segmentor:
        labels = dict(type='LoadLabels', reduce_zero_label=True)
        packed = [dict(type='PhotoMetricDistortion'), dict(type='PackSegInputs')]
    else:
        labels = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
        packed = [dict(type='PackDetInputs')]
    return [dict(type='LoadImage'), labels, resize, flip, *packed]


def _name_as_in_coco(annotations: Path) -> None:
    """Give drawn objects the first classes of COCO, so that heads have all of its classes."""
    from mmdet.datasets import CocoDataset

    content = json.loads(annotations.read_text(encoding='utf-8'))
    names = enumerate(CocoDataset.METAINFO['classes'], 1)
    content['categories'] = [dict(id=number, name=name) for number, name in names]
    annotations.write_text(json.dumps(content), encoding='utf-8')


def _as_stock(cfg: Config) -> Config:
    """Replace our classes and settings in a config by those of mmdet and mmseg."""

    def replace(node: Any) -> Any:
        if isinstance(node, dict) and node.get('type') in STOCK_CLASSES:
            node.type = STOCK_CLASSES[node.type]
        return node

    for option in OUR_OPTIONS:
        *parts, name = option.split('.')
        part = cfg
        for inner in parts:
            part = part.get(inner) or {}
        part.pop(name, None)
    for name in cfg:
        cfg[name] = replace_nodes(cfg[name], replace)
    cfg.runner_type = 'Runner'
    cfg.env_cfg.mp_cfg.mp_start_method = 'fork'  # as in the configs of mmdet and mmseg
    cfg.default_hooks = ConfigDict(
        {name: cfg.default_hooks[name] for name in HOOKS_OF_MMENGINE if name in cfg.default_hooks}
    )
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=ENDLESS, val_interval=ENDLESS)
    cfg.log_processor.by_epoch = False
    if cfg.optim_wrapper.type == 'OptimWrapper':
        for argument in ('loss_scale', 'dtype'):
            cfg.optim_wrapper.pop(argument, None)
    return cfg
