"""Stores of large images: kills, continuations, and stores that are not as they were left."""

import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.processes import in_child
from helpers.random_weights import SEGMENTOR
from PIL import Image

from xcit_mm import load_model
from xcit_mm.base.errors import UserError
from xcit_mm.base.progress import Progress
from xcit_mm.large.maps import segment as segmentation
from xcit_mm.large.tokens import passes
from xcit_mm.large.tokens.workspace import Workspace
from xcit_mm.predict.fusion import fused_copy
from xcit_mm.predict.large.predict_large import LargeOptions, predict_large

PART = 'part_1_of_1'


@pytest.fixture(scope='module')
def scene(image, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('scene') / 'scene.png'
    Image.fromarray(image).save(path)
    return path


class Counting(Progress):
    """Counts the tiles, and may call a function before one of them."""

    def __init__(self, last: int | None = None, then: Callable[[], None] | None = None) -> None:
        self._last, self._then, self.count = last, then, 0

    def __call__(self, tiles, what):
        for tile in tiles:
            if self.count == self._last:
                self._then()
            self.count += 1
            yield tile


def predict_and_die(model, image: Path, options: LargeOptions, last: int) -> None:
    """Predict an image in another process, which is killed after a number of tiles."""
    progress = Counting(last, lambda: os.kill(os.getpid(), signal.SIGKILL))
    status = in_child(lambda: predict_large(model, image, options, progress))
    assert status == signal.SIGKILL


def test_five_kills_end_in_the_same_bits(segmentor, scene, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, 'TILE_TOKENS', 20)
    monkeypatch.setattr(segmentation, 'MAX_TILE', 64)
    expected = segmentor.predict_large(scene, with_scores=True)
    options = LargeOptions(memory=0, store=tmp_path, with_scores=True)
    state, finished = tmp_path / PART / 'state.json', []
    for tile in (7, 16, 21, 22, 8):  # of 13 passes with 5 tiles, and 3 rows of labels with 3
        predict_and_die(segmentor, scene, options, tile)
        finished.append(json.loads(state.read_text())['finished'])
    assert finished == [
        {'passes': 1},
        {'passes': 4},
        {'passes': 8},
        {'passes': 12},
        {'passes': 13, 'rows of labels': 1},
    ]  # each continued after the one before
    slices = predict_large(
        segmentor, scene, replace(options, with_scores=False, sliced=64, overlap=0)
    )
    slices.workspace.remove()  # which does not touch the run that was killed
    progress = Counting()
    result = predict_large(segmentor, scene, options, progress)
    assert progress.count == 6  # two of three rows of labels
    assert np.array_equal(result.labels, expected.labels)
    assert np.array_equal(result.scores, expected.scores)


def test_the_store_of_something_else_is_refused(segmentor, weights, scene, image, tmp_path):
    options = LargeOptions(memory=0, store=tmp_path)
    predict_and_die(segmentor, scene, options, 8)
    with pytest.raises(
        UserError, match='unfinished run that differs in its image: repeat that run'
    ):
        segmentor.predict_large(image, memory=0, store=tmp_path)
    with pytest.raises(UserError, match='differs in its settings'):
        segmentor.predict_large(scene, memory=0, store=tmp_path, statistics_window=64)
    other = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu')
    other.module.data_preprocessor.mean += 1  # which no checkpoint has
    with pytest.raises(UserError, match='differs in its model'):
        other.predict_large(scene, memory=0, store=tmp_path)


@pytest.fixture(scope='module')
def killed(segmentor, detector, scene, tmp_path_factory) -> dict[str, Path]:
    """Stores of runs that were killed, by the stage that is not finished."""
    folder = tmp_path_factory.mktemp('killed')
    options = {
        'layers': (segmentor, LargeOptions(memory=0), 8),
        'labels': (segmentor, LargeOptions(memory=0, with_scores=True), 15),
        'slices': (detector, LargeOptions(sliced=96, overlap=32), 3),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmentation, 'MAX_TILE', 80)
        for stage, (model, arguments, last) in options.items():
            predict_and_die(model, scene, replace(arguments, store=folder / stage), last)
    return {stage: folder / stage for stage in options}


Damage = Callable[[Path], None]  # changes a file of a store


def text(content: str) -> Damage:
    return lambda path: path.write_text(content)


def resized(factor: float) -> Damage:
    return lambda path: os.truncate(path, int(path.stat().st_size * factor))


def link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / 'elsewhere'))


