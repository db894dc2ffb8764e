"""Trainings on windows of scenes, with whole scenes streamed in the validation."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.processes import forked, torchrun
from helpers.resumed_runs import assert_same_run
from helpers.runs import steps
from helpers.scenes import DETECTOR, SEGMENTOR, scene_config
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmseg.models import SegDataPreProcessor

from benchmarks.mosaic import make_mosaic
from xcit_mm.base.geometry import whole
from xcit_mm.config.adapt import adapt_for_training
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check
from xcit_mm.data.transforms.multiband import LoadMultiband
from xcit_mm.large.data.read_window import ReadWindow
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.train import test as run_test
from xcit_mm.train import train

STEPS = 4
DELETED = dict(_delete_=True)
CLASSES = ('background', 'circle', 'square', 'triangle')
STREAM = dict(train=False, memory='1GiB')


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    """A scene for training and a smaller one for validation."""
    root = tmp_path_factory.mktemp('scenes')
    for seed, (name, columns) in enumerate((('training', 3), ('validation', 2))):
        make_mosaic(root / name, columns, seed)
    return root


def config(folder: Path, root: Path, name: str = SEGMENTOR, **values) -> Path:
    """Write a config that trains on windows of 96 pixels, two per step."""
    is_detector = name == DETECTOR
    scenes = dict(
        data_root=str(root),
        img_suffix='mosaic.tif',
        label_suffix='objects.geojson' if is_detector else 'labels.tif',
        with_objects=is_detector,
        metainfo=dict(classes=CLASSES[1:] if is_detector else CLASSES),
        **DELETED,
    )
    load = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
    pack = dict(type='PackDetInputs' if is_detector else 'PackSegInputs')
    opened = dict(type='LoadObjects', with_mask=True) if is_detector else dict(type='OpenLabels')
    trained = dict(
        type='SceneWindows',
        data_prefix=dict(img='training', labels='training'),
        window=96,
        balanced=True,
        length=10,
        pipeline=[
            dict(type='ReadWindow'),
            *([load] if is_detector else []),
            dict(type='RandomFlip', prob=0.5),
            pack,
        ],
    )
    evaluated = dict(
        type='Scenes',
        data_prefix=dict(img='validation', labels='validation'),
        test_mode=True,
        pipeline=[dict(type='OpenImage'), opened, dict(type='PackScene')],
    )
    values = (
        dict(
            stream=STREAM,
            train_dataloader=dict(
                batch_size=2,
                num_workers=values.pop('num_workers', 0),
                dataset=scenes | trained,
            ),
            val_dataloader=dict(batch_size=1, num_workers=0, dataset=scenes | evaluated),
            test_dataloader=dict(batch_size=1, num_workers=0, dataset=scenes | evaluated),
            train_cfg=dict(max_iters=STEPS, val_interval=STEPS),
            custom_hooks=[dict(type='EndHook')],
        )
        | values
    )
    if is_detector:
        values |= dict(val_evaluator=dict(ann_file=None), test_evaluator=dict(ann_file=None))
    folder.mkdir(exist_ok=True)
    return scene_config(folder, name, **values)


@HOOKS.register_module()
class EndHook(Hook):
    """End a run before an iteration, and keep the weights at its end."""

    def __init__(self, before: int | None = None) -> None:
        self.before = before

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == self.before:
            raise RuntimeError('planted')

    def after_train(self, runner) -> None:
        path = Path(runner.work_dir, f'rank_{get_rank()}.pth')
        torch.save(dict(runner.model.module.named_parameters()), path)


@pytest.fixture
def windows(monkeypatch) -> list:
    """The windows that this process reads, in order."""
    read, original = [], ReadWindow.__call__

    def record(transform, results):
        read.append(results['window'])
        return original(transform, results)

    monkeypatch.setattr(ReadWindow, '__call__', record)
    return read


def test_an_interrupted_run_draws_the_same_windows_and_ends_with_the_same_weights(
    root, tmp_path, windows
):
    """Also with another number of data workers."""
    train(str(config(tmp_path, root)), str(tmp_path / 'whole'))
    expected = windows.copy()
    assert len(expected) == 2 * STEPS and len({repr(w) for w in expected}) > STEPS
    windows.clear()
    ended = config(tmp_path, root, custom_hooks=[dict(type='EndHook', before=2)])
    with pytest.raises(RuntimeError, match='planted'):
        train(str(ended), str(tmp_path / 'cut'))
    assert windows == expected[:6]  # the batch of the third step was read
    train(str(config(tmp_path, root, num_workers=1)), str(tmp_path / 'cut'), resume=True)
    assert len(windows) == 6  # the worker has read the others
    assert_same_run(tmp_path / 'whole', tmp_path / 'cut', STEPS)


@pytest.mark.parametrize('name', [SEGMENTOR, DETECTOR])
def test_windows_are_trained_and_whole_scenes_are_evaluated(root, tmp_path, name):
    model, work_dir = dict(backbone=dict(norm_eval=False)), tmp_path / 'run'
    hooks = dict(pictures=dict(type='PictureHook', **DELETED))
    path = config(tmp_path, root, name, model=model, default_hooks=hooks)
    train(str(path), str(work_dir))
    assert steps(work_dir) == [*range(1, STEPS + 1)]
    metrics = json.loads((work_dir / 'metrics.jsonl').read_text().splitlines()[-1])
    expected = {'coco/bbox_mAP', 'coco/segm_mAP'} if name == DETECTOR else {'mIoU', 'aAcc'}
    assert expected <= metrics.keys()
    assert [p.name for p in (work_dir / 'pictures').iterdir()] == ['mosaic.png']
    state = torch.load(work_dir / f'iter_{STEPS}.pth', weights_only=False)['state_dict']
    trained = [v for k, v in state.items() if 'backbone' in k and 'num_batches_tracked' in k]
    assert {int(number) for number in trained} == {STEPS}  # BatchNorm has counted the batches
    written = (work_dir / path.name).read_text()
    tested = run_test(str(path), str(work_dir / f'iter_{STEPS}.pth'), str(work_dir))
    assert (work_dir / path.name).read_text() == written
    assert tested == pytest.approx({key: metrics[key] for key in tested}, abs=0.02)


def test_two_processes_average_their_gradients(root, tmp_path):
    """They share the scenes of the validation."""
    path, work_dir = config(tmp_path, root, stream=STREAM | dict(shared=True)), tmp_path / 'run'

    def run(rank: int) -> None:
        os.environ.update(env, RANK=str(rank))
        train(str(path), str(work_dir), launcher='pytorch')
        torch.distributed.destroy_process_group()

    with torchrun(2) as env:
        forked(2, run)
    first, second = (torch.load(work_dir / f'rank_{rank}.pth') for rank in (0, 1))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert steps(work_dir) == [*range(1, STEPS + 1)]


def test_pixels_without_data_get_the_mean_of_the_preprocessor(root, tmp_path):
    cfg = load_config(config(tmp_path, root))
    assert 'ReadWindow.fill is the mean of data_preprocessor.' in adapt_for_training(cfg)
    assert cfg.train_dataloader.dataset.pipeline[0].fill == [123.675, 116.28, 103.53]
    check(cfg, 'train')


def test_pixels_without_data_get_nan_of_the_bands_as_in_predictions(root, tmp_path):
    cfg = load_config(config(tmp_path, root))
    bands = dict(channels=3, rgb=[0, 1, 2], nan=-7.0)
    cfg.train_dataloader.dataset.pipeline[0].bands = bands
    assert 'ReadWindow.fill is nan of its bands.' in adapt_for_training(cfg)
    filled = [-7.0] * 3
    assert cfg.train_dataloader.dataset.pipeline[0].fill == filled
    source = Array(np.full((32, 32, 3), np.nan, np.float32), 'bands')
    preprocessor = SegDataPreProcessor(mean=[1.0, 2, 3], std=[2.0, 2, 2])
    predicted = NormalizedImage(source, preprocessor, [], LoadMultiband(**bands))
    window = whole((32, 32))
    assert (predicted.pixels(window) == filled).all()
