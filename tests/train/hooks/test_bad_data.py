"""Trainings and evaluations on data with everything wrong in it that real data has."""

import re
from collections import Counter

import pytest
from helpers.planted import (
    BAD_SHARE,
    PIPELINE_FAILS,
    edited,
    plant_ade,
    plant_coco,
    plant_coco_evaluation,
)
from helpers.runs import DETECTOR, SEGMENTOR, options, run_script
from helpers.toy import toy_runner
from mmengine.registry import DefaultScope

from xcit_mm import UserError
from xcit_mm.data.audit import annotations
from xcit_mm.data.transforms import decode as images
from xcit_mm.train.run import test as evaluate
from xcit_mm.train.run import train

NUM_ITERS = 6  # of 4 images each: all of the data once
FLIP = 'train_dataloader.dataset.pipeline.2.prob=1.0'  # an image that is one pixel wide then fails
OF_IMAGES = (images.MISSING, images.EMPTY, images.UNREADABLE, images.CUT_OFF, images.OTHER_SIZE)
OF_IMAGES += (images.LABELS_MISSING, images.LABELS_UNREADABLE, images.LABELS_OF_OTHER_SIZE)


def assert_bad_images_logged(output: str, planted: dict[str, int]) -> None:
    """Each bad image is named once, with its reason."""
    lines = re.findall(r'(\S+) cannot be read, another is used: (.+)', output)
    assert len({file for file, _ in lines}) == len(lines)
    kinds = (next(filter(why.startswith, OF_IMAGES), PIPELINE_FAILS) for _, why in lines)
    expected = {k: n for k, n in planted.items() if k in (*OF_IMAGES, PIPELINE_FAILS)}
    assert Counter(kinds) == expected
    assert f'{sum(expected.values())} of the 24 training samples cannot be read' in output


@pytest.mark.slow
def test_a_training_on_bad_data_ends_and_logs_all_of_it(run_tool, root, tmp_path):
    planted = plant_coco(root)
    arguments = ['--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)]
    done = run_tool('train.py', DETECTOR, *arguments, f'max_bad_share={BAD_SHARE}', FLIP)
    assert done.returncode == 0, done.stderr[-3000:]
    output = done.stdout + done.stderr
    assert_bad_images_logged(output, planted)
    logged = {kind: int(count) for count, kind in re.findall(r'(\d+) x ([^(]+) \(', output)}
    assert logged == {k: n for k, n in planted.items() if k in annotations.CONSEQUENCES}


@pytest.mark.slow
def test_processes_share_the_bad_images_that_they_find(root, tmp_path):
    planted = plant_ade(root)
    arguments = ['--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)]
    arguments += [f'max_bad_share={BAD_SHARE}', FLIP]
    output = run_script('tools/dist_train.sh', SEGMENTOR, 2, *arguments, OMP_NUM_THREADS=1)
    assert_bad_images_logged(output, planted)


@pytest.fixture
def run_arguments(root, tmp_path) -> dict:
    """Keywords of ``train`` and ``test`` for runs in this process."""
    DefaultScope._instance_dict.clear()  # mmengine keeps one for each config and second
    loaders = [f'{split}_dataloader' for split in ('train', 'val', 'test')]
    options = {'data_root': str(root), 'env_cfg.mp_cfg.mp_start_method': 'fork'}
    options |= {f'{loader}.num_workers': 0 for loader in loaders}
    options |= {f'{loader}.persistent_workers': False for loader in loaders}
    return dict(work_dir=str(tmp_path / 'work'), options=options)


def test_a_training_stops_before_its_first_step_if_many_annotations_are_lost(root, run_arguments):
    planted = plant_coco(root)
    lost = f'{planted[annotations.BROKEN_MASK]} x {annotations.BROKEN_MASK}'
    message = rf'train2017\.json: .*{lost}.* or allow this share with max_bad_share'
    with pytest.raises(UserError, match=message):
        train(DETECTOR, **run_arguments)


def test_a_training_without_anything_to_learn_is_refused(root, run_arguments):
    with edited(root / 'coco/annotations/instances_train2017.json') as content:
        for annotation in content['annotations']:
            annotation['iscrowd'] = 1
    with pytest.raises(UserError, match='none of the 24 images of train has an object'):
        train(DETECTOR, **run_arguments)


def test_an_evaluation_that_would_fail_is_refused_before_the_training(root, run_arguments):
    load = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
    pipeline = [dict(type='LoadImage'), load, dict(type='PackDetInputs')]
    run_arguments['options']['val_dataloader.dataset.pipeline'] = pipeline
    message = r'val data: .*\.jpg: without scale_factor, .* does not resize: add'
    with pytest.raises(UserError, match=message):
        train(DETECTOR, **run_arguments)


def test_a_training_stops_at_too_many_bad_samples(tmp_path):
    runner = toy_runner(tmp_path, max_bad_share=0.1, **{'train_dataloader.dataset.bad': (1, 4, 6)})
    message = (
        r'2 of the 10 training samples cannot be read, more than the share of 0\.1 that '
        r'max_bad_share .*, or fix the transform, which fails .*:\n    \d\.png: ValueError: pl'
    )
    with pytest.raises(UserError, match=message):
        runner.train()


def test_an_evaluation_stops_at_bad_data(root, run_arguments, weights):
    checkpoint = str(weights[DETECTOR])
    file = sorted((root / 'coco/val2017').iterdir())[1]
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(UserError, match=rf'{file}: it is cut off'):
        evaluate(DETECTOR, checkpoint, **run_arguments)
    plant_coco_evaluation(root)
    with pytest.raises(UserError, match='4 annotations cannot be evaluated'):
        evaluate(DETECTOR, checkpoint, **run_arguments)
