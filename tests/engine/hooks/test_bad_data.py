"""A training on data with everything in it that real data has, and an evaluation."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from helpers.planted import BAD_SHARE, plant_ade, plant_coco, plant_coco_evaluation
from helpers.runs import DETECTOR, SEGMENTOR, assert_refused, options, run_script

from xcit_mm.datasets import annotations, images
from xcit_mm.datasets.check import PIPELINE_FAILS

NUM_ITERS = 24  # with 4 images each: four times over the data
OF_IMAGES = (
    images.MISSING,
    images.EMPTY,
    images.UNREADABLE,
    images.CUT_OFF,
    images.OTHER_SIZE,
    images.LABELS_MISSING,
    images.LABELS_UNREADABLE,
    images.LABELS_OF_OTHER_SIZE,
)


@pytest.fixture
def root(shapes_root, tmp_path) -> Path:
    return Path(shutil.copytree(shapes_root, tmp_path / 'shapes'))


def bad_images(output: str) -> Counter:
    """The reasons of the log, by file."""
    lines = re.findall(r'(\S+) cannot be read, another one was taken: (.+)', output)
    assert len({file for file, _ in lines}) == len(lines)  # each is named once
    reasons = [why.removeprefix('BadImageError: ') for _, why in lines]
    kinds = (next(filter(why.startswith, OF_IMAGES), PIPELINE_FAILS) for why in reasons)
    return Counter(kinds)


@pytest.mark.parametrize(
    ('config', 'plant'), [(DETECTOR, plant_coco), (SEGMENTOR, plant_ade)], ids=['coco', 'ade']
)
def test_a_training_ends_and_its_log_counts_what_was_planted(
    run_tool, root, tmp_path, config, plant
):
    planted = plant(root)
    arguments = ['--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)]
    done = run_tool('train.py', config, *arguments, f'max_bad_share={BAD_SHARE}')
    assert done.returncode == 0, done.stderr[-3000:]
    output = done.stdout + done.stderr
    assert 'The training is finished.' in output
    bad = Counter({kind: planted[kind] for kind in (*OF_IMAGES, PIPELINE_FAILS) if kind in planted})
    assert bad_images(output) == bad
    assert f'{bad.total()} of the 24 training samples cannot be read' in output

    of_annotations = {
        kind: count
        for kind, count in planted.items()
        if kind in (*annotations.IN_TRAINING, annotations.NO_OBJECTS)
    }
    listed = {kind: int(count) for count, kind in re.findall(r'(\d+) x ([^(]+) \(', output)}
    assert listed == of_annotations


def test_more_than_the_share_ends_the_training_with_the_list(run_tool, root, tmp_path):
    plant_ade(root)
    arguments = ['--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)]
    done = run_tool('train.py', SEGMENTOR, *arguments)
    assert done.returncode == 2
    assert 'Traceback' not in done.stderr
    assert 'training samples cannot be read, more than the share of 0.01' in done.stderr
    assert re.search(r'\.jpg: BadImageError: it is', done.stderr)
    assert 'tools/check_dataset.py' in done.stderr


def test_lost_annotations_stop_a_training_before_it_begins(run_tool, root, tmp_path):
    planted = plant_coco(root)
    arguments = ['--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)]
    done = run_tool('train.py', DETECTOR, *arguments)
    assert_refused(done, r'instances_train2017.json: ')
    assert f'{planted[annotations.BROKEN_MASK]} x {annotations.BROKEN_MASK}' in done.stderr
    assert 'or allow such a share with max_bad_share' in done.stderr


def test_two_processes_tell_each_other(root, tmp_path):
    """Each has half of the data; the first one writes the log."""
    planted = plant_ade(root)
    output = run_script(
        'tools/dist_train.sh',
        SEGMENTOR,
        2,
        *('--work-dir', tmp_path / 'work', *options(root, NUM_ITERS)),
        f'max_bad_share={BAD_SHARE}',
        OMP_NUM_THREADS=1,
    )
    assert bad_images(output) == Counter(
        {kind: planted[kind] for kind in (*OF_IMAGES, PIPELINE_FAILS) if kind in planted}
    )


@pytest.fixture(scope='module')
def checkpoint(run_tool, shapes_root, tmp_path_factory) -> Path:
    work_dir = tmp_path_factory.mktemp('work')
    done = run_tool('train.py', DETECTOR, '--work-dir', work_dir, *options(shapes_root, 1))
    assert done.returncode == 0, done.stderr[-3000:]
    return work_dir / 'iter_1.pth'


def evaluate(run_tool, checkpoint: Path, root: Path, folder: Path, *more: str):
    arguments = ['--work-dir', folder / 'work', '--show-dir', folder / 'pictures']
    arguments += ['--cfg-options', f'data_root={root}', *more]
    return run_tool('test.py', DETECTOR, checkpoint, *arguments)


def test_a_bad_image_is_an_error_in_an_evaluation_unless_asked(
    run_tool, checkpoint, root, tmp_path
):
    file = sorted((root / 'coco/val2017').iterdir())[1]
    file.write_bytes(file.read_bytes()[:-2000])
    done = evaluate(run_tool, checkpoint, root, tmp_path)
    assert_refused(done, f'{file}: BadImageError: it is cut off')
    assert 'skip_bad_in_evaluation=True' in done.stderr

    done = evaluate(run_tool, checkpoint, root, tmp_path, 'skip_bad_in_evaluation=True')
    assert done.returncode == 0, done.stderr[-3000:]
    assert f'A black image is evaluated in the place of {file}' in done.stdout + done.stderr
    assert len(list((tmp_path / 'pictures').iterdir())) == len(
        list((root / 'coco/val2017').iterdir())
    )


def test_annotations_that_an_evaluation_stops_at_are_said_before_it(
    run_tool, checkpoint, root, tmp_path
):
    planted = plant_coco_evaluation(root)
    stopping = sum(
        count
        for kind, count in planted.items()
        if annotations.IN_EVALUATION.get(kind) == annotations.STOPS
    )
    done = evaluate(run_tool, checkpoint, root, tmp_path)
    assert_refused(done, f'{stopping} annotations cannot be evaluated')
