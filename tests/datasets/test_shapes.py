"""The built-in dataset: right annotations, the same by seed, never half written."""

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from xcit_mm import UserError
from xcit_mm.datasets import shapes
from xcit_mm.datasets.shapes import CLASSES, ShapesSpec, draw_image, is_whole, make_shapes

SPEC = ShapesSpec(num_train=3, num_val=2, size=64, seed=5)


def digests(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in root.rglob('*')
        if p.is_file()
    }


@pytest.fixture
def root(tmp_path) -> Path:
    make_shapes(tmp_path / 'shapes', SPEC)
    return tmp_path / 'shapes'


def test_the_same_seed_gives_the_same_files_and_another_seed_others(root, tmp_path):
    make_shapes(tmp_path / 'again', SPEC)
    make_shapes(tmp_path / 'other', ShapesSpec(3, 2, 64, seed=6))
    assert digests(root) == digests(tmp_path / 'again')
    image = 'coco/train2017/000000000001.jpg'
    assert digests(root)[image] != digests(tmp_path / 'other')[image]


def test_an_image_does_not_depend_on_how_many_there_are(root, tmp_path):
    make_shapes(tmp_path / 'more', ShapesSpec(4, 2, 64, seed=5))
    image = 'coco/train2017/000000000003.jpg'
    assert digests(root)[image] == digests(tmp_path / 'more')[image]


def test_a_whole_dataset_is_left_alone_and_a_damaged_one_drawn_anew(root):
    wanted = digests(root)
    assert not make_shapes(root, SPEC)
    (root / 'coco/val2017/000000000004.jpg').write_bytes(b'damaged')
    (root / 'ade/annotations/training/000000000001.png').unlink()
    assert not is_whole(root, SPEC)
    assert make_shapes(root, SPEC)
    assert digests(root) == wanted


def test_a_dataset_of_another_spec_is_drawn_anew(root):
    spec = ShapesSpec(num_train=1, num_val=1, size=64, seed=5)
    assert make_shapes(root, spec)
    assert is_whole(root, spec)


def test_a_file_of_somebody_else_in_the_dataset_is_not_lost(root):
    (root / 'notes.txt').write_text('precious')
    with pytest.raises(UserError, match=r'notes\.txt.*left as it is'):
        make_shapes(root, ShapesSpec(num_train=1, num_val=1, size=64))
    assert (root / 'notes.txt').read_text() == 'precious'


def test_a_linked_folder_is_drawn_where_the_link_points(root, tmp_path):
    (tmp_path / 'link').symlink_to(root)
    spec = ShapesSpec(num_train=1, num_val=1, size=64)
    assert make_shapes(tmp_path / 'link', spec)
    assert (tmp_path / 'link').is_symlink()
    assert is_whole(root, spec)


def test_a_folder_of_somebody_else_is_not_touched(tmp_path):
    (tmp_path / 'holiday.jpg').write_bytes(b'precious')
    with pytest.raises(UserError, match='left as it is'):
        make_shapes(tmp_path, SPEC)
    assert (tmp_path / 'holiday.jpg').read_bytes() == b'precious'


@pytest.mark.parametrize('existing', [False, True])
def test_an_interrupted_drawing_leaves_nothing_half_written(tmp_path, monkeypatch, existing):
    root = tmp_path / 'shapes'
    if existing:
        make_shapes(root, SPEC)
    before = digests(tmp_path)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, 'label_map', interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(root, ShapesSpec(num_train=9, num_val=2, size=64))
    assert digests(tmp_path) == before
    assert list(tmp_path.iterdir()) == ([root] if existing else [])


def test_coco_annotations_are_consistent_with_themselves_and_with_the_labels(shapes_root):
    seen = set()
    for split, ade_split in shapes.SPLITS.items():
        coco = COCO(shapes_root / f'coco/annotations/instances_{split}.json')
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        for image_id, image in coco.imgs.items():
            stem = Path(image['file_name']).stem
            ade = shapes_root / 'ade'
            labels = cv2.imread(str(ade / f'annotations/{ade_split}/{stem}.png'), -1)
            picture = (shapes_root / 'coco' / split / image['file_name']).read_bytes()
            assert picture == (ade / f'images/{ade_split}/{stem}.jpg').read_bytes()
            assert labels.shape == (image['height'], image['width'])

            covered = np.zeros(labels.shape, int)
            for annotation in coco.imgToAnns[image_id]:
                mask = coco.annToMask(annotation).astype(bool)
                covered += mask
                # Polygons of neighbours share an edge; pixels there may go to either.
                assert (labels[mask] == annotation['category_id'] + 1).mean() > 0.9
                assert annotation['area'] == pytest.approx(mask.sum(), rel=0.1, abs=20)
                ys, xs = np.nonzero(mask)
                x, y, w, h = annotation['bbox']
                edges = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
                # A tip thinner than a pixel is in no mask.
                assert np.allclose((x, y, x + w, y + h), edges, atol=3)
                seen.add(annotation['category_id'])
            assert covered.max() <= 2
            assert (labels[covered == 0] == shapes.BACKGROUND_LABEL).mean() > 0.99
    assert seen == {1, 2, 3}


def test_the_paint_follows_the_outlines():
    """Inside and outside of a shape's edge differ in colour: the annotation fits the picture."""
    image, placed = draw_image(np.random.default_rng(3), 160)
    labels = shapes.label_map(placed, 160)
    edges = cv2.Canny(cv2.GaussianBlur(image, (5, 5), 0), 20, 60) > 0
    border = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0
    near_edge = cv2.dilate(edges.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    assert near_edge[border].mean() > 0.8
    assert near_edge[cv2.dilate(border.astype(np.uint8), np.ones((9, 9))) == 0].mean() < 0.3


@pytest.mark.parametrize('wrong', [dict(num_train=0), dict(size=8), dict(seed=-1)])
def test_a_wrong_spec_is_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(UserError, match=f'{name}={value}'):
        ShapesSpec(**wrong)


def test_the_tool_draws_once_and_then_checks(run_tool, tmp_path):
    first = run_tool('make_shapes.py', tmp_path / 'shapes')
    assert first.returncode == 0, first.stderr
    assert 'drawn' in first.stdout
    second = run_tool('make_shapes.py', tmp_path / 'shapes')
    assert 'already there' in second.stdout
    assert is_whole(tmp_path / 'shapes', ShapesSpec())
    (tmp_path / 'shapes' / 'shapes.json').unlink()
    third = run_tool('make_shapes.py', tmp_path / 'shapes')
    assert third.returncode == 2
    assert len(third.stderr.strip().splitlines()) == 1
    assert json.loads((tmp_path / 'shapes/coco/annotations/instances_val2017.json').read_text())


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / 'file').write_text('mine')
    with pytest.raises(UserError, match=r'file is a file: name a folder'):
        make_shapes(tmp_path / 'file', SPEC)
    with pytest.raises(UserError, match=r'file/shapes cannot be made .*name another folder'):
        make_shapes(tmp_path / 'file' / 'shapes', SPEC)
    assert (tmp_path / 'file').read_text() == 'mine'
