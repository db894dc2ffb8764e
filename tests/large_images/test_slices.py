"""Slices are read ahead and predicted in batches, with the same results."""

import re

import numpy as np
import pytest

from xcit_mm.errors import ArgumentError
from xcit_mm.large_images.predict_large import LargeOptions, predict_large
from xcit_mm.progress import Progress
from xcit_mm.scenes.arrays import Array
from xcit_mm.scenes.image_source import WindowError

SLICES = dict(sliced=64, overlap=16)  # three rows of three slices


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


@pytest.mark.parametrize('batch_size', [2, 4])
def test_batches_have_the_results_of_single_slices(
    full_size_segmentor, detector, image, batch_size, monkeypatch
):
    expected = full_size_segmentor.predict_large(image, **SLICES).labels
    objects = detector.predict_large(image, score_thr=0.3, **SLICES)
    assert len(objects) > 0
    sizes = batches_of(detector, monkeypatch)
    options = dict(SLICES, batch_size=batch_size)
    labels = full_size_segmentor.predict_large(image, **options).labels
    assert (labels != expected).mean() < 1e-3  # larger products round in another way
    batched = detector.predict_large(image, score_thr=0.3, **options)
    assert sizes == 2 * ([batch_size] * (9 // batch_size) + [9 % batch_size])
    assert abs(len(batched) - len(objects)) <= 0.02 * len(objects)
    assert np.allclose(batched.scores[:20], objects.scores[:20], atol=1e-4)


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


def test_a_batch_has_a_slice(full_size_segmentor, image):
    with pytest.raises(ArgumentError, match=r'^batch_size=0 is not a positive number$'):
        full_size_segmentor.predict_large(image, batch_size=0, **SLICES)
