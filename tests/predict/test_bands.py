"""Models for images of 13 bands, from the config of a training to the folder of predictions."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
from helpers import ROOT
from helpers.random_weights import SEGMENTOR, save_random_weights
from helpers.runs import UNDRAWN, losses, options
from helpers.small_xcit import SMALL
from PIL import Image

from xcit_mm import UserError, load_model
from xcit_mm.apps.convert.conversion import convert
from xcit_mm.apps.infer.run import infer
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import check_dataset
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes, spread
from xcit_mm.data.transforms import multiband
from xcit_mm.predict.large.large_options import LargeOptions
from xcit_mm.predict.video import write_video
from xcit_mm.train import train

CONFIG = 'configs/sem_fpn_xcit_n12_16_13bands_shapes.py'
BANDS, SIZE, STEPS = 13, 96, 12


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('data') / 'shapes_13bands'
    make_shapes(root, ShapesSpec(num_train=8, num_val=2, size=SIZE, bands=BANDS))
    return root


@pytest.fixture(scope='module')
def work_dir(run_tool, root, tmp_path_factory) -> Path:
    """A training in a few steps."""
    folder = tmp_path_factory.mktemp('run')
    arguments = *options(root, STEPS), f'model.data_preprocessor.size=({SIZE},{SIZE})'
    done = run_tool('train.py', CONFIG, '--work-dir', folder, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope='module')
def model(work_dir):
    return load_model(CONFIG, work_dir / f'iter_{STEPS}.pth', 'cpu')


def test_the_loss_falls_and_pictures_show_three_bands(work_dir, root):
    by_step = losses(work_dir)
    first, last = ([by_step[i] for i in steps] for steps in ((1, 2, 3), (10, 11, 12)))
    assert max(last) < 0.8 * min(first), by_step
    names = {path.stem for path in (root / 'ade/images/validation').iterdir()}
    pictures = list((work_dir / 'pictures').iterdir())
    assert {path.stem for path in pictures} == names
    assert np.asarray(Image.open(pictures[0])).std((0, 1)).min() > 20  # in color


def test_whole_images_of_all_bands_are_trained_and_evaluated(work_dir, root, tmp_path):
    opened = [
        dict(type='OpenImage', bands=dict(channels=BANDS, rgb=(0, 6, 12))),
        dict(type='OpenLabels'),
        dict(type='FlipAndTurn'),
        dict(type='PackScene'),
    ]
    loading = dict(batch_size=1, num_workers=0, persistent_workers=False)
    evaluated = dict(dataset=dict(pipeline=opened[:2] + opened[3:]), **loading)
    values = dict(
        _base_=str(ROOT / CONFIG),
        stream=dict(memory='1GiB'),
        load_from=str(work_dir / f'iter_{STEPS}.pth'),
        model=dict(backbone=dict(norm_eval=True)),
        train_dataloader=dict(dataset=dict(pipeline=opened), **loading),
        val_dataloader=evaluated,
        test_dataloader=evaluated,
    )
    config = tmp_path / 'scenes.py'
    config.write_text('\n'.join(f'{name} = {value!r}' for name, value in values.items()))
    limits = {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2, **UNDRAWN}
    train(str(config), str(tmp_path / 'run'), options=dict(data_root=str(root), **limits))
    assert all(np.isfinite(loss) for loss in losses(tmp_path / 'run').values())
    pictures = list((tmp_path / 'run/pictures').iterdir())
    assert len(pictures) == 2
    assert np.asarray(Image.open(pictures[0])).std((0, 1)).min() > 20  # in color


def test_a_folder_of_tiffs_is_predicted_and_what_does_not_fit_is_named(
    model, work_dir, root, tmp_path
):
    source = shutil.copytree(root / 'coco/val2017', tmp_path / 'images')
    paths = sorted(source.iterdir())
    array = tifffile.imread(paths[0])
    tifffile.imwrite(source / 'four.tif', array[..., :4])
    (source / 'cut.tif').write_bytes(paths[0].read_bytes()[:5000])
    Image.fromarray(array[..., :3]).save(source / 'photo.jpg')
    with write_video(source / 'clip.mp4', 8, (SIZE, SIZE)) as add:
        add(array[..., :3])
    weights, large = work_dir / f'iter_{STEPS}.pth', LargeOptions(batch_size=2)
    done, problems, _ = infer(
        CONFIG, weights, [str(source)], tmp_path / 'out', large=large, device='cpu'
    )
    assert done == len(paths) == 2
    reasons = {Path(problem.split(': ')[0]).name: problem for problem in problems}
    assert reasons.keys() == {'four.tif', 'cut.tif', 'photo.jpg', 'clip.mp4'}
    assert f'{multiband.OTHER_BANDS}: 4 instead of channels=13' in reasons['four.tif']
    assert '3 instead of channels=13' in reasons['clip.mp4']
    assert 'not a TIFF file' in reasons['photo.jpg']
    classes = json.loads((tmp_path / 'out/classes.json').read_text())
    assert [image['file_name'] for image in classes['images']] == list(map(str, paths))
    for path in paths:  # a path, an array of any type and the tool give the same
        written = np.asarray(Image.open(tmp_path / f'out/labels/{path.stem}.png'))
        array = tifffile.imread(path)
        for image in (path, array, array.astype(np.uint16), array.astype(np.float64)):
            prediction = model.predict(image)
            np.testing.assert_array_equal(prediction.labels, written)
        assert prediction.image.shape == (SIZE, SIZE, 3) and prediction.image.dtype == np.uint8


@pytest.mark.parametrize(
    ('image', 'message'),
    [
        (np.zeros((40, 40, 3)), r'\(40, 40, 3\) .*: 3 instead of channels=13'),
        (np.full((40, 40, BANDS), np.nan), 'NaN or infinite'),
        ('gone.tif', r'gone\.tif does not exist'),
    ],
)
def test_images_that_do_not_fit_the_model_are_refused(model, image, message):
    with pytest.raises(UserError, match=message):
        model.predict(image)


def test_a_segmentor_for_rgb_predicts_the_same_from_three_of_the_bands(weights, image, tmp_path):
    convert(weights[SEGMENTOR], tmp_path / 'bands.pth', False, BANDS, (0, 6, 12))
    mean, std = np.zeros(BANDS), np.ones(BANDS)
    mean[[0, 6, 12]], std[[0, 6, 12]] = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    normalization = {'mean': mean.tolist(), 'std': std.tolist()}
    changes = {f'model.data_preprocessor.{name}': v for name, v in normalization.items()}
    for_bands = load_model(CONFIG, tmp_path / 'bands.pth', 'cpu', changes)
    expected = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu').predict(image)
    assert len(expected.shares()) > 1
    bands = spread(image, BANDS)
    np.testing.assert_array_equal(for_bands.predict(bands).labels, expected.labels)


def test_a_detector_takes_bands_too(tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(f"""
_base_ = '{Path.cwd()}/configs/mask_rcnn_xcit_n12_16_shapes.py'
model = dict(
    data_preprocessor=dict(
        type='MultibandPreprocessor', base='DetDataPreprocessor', bgr_to_rgb=False,
        mean=[100.0] * 13, std=[50.0] * 13,
    ),
    backbone=dict(arch=dict(_delete_=True, **{SMALL}), out_indices=(0, 1, 2, 3), in_channels=13),
    neck=dict(in_channels=[32] * 4),
)
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadMultiband', channels=13), dict(type='PackDetInputs'),
]))
""")
    weights = save_random_weights(config, tmp_path / 'weights.pth')
    detections = load_model(config, weights, 'cpu').predict(np.random.rand(70, 90, 13) * 255)
    assert len(detections) and detections.masks.shape[1:] == (70, 90)
    assert detections.draw().shape[2] == 3


def test_a_dataset_is_checked_with_the_bands_of_the_config(root, tmp_path):
    copy = shutil.copytree(root, tmp_path / 'shapes')
    four, missing, *_ = sorted((copy / 'ade/images/training').iterdir())
    array = tifffile.imread(four)
    tifffile.imwrite(four, array[..., :4])
    tifffile.imwrite(missing, np.where(array > 200, np.nan, array.astype(np.float32)))
    report = check_dataset(load_config(CONFIG, {'data_root': str(copy)}), ('train', 'val'), 1)
    assert report.images == dict(train=8, val=2)
    kinds = {Path(f.file).name: f.kind for f in report.findings}
    assert kinds == {four.name: multiband.OTHER_BANDS, missing.name: multiband.NOT_FINITE}
