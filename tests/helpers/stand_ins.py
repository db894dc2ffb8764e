"""What the pages of docs/ download or take for given: the names and layouts, not the content.

    stand_ins.py

In the root of a clone, beside its data/shapes: COCO, ADE20k and ImageNet, a dataset in YOLO's
layout, a few shapes of 13 bands and for trainings without labels, two photographs, a released
classifier, in mmengine's cache a released detector and segmentor, all of random weights, and what a
training leaves whose losses are not finite.
"""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

import timm
import torch
from mmdet.datasets import CocoDataset
from mmengine.registry import MODELS, init_default_scope

from helpers.other_layouts import make_yolo
from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes
from xcit_mm.network.weights.cache import cache_path
from xcit_mm.train import train

RELEASED = {
    'configs/mask_rcnn_xcit_t12_16_3x.py': 'coco/maskrcnn_xcit_tiny_12_p16.pth',
    'configs/sem_fpn_xcit_t12_16_80k.py': 'ade/sem_fpn_xcit_tiny_12_p16.pth',
}
CLASSIFIER = 'xcit_small_12_p8_384'  # timm's name, and that of the authors' file but for its end
SYNSETS = ('n01440764', 'n02123045')
PHOTOGRAPHS = ('cat.jpg', 'dog.jpg')
SERVER = 'https://dl.fbaipublicfiles.com/xcit/'


def make_coco(shapes: Path, root: Path) -> None:
    """The shapes as the first three of COCO's classes."""
    (root / 'annotations').mkdir(parents=True)
    names = CocoDataset.METAINFO['classes']
    categories = [dict(id=number, name=name) for number, name in enumerate(names, start=1)]
    for split in ('train2017', 'val2017'):
        (root / split).symlink_to(Path('../shapes/coco', split))
        file = f'annotations/instances_{split}.json'
        content = json.loads((shapes / 'coco' / file).read_text())
        assert {category['id'] for category in content['categories']} == {1, 2, 3}
        (root / file).write_text(json.dumps(content | dict(categories=categories)))


def make_imagenet(shapes: Path, root: Path) -> None:
    images = sorted((shapes / 'coco' / 'val2017').iterdir())
    for name, synset, image in zip(PHOTOGRAPHS, SYNSETS, images, strict=False):
        (root / synset).mkdir(parents=True)
        shutil.copy(image, root / synset)
        shutil.copy(image, name)


def make_fruit(root: Path) -> None:
    few = root.with_name('few')
    make_shapes(few, ShapesSpec(num_train=8, num_val=2))
    make_yolo(few, root)
    shutil.rmtree(few)


def make_weights(config: str, file: str) -> None:
    cfg = load_config(config)
    cfg.model.backbone.init_cfg = None
    init_default_scope(cfg.default_scope)
    target = cache_path(SERVER + file)
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save({'meta': {}, 'state_dict': MODELS.build(cfg.model).state_dict()}, target)


def make_diverged_run(work_dir: str, iteration: int) -> None:
    options = {
        'train_cfg.max_iters': 9,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'train_dataloader.batch_size': 2,
        'optim_wrapper.optimizer.lr': 1e30,
        'optim_wrapper.clip_grad': None,
        'default_hooks.non_finite.limit': 1,
    }
    with suppress(UserError):
        train('configs/mask_rcnn_xcit_n12_16_shapes.py', work_dir, options=options)
    (file,) = Path(work_dir).glob('*_iter_*_rank_0.pth')
    file.rename(file.with_name(re.sub('iter_[0-9]+', f'iter_{iteration}', file.name)))


if __name__ == '__main__':
    make_coco(Path('data/shapes'), Path('data/coco'))
    Path('data/ade').mkdir()
    Path('data/ade/ADEChallengeData2016').symlink_to('../shapes/ade')
    make_imagenet(Path('data/shapes'), Path('data/imagenet/val'))
    make_fruit(Path('datasets/fruit'))
    make_shapes('data/shapes_13bands', ShapesSpec(num_train=4, num_val=2, bands=13))
    for folder in ('data/unlabeled', 'data/of_teacher'):
        make_shapes(folder, ShapesSpec(num_train=4, num_val=1))
    torch.save({'model': timm.create_model(CLASSIFIER).state_dict()}, f'{CLASSIFIER}_dist.pth')
    make_diverged_run('work_dirs/diverged', 120)
    for config, file in RELEASED.items():
        make_weights(config, file)
