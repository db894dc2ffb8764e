"""Drawings with a key: only the key decides the classes, and every file agrees with the labels."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from pycocotools.coco import COCO

from benchmarks.context import CONTEXT_CLASSES, ContextSpec, make_context
from benchmarks.mosaic import SIZE

SPEC = ContextSpec(num_train=4, num_val=2, columns=3, seed=5)
SIDE = SPEC.columns * SIZE
SPLITS = {'training': (1, 2, 3, 4), 'validation': (5, 6)}


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        assert file.block_shapes == [(SIZE, SIZE)] * file.count
        return file.read()


def key_of(first: np.ndarray, second: np.ndarray) -> tuple[slice, slice]:
    """Return the rows and columns in which two images (bands, H, W) differ."""
    ys, xs = np.nonzero((first != second).any(0))
    return slice(ys.min(), ys.max() + 1), slice(xs.min(), xs.max() + 1)


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('context') / 'drawn'
    make_context(root, SPEC)
    return root


def test_two_images_differ_in_their_key_only_and_have_other_classes(root):
    for split, numbers in SPLITS.items():
        for number in numbers[::2]:
            names = [f'{split}/{n:06d}.tif' for n in (number, number + 1)]
            a, b = (read(root / 'images' / name) for name in names)
            of_a, of_b = (read(root / 'labels' / name)[0] for name in names)
            assert a.shape == b.shape == (3, SIDE, SIDE) and of_a.shape == (SIDE, SIDE)
            np.testing.assert_array_equal(of_b, 2 * of_a)
            assert set(np.unique(of_a)) == {0, 1}

            ys, xs = key_of(a, b)
            assert ys.stop - ys.start == xs.stop - xs.start == SIZE
            at = ys.start // SIZE, xs.start // SIZE
            assert set(at) <= {0, SPEC.columns - 1}  # a corner of the image
            drawing = tuple(slice(i * SIZE, (i + 1) * SIZE) for i in at)
            assert not of_a[drawing].any() and not of_b[drawing].any()
    used = {path.name for path in root.rglob('*.tif')}
    assert used == {f'{n:06d}.tif' for numbers in SPLITS.values() for n in numbers}


def test_the_objects_are_those_of_the_labels(root):
    for split, numbers in SPLITS.items():
        coco = COCO(root / f'annotations/instances_{split}.json')
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CONTEXT_CLASSES)
        assert [*coco.imgs] == [*numbers]
        for image_id, image in coco.imgs.items():
            labels = read(root / 'labels' / split / image['file_name'])[0]
            assert labels.shape == (image['height'], image['width'])
            covered = np.zeros(labels.shape, bool)
            for annotation in coco.imgToAnns[image_id]:
                mask = coco.annToMask(annotation) > 0
                assert (labels[mask] == annotation['category_id']).mean() > 0.9
                covered |= mask
            assert (labels[~covered] == 0).mean() > 0.99


def test_images_depend_on_the_seed_and_not_on_their_number(tmp_path):
    drawn = []
    for spec in ((2, 0, 2, 5), (1, 0, 2, 5), (1, 0, 2, 6)):
        make_context(tmp_path / str(spec), ContextSpec(*spec))
        drawn.append(read(tmp_path / str(spec) / 'images/training/000001.tif'))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