UNREADABLE, GONE = 'state.json cannot be read', 'is missing or truncated'
NO_STATES = '{"identity": {', 'null'
DAMAGE = [
    ('layers', 'state.json', UNREADABLE, [text(content) for content in NO_STATES]),
    ('layers', 'layer_7.bin', 'layer_7.bin is a link: remove it', [link]),
    ('layers', 'layer_7.bin', GONE, [resized(0.5)]),
    ('labels', 'scores.bin', GONE, [Path.unlink]),
    ('slices', 'objects_1.npz', 'objects_1.npz cannot be read', [resized(0.5)]),
]
CASES = [(*of_file, damage) for *of_file, damages in DAMAGE for damage in damages]


@pytest.mark.parametrize(('stage', 'name', 'sentence', 'damage'), CASES)
def test_a_store_that_is_not_as_it_was_left_is_refused(
    segmentor, detector, scene, killed, tmp_path, monkeypatch, stage, name, sentence, damage
):
    monkeypatch.setattr(segmentation, 'MAX_TILE', 80)
    shutil.copytree(killed[stage], tmp_path / 'store')
    (part,) = (tmp_path / 'store').iterdir()
    damage(part / name)
    options = dict(memory=0, store=tmp_path / 'store', with_scores=stage == 'labels')
    model = segmentor
    if stage == 'slices':
        model, options = detector, dict(store=tmp_path / 'store', sliced=96, overlap=32)
    before = {path.name for path in part.iterdir()}
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        model.predict_large(scene, **options)
    assert 'remove' in str(caught.value)
    assert {path.name for path in part.iterdir()} == before | {'store.lock'}


def test_a_detector_continues(detector, scene, tmp_path):
    options = LargeOptions(memory=0, store=tmp_path, score_thr=0.3)
    predict_and_die(detector, scene, options, 14)  # 13 passes, and then the anchors
    progress = Counting()
    result = predict_large(detector, scene, options, progress)
    assert progress.count == 3  # the anchors, the boxes and the masks
    expected = detector.predict_large(scene, score_thr=0.3)
    assert np.array_equal(result.boxes, expected.boxes)
    assert (tmp_path / PART).exists()
    result.workspace.remove()
    assert not (tmp_path / PART).exists()


def test_a_finished_layer_that_is_not_counted_is_computed_again(segmentor, scene, killed, tmp_path):
    shutil.copytree(killed['layers'], tmp_path / 'store')
    path = tmp_path / 'store' / PART / 'state.json'
    state = json.loads(path.read_text())
    state['finished']['passes'] -= 1  # layer 6 is kept, 7 starts again
    path.write_text(json.dumps(state))
    labels = segmentor.predict_large(scene, memory=0, store=tmp_path / 'store').labels
    assert np.array_equal(labels, segmentor.predict_large(scene).labels)


@pytest.mark.parametrize('name', ['segmentor', pytest.param('detector', marks=pytest.mark.slow)])
def test_slices_continue_after_the_last_finished_row(name, request, scene, tmp_path, monkeypatch):
    model, fuse, copies = request.getfixturevalue(name), fused_copy.fuse, []
    monkeypatch.setattr(fused_copy, 'fuse', lambda *args: copies.append(args) or fuse(*args))
    options = LargeOptions(sliced=64, overlap=16, store=tmp_path)
    for last in (4, 2):  # of three rows with three slices
        predict_and_die(model, scene, options, last)
    assert json.loads((tmp_path / 'sliced/state.json').read_text())['finished'] == {
        'rows of slices': 1
    }
    with pytest.raises(UserError, match='differs in its settings'):
        predict_large(model, scene, replace(options, overlap=32))
    progress = Counting()
    result = predict_large(model, scene, options, progress)
    assert progress.count == 6
    expected = predict_large(model, scene, replace(options, store=None))
    if name == 'segmentor':
        assert np.array_equal(result.labels, expected.labels)
    else:
        assert np.array_equal(result.boxes, expected.boxes)
        assert np.array_equal(result.scores, expected.scores)
        for (window, mask), (other_window, other) in zip(result.masks, expected.masks, strict=True):
            assert window == other_window and np.array_equal(mask, other)
    assert len(copies) <= 1  # one fused copy for all images
    (tmp_path / 'sliced/notes.txt').write_text('of somebody else')
    result.workspace.remove()
    assert [path.name for path in (tmp_path / 'sliced').iterdir()] == ['notes.txt']


