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
import torch
from helpers.in_process import call_tool
from helpers.random_weights import SEGMENTOR
from PIL import Image

from xcit_mm import load_model
from xcit_mm.errors import UserError
from xcit_mm.fusion import fused_copy
from xcit_mm.large_images import passes
from xcit_mm.large_images import segment as segmentation
from xcit_mm.large_images.predict_large import LargeOptions, predict_large
from xcit_mm.large_images.workspace import Workspace
from xcit_mm.progress import Progress

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


def in_child(function: Callable[[], None]) -> int:
    """Call a function in another process, and return the status of its end."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


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


def test_tiles_of_a_single_token_are_stored(segmentor, image, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, 'PATCH_TILE', (4, 4))  # of 5 x 5 tokens
    pixels = image[:70, :70]
    stored = segmentor.predict_large(pixels, memory=0, store=tmp_path)
    assert np.array_equal(stored.labels, segmentor.predict_large(pixels).labels)


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


def text(content: str | bytes) -> Callable[[Path], None]:
    """Replace a file."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda path: path.write_bytes(data)


def state(**changes: object) -> Callable[[Path], None]:
    """Replace members of a state; Infinity and NaN are valid in Python's JSON."""

    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def finished(by: int, stage: str = 'passes') -> Callable[[Path], None]:
    """Count more or less of a stage as finished."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text())
        content['finished'][stage] += by
        path.write_text(json.dumps(content))

    return change


def array(dtype: str, change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    """Change some values of a file."""

    def apply(path: Path) -> None:
        values = np.fromfile(path, dtype)
        change(values)
        values.tofile(path)

    return apply


def bit(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    array(
        'uint8', lambda values: values.__setitem__(len(values) // 2, values[len(values) // 2] ^ 4)
    )(path)


def resized(factor: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * factor))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / 'elsewhere'))


UNREADABLE, NO_STATE = 'state.json cannot be read', 'state.json is not the state of a run'
CHANGED, GONE = 'does not hold what was written to it', 'is missing or truncated'
NOT_A_FILE, DIFFERENT = 'is not a regular file: remove it', 'an unfinished run that differs in its'
DAMAGE = [
    ('layers', 'state.json', text(''), UNREADABLE),
    ('layers', 'state.json', text(b'\xff\xfe'), UNREADABLE),
    ('layers', 'state.json', text('{"identity": {'), UNREADABLE),
    ('layers', 'state.json', text('[' * 10**5), UNREADABLE),
    ('layers', 'state.json', text('1' * 10**5), UNREADABLE),
    ('layers', 'state.json', text(' ' * 2**21), UNREADABLE),
    ('layers', 'state.json', pipe, NOT_A_FILE),
    ('layers', 'state.json', folder, NOT_A_FILE),
    ('layers', 'state.json', link, 'state.json is a link'),
    ('layers', 'state.json', text('[]'), NO_STATE),
    ('layers', 'state.json', text('{}'), NO_STATE),
    ('layers', 'state.json', text('null'), NO_STATE),
    ('layers', 'state.json', text('7'), NO_STATE),
    ('layers', 'state.json', text('{"identity": {"version": 1}, "finished": 8}'), NO_STATE),
    ('layers', 'state.json', state(more=1), NO_STATE),
    ('layers', 'state.json', state(identity=[]), NO_STATE),
    ('layers', 'state.json', state(identity={}), DIFFERENT),
    ('layers', 'state.json', state(finished=8), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes='8')), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=7.5)), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=True)), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=[8])), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=-1)), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=2**63)), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=float('inf'))), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=float('nan'))), NO_STATE),
    ('layers', 'state.json', state(finished=dict(passes=2**63 - 1)), 'has no checksum of layer_'),
    ('layers', 'state.json', state(checksums={}), 'has no checksum of layer_4.bin'),
    ('layers', 'state.json', state(checksums={'layer_4.bin': 2**64}), NO_STATE),
    ('layers', 'state.json', state(checksums={'layer_4.bin': 1}), CHANGED),
    ('layers', 'state.json', finished(1), 'has no checksum of layer_8.bin'),
    ('layers', 'state.json', finished(99), 'has no checksum of layer_8.bin'),
    ('layers', 'layer_7.bin', Path.unlink, GONE),
    ('layers', 'layer_7.bin', resized(0), GONE),
    ('layers', 'layer_7.bin', resized(0.5), GONE),
    ('layers', 'layer_7.bin', resized(2), GONE),
    ('layers', 'layer_7.bin', pipe, NOT_A_FILE),
    ('layers', 'layer_7.bin', folder, NOT_A_FILE),
    ('layers', 'layer_7.bin', link, 'layer_7.bin is a link'),
    ('layers', 'layer_7.bin', bit, CHANGED),
    ('layers', 'layer_4.bin', bit, CHANGED),
    ('layers', 'layer_6.bin', array('f4', lambda v: v.__setitem__(5, np.nan)), CHANGED),
    ('layers', 'layer_6.bin', array('f4', lambda v: v.__setitem__(slice(512), 0)), CHANGED),
    ('layers', 'layer_7.bin', array('f4', lambda v: np.negative(v, v)), CHANGED),
    ('layers', 'layer_7.bin', array('f4', lambda v: v.__imul__(2)), CHANGED),
    ('layers', 'layer_7.bin', array('f4', lambda v: v[:256].sort()), CHANGED),
    ('layers', 'layer_8.bin', folder, NOT_A_FILE),
    ('layers', 'store.lock', pipe, NOT_A_FILE),
    ('layers', 'store.lock', link, 'store.lock is a link'),
    ('layers', '', link, 'part_1_of_1 is a link'),
    ('labels', 'state.json', finished(1), 'has no checksum of layer_13.bin'),
    ('labels', 'state.json', finished(1, 'rows of labels'), CHANGED),
    ('labels', 'state.json', finished(99, 'rows of labels'), CHANGED),
    ('labels', 'state.json', state(finished={'passes': 13, 'rows of labels': 2**62}), CHANGED),
    ('labels', 'layer_12.bin', bit, CHANGED),
    ('labels', 'labels.bin', array('u1', lambda v: v.__setitem__(9, 200)), CHANGED),
    ('labels', 'labels.bin', array('u1', lambda v: v.__setitem__(9, v[9] ^ 1)), CHANGED),
    ('labels', 'labels.bin', resized(0.9), GONE),
    ('labels', 'scores.bin', array('u1', lambda v: v.__setitem__(0, v[0] ^ 1)), CHANGED),
    ('labels', 'scores.bin', Path.unlink, GONE),
    ('slices', 'objects_1.npz', bit, CHANGED),
    ('slices', 'objects_1.npz', resized(0.5), CHANGED),
    ('slices', 'objects_1.npz', Path.unlink, 'objects_1.npz cannot be read'),
    ('slices', 'objects_1.npz', pipe, NOT_A_FILE),
    ('slices', 'state.json', finished(1, 'rows of slices'), 'objects_2.npz cannot be read'),
    ('slices', 'state.json', state(checksums={}), 'has no checksum of objects_1.npz'),
]


@pytest.mark.parametrize(('stage', 'name', 'damage', 'sentence'), DAMAGE)
def test_a_store_that_is_not_as_it_was_left_is_refused(
    segmentor, detector, scene, killed, tmp_path, monkeypatch, stage, name, damage, sentence
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


def test_the_tool_names_a_damaged_store(weights, scene, killed, tmp_path, monkeypatch, capfd):
    shutil.copytree(killed['layers'] / PART, tmp_path / 'scene' / PART)
    bit(tmp_path / 'scene' / PART / 'layer_6.bin')
    typed = SEGMENTOR, weights[SEGMENTOR], scene, '--stream', '--memory', '1KiB'
    typed += '--store', tmp_path, '--device', 'cpu', '--out', tmp_path / 'out'
    code, _, said = call_tool(monkeypatch, capfd, 'infer.py', *typed)
    assert (code, 'Traceback' in said) == (2, False)
    assert f'layer_6.bin {CHANGED}: remove {tmp_path}/scene/{PART}, and start again' in said


def test_a_finished_layer_that_is_not_counted_is_computed_again(segmentor, scene, killed, tmp_path):
    shutil.copytree(killed['layers'], tmp_path / 'store')
    finished(-1)(tmp_path / 'store' / PART / 'state.json')  # layer 6 is kept, 7 starts again
    labels = segmentor.predict_large(scene, memory=0, store=tmp_path / 'store').labels
    assert np.array_equal(labels, segmentor.predict_large(scene).labels)


@pytest.mark.parametrize('name', ['segmentor', 'detector'])
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


@pytest.mark.parametrize(
    ('tile', 'name', 'damage', 'sentence'),
    [
        (5, 'layer_4.bin', bit, CHANGED),  # while the next layer reads it
        (8, 'layer_4.bin', bit, CHANGED),  # before the labels read it
        (14, 'labels.bin', bit, CHANGED),  # before they are returned
        (5, 'layer_4.bin', resized(0.5), GONE),
        (5, 'layer_4.bin', Path.unlink, GONE),
        (5, 'layer_4.bin', lambda path: shutil.rmtree(path.parent), GONE),
        (5, 'layer_6.bin', Path.mkdir, f'{PART} cannot be written to'),
        (5, 'layer_5.bin', lambda path: path.unlink() or path.mkdir(), 'layer_5.bin'),
    ],
)
def test_a_store_that_changes_during_a_run_is_refused(
    segmentor, scene, tmp_path, monkeypatch, tile, name, damage, sentence
):
    monkeypatch.setattr(segmentation, 'MAX_TILE', 80)
    progress = Counting(tile, lambda: damage(tmp_path / PART / name))
    with pytest.raises(UserError, match=sentence):
        predict_large(segmentor, scene, LargeOptions(memory=0, store=tmp_path), progress)


def test_an_image_that_changes_during_a_run_or_after_a_kill_is_refused(segmentor, scene, tmp_path):
    copy = Path(shutil.copy(scene, tmp_path))
    options = LargeOptions(memory=0, store=tmp_path / 'store')
    progress = Counting(3, lambda: os.utime(copy, (1, 1)))
    with pytest.raises(UserError, match='has changed while it was predicted: predict it'):
        predict_large(segmentor, copy, options, progress)
    assert not (tmp_path / 'store').exists()  # it would belong to no image
    predict_and_die(segmentor, copy, options, 2)
    os.utime(copy, (2, 2))
    with pytest.raises(UserError, match='differs in its image'):
        predict_large(segmentor, copy, options)


def test_a_failed_pass_lets_another_call_use_the_store(segmentor, scene, tmp_path, monkeypatch):
    def fail(*args) -> None:
        raise UserError('planted')

    with monkeypatch.context() as patch:
        patch.setattr(passes, 'sums_of_products', fail)
        with pytest.raises(UserError, match='planted') as caught:
            segmentor.predict_large(scene, memory=0, store=tmp_path)
    segmentor.predict_large(scene, memory=0, store=tmp_path)
    del caught  # until here, its traceback kept the objects of the failed call
