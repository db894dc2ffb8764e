"""Slices are read ahead and predicted in batches, with the same results."""

import re

import numpy as np
import pytest
import torch

from xcit_mm.base.geometry import whole
from xcit_mm.base.progress import Progress, silent
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.image_source import WindowError
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.tokens.workspace import Workspace
from xcit_mm.predict.large.large_options import LargeOptions
from xcit_mm.predict.large.predict_large import predict_large
from xcit_mm.predict.large.slices import Slices, slices_of
from xcit_mm.predict.results import Segmentation

SLICES = dict(sliced=64, overlap=16, batch_size=1)  # three rows of three slices


class Notes(Progress):
    def __init__(self):
        self.sentences = []

    def report(self, sentence):
        self.sentences.append(sentence)


def batches_of(model, monkeypatch):
    sizes, predict = [], type(model).predict_batch
    monkeypatch.setattr(
        type(model),
        'predict_batch',
        lambda self, images: sizes.append(len(images)) or predict(self, images),
    )
    return sizes


def test_batches_have_the_results_of_single_slices(
    full_size_segmentor, detector, image, monkeypatch
):
    expected = full_size_segmentor.predict_large(image, **SLICES).labels
    objects = detector.predict_large(image, score_thr=0.3, **SLICES)
    assert len(objects) > 0
    sizes = batches_of(detector, monkeypatch)
    options = SLICES | dict(batch_size=4)
    labels = full_size_segmentor.predict_large(image, **options).labels
    assert (labels != expected).mean() < 1e-3  # larger products round in another way
    batched = detector.predict_large(image, score_thr=0.3, **options)
    assert sizes == 2 * [4, 4, 1]
    assert abs(len(batched) - len(objects)) <= 0.02 * len(objects)
    assert np.allclose(batched.scores[:20], objects.scores[:20], atol=1e-4)


class Batched:
    """Predicts labels that depend on the whole batch."""

    def prepare(self, image):
        return image

    def predict_batch(self, images):
        label = sum(int(image[0, 0, 0]) for image in images) % 250
        return [
            Segmentation(image, np.full(image.shape[:2], label, np.uint8), (), ())
            for image in images
        ]


@pytest.mark.parametrize('done', [1, 2])
def test_batches_are_the_same_after_an_interruption(done, image, full_size_segmentor):
    preprocessor = full_size_segmentor.module.data_preprocessor
    pixels = NormalizedImage(Array(image, 'the array'), preprocessor, (), None)
    windows = slices_of(image.shape[:2], 40, 8)

    def label(workspace):
        slices = Slices(Batched(), pixels, windows, 4, workspace, silent)
        return slices.label('labels', torch.uint8).array()

    expected = label(Workspace())
    workspace = Workspace()
    first_rows = [s for s in windows if s[0].rows.start < windows[-1][0].rows.start * done // 3]
    store = workspace.open('labels', slice(0, image.shape[0]), (image.shape[1], 1), torch.uint8)
    store.write(whole(image.shape[:2]), torch.from_numpy(expected.copy()))
    finished = len({window.rows.start for window, _ in first_rows})
    last = max(middle.rows.stop for _, middle in first_rows)
    store.array()[last:] = 0
    workspace.finish('rows of slices', finished)
    workspace.open = lambda *_: store
    assert np.array_equal(label(workspace), expected)


def test_cut_objects_are_counted(detector, image):
    notes = Notes()
    predict_large(detector, image, LargeOptions(**SLICES, score_thr=0.3), notes)
    pattern = r'.*: slices cut (\d+) of (\d+) objects; after parts were joined, (\d+) of (\d+) .*'
    [counts] = [
        match.groups() for match in map(re.compile(pattern).match, notes.sentences) if match
    ]
    cut, found, still_cut, kept = map(int, counts)
    assert found > kept and found >= cut > still_cut


@pytest.mark.parametrize('options', [SLICES, {}], ids=['slices', 'stream'])
def test_an_error_of_reading_ahead_is_raised(full_size_segmentor, image, options, monkeypatch):
    read = Array._read

    def fail(self, window):
        if window.rows.stop > 100:
            raise OSError('the disk is gone')
        return read(self, window)

    monkeypatch.setattr(Array, '_read', fail)
    with pytest.raises(WindowError, match=r'read \(OSError: the disk is gone\): copy or repair'):
        full_size_segmentor.predict_large(image, **options)
