"""The built-in dataset: correct annotations, reproducible images, and no half-written folder."""

import hashlib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.in_process import call_tool
from pycocotools.coco import COCO

from xcit_mm import UserError
from xcit_mm.datasets import shapes
from xcit_mm.datasets.shapes import CLASSES, ShapesSpec, draw_image, make_shapes

SPEC = ShapesSpec(num_train=3, num_val=2, size=64, seed=5)


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob('*')
        if path.is_file()
    }


@pytest.fixture
def root(tmp_path) -> Path:
    make_shapes(tmp_path / 'shapes', SPEC)
    return tmp_path / 'shapes'


def test_images_depend_on_the_seed_and_not_on_their_number(root, tmp_path):
    image = 'coco/train2017/000000000001.jpg'
    make_shapes(tmp_path / 'more', ShapesSpec(4, 2, 64, seed=5))
    make_shapes(tmp_path / 'seed', ShapesSpec(3, 2, 64, seed=6))
    assert digests(root)[image] == digests(tmp_path / 'more')[image]
    assert digests(root)[image] != digests(tmp_path / 'seed')[image]


def test_a_complete_dataset_is_kept_and_a_damaged_or_different_one_is_replaced(root):
    complete = digests(root)
    assert not make_shapes(root, SPEC)
    (root / 'coco/val2017/000000000004.jpg').write_bytes(b'damaged')
    (root / 'ade/annotations/training/000000000001.png').unlink()
    assert make_shapes(root, SPEC)
    assert digests(root) == complete
    spec = ShapesSpec(num_train=1, num_val=1, size=64)
    assert make_shapes(root, spec) and not make_shapes(root, spec)


@pytest.mark.parametrize('name', ['notes.txt', 'shapes/notes.txt'])
def test_other_files_are_not_lost(root, tmp_path, name):
    (tmp_path / name).write_text('precious')
    with pytest.raises(UserError, match='nothing was changed: name another folder'):
        make_shapes((tmp_path / name).parent, ShapesSpec(num_train=1, num_val=1, size=64))
    assert (tmp_path / name).read_text() == 'precious'


def test_a_file_instead_of_the_folder_is_refused(tmp_path):
    (tmp_path / 'file').write_text('mine')
    for path in ('file', 'file/shapes'):
        with pytest.raises(UserError, match='file'):
            make_shapes(tmp_path / path, SPEC)
    assert (tmp_path / 'file').read_text() == 'mine'


@pytest.mark.parametrize('exists', [False, True])
def test_an_interruption_leaves_nothing_half_written(tmp_path, monkeypatch, exists):
    if exists:
        make_shapes(tmp_path / 'shapes', SPEC)
    before = digests(tmp_path)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, 'label_map', interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(tmp_path / 'shapes', ShapesSpec(num_train=9, num_val=2, size=64))
    assert digests(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == exists


def test_annotations_of_coco_and_ade_agree(shapes_root):
    categories = set()
    for split, ade_split in shapes.SPLITS.items():
        coco = COCO(shapes_root / f'coco/annotations/instances_{split}.json')
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        for image_id, image in coco.imgs.items():
            stem, ade = Path(image['file_name']).stem, shapes_root / 'ade'
            labels = cv2.imread(str(ade / f'annotations/{ade_split}/{stem}.png'), -1)
            picture = (shapes_root / 'coco' / split / image['file_name']).read_bytes()
            assert picture == (ade / f'images/{ade_split}/{stem}.jpg').read_bytes()
            assert labels.shape == (image['height'], image['width'])

            covered = np.zeros(labels.shape, int)
            for annotation in coco.imgToAnns[image_id]:
                mask = coco.annToMask(annotation).astype(bool)
                covered += mask
                # Polygons of neighbours share an edge; pixels there may belong to either.
                assert (labels[mask] == annotation['category_id'] + 1).mean() > 0.9
                assert annotation['area'] == pytest.approx(mask.sum(), rel=0.1, abs=20)
                ys, xs = np.nonzero(mask)
                x, y, w, h = annotation['bbox']
                edges = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
                # A tip thinner than a pixel is not in the mask.
                assert np.allclose((x, y, x + w, y + h), edges, atol=3)
                categories.add(annotation['category_id'])
            assert covered.max() <= 2
            assert (labels[covered == 0] == shapes.BACKGROUND_LABEL).mean() > 0.99
    assert categories == {1, 2, 3}


def test_the_colours_change_at_the_annotated_outlines():
    image, objects = draw_image(np.random.default_rng(3), 160)
    labels = shapes.label_map(objects, 160)
    edges = cv2.Canny(cv2.GaussianBlur(image, (5, 5), 0), 20, 60) > 0
    border = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0
    near_edge = cv2.dilate(edges.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    assert near_edge[border].mean() > 0.8
    assert near_edge[cv2.dilate(border.astype(np.uint8), np.ones((9, 9))) == 0].mean() < 0.3


@pytest.mark.parametrize('name', ['num_train', 'size', 'seed'])
def test_a_wrong_spec_is_refused(name):
    with pytest.raises(UserError, match=f'{name}=-1'):
        ShapesSpec(**{name: -1})


def test_the_tool_draws_once_and_then_checks(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(shapes, 'ShapesSpec', partial(ShapesSpec, 3, 2, 64))
    for state in ('drawn', 'already there'):
        code, output, _ = call_tool(monkeypatch, capfd, 'make_shapes.py', tmp_path / 'shapes')
        assert code == 0 and state in output