def test_two_runs_cannot_use_one_store(segmentor, scene, tmp_path):
    other = Workspace(tmp_path / PART, dict(image='another'))
    with pytest.raises(UserError, match='is used by another run: name another folder'):
        segmentor.predict_large(scene, memory=0, store=tmp_path)
    other.remove()
    assert not (tmp_path / PART).exists()


def test_a_disk_that_becomes_full_during_a_run_loses_nothing(segmentor, scene, tmp_path):
    options = LargeOptions(memory=0, store=tmp_path)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    def fail() -> None:
        with pytest.raises(OSError, match='File too large'):
            predict_large(segmentor, scene, options, Counting(6, fill))

    assert in_child(fail) == 0
    progress = Counting()
    result = predict_large(segmentor, scene, options, progress)
    assert progress.count == 13 - 7 + 1  # the disk was full after the seventh pass
    assert np.array_equal(result.labels, segmentor.predict_large(scene).labels)


def test_an_image_that_changes_during_a_run_or_after_a_kill_is_refused(segmentor, scene, tmp_path):
    copy = Path(shutil.copy(scene, tmp_path))
    options = LargeOptions(memory=0, store=tmp_path / 'store')
    progress = Counting(3, lambda: os.utime(copy, (1, 1)))
    with pytest.raises(UserError, match='has changed while it was read: run the'):
        predict_large(segmentor, copy, options, progress)
    assert not (tmp_path / 'store').exists()  # it would belong to no image
    predict_and_die(segmentor, copy, options, 2)
    os.utime(copy, (2, 2))
    with pytest.raises(UserError, match='differs in its image'):
        predict_large(segmentor, copy, options)


def test_an_error_after_the_prediction_keeps_the_store_unless_the_image_has_changed(
    segmentor, scene, tmp_path, monkeypatch
):
    copy = Path(shutil.copy(scene, tmp_path))
    options, counting = LargeOptions(memory=0, store=tmp_path / 'store'), Counting()

    def fail(*_) -> None:
        raise KeyboardInterrupt('stop')

    def change(*_) -> None:
        os.utime(copy, (1, 1))
        raise UserError('it cannot be read')

    overview = 'xcit_mm.predict.large.predict_large.overview'
    monkeypatch.setattr(overview, fail)
    with pytest.raises(KeyboardInterrupt) as caught:
        predict_large(segmentor, copy, options)
    monkeypatch.setattr(overview, change)
    with pytest.raises(UserError, match='has changed while it was read: run the'):
        predict_large(segmentor, copy, options, counting)
    assert counting.count == 0  # everything was finished
    assert not (tmp_path / 'store').exists()
    del caught  # until here, its traceback kept the objects of the failed call


def test_a_failed_pass_lets_another_call_use_the_store(segmentor, scene, tmp_path, monkeypatch):
    def fail(*args) -> None:
        raise UserError('planted')

    with monkeypatch.context() as patch:
        patch.setattr(passes, 'sums_of_products', fail)
        with pytest.raises(UserError, match='planted') as caught:
            segmentor.predict_large(scene, memory=0, store=tmp_path)
    segmentor.predict_large(scene, memory=0, store=tmp_path)
    del caught  # until here, its traceback kept the objects of the failed call


@pytest.mark.parametrize(
    ('tile', 'name', 'damage', 'sentence'),
    [
        (5, 'layer_4.bin', resized(0.5), GONE),
        (5, 'layer_4.bin', lambda path: shutil.rmtree(path.parent), GONE),
        (5, 'layer_6.bin', Path.mkdir, f'{PART} cannot be written to'),
    ],
)
def test_a_store_that_changes_during_a_run_is_refused(
    segmentor, scene, tmp_path, monkeypatch, tile, name, damage, sentence
):
    monkeypatch.setattr(segmentation, 'MAX_TILE', 80)
    progress = Counting(tile, lambda: damage(tmp_path / PART / name))
    with pytest.raises(UserError, match=sentence):
        predict_large(segmentor, scene, LargeOptions(memory=0, store=tmp_path), progress)
