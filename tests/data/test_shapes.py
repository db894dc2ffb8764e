"""The built-in dataset: correct annotations, reproducible images, and no half-written folder."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.in_process import call_tool
from pycocotools.coco import COCO

from xcit_mm import UserError
from xcit_mm.data.drawings import shapes
from xcit_mm.data.drawings.shapes import CLASSES, ShapesSpec, draw_image, make_shapes
from xcit_mm.data.transforms.multiband import LoadMultiband

SPEC = ShapesSpec(num_train=3, num_val=2, size=64, seed=5)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob('*') if path.is_file()}


def test_images_depend_on_the_seed_and_not_on_their_number(tmp_path):
    drawn = []
    for spec in (SPEC, ShapesSpec(4, 2, 64, seed=5), ShapesSpec(3, 2, 64, seed=6)):
        make_shapes(tmp_path / str(spec), spec)
        drawn.append((tmp_path / str(spec) / 'coco/train2017/000000000001.jpg').read_bytes())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_dataset_is_drawn_once_and_nothing_else_is_replaced(tmp_path):
    root = tmp_path / 'shapes'
    root.mkdir()
    assert make_shapes(root, SPEC)
    assert not make_shapes(root, SPEC)
    (tmp_path / 'file').write_text('mine')
    before = contents(tmp_path)
    for path in (root, tmp_path, tmp_path / 'file', tmp_path / 'file/shapes'):
        with pytest.raises(UserError, match='name another'):
            make_shapes(path, ShapesSpec(num_train=1, num_val=1, size=64))
    assert contents(tmp_path) == before


def check_segments(annotation: dict, folder: Path, labels: np.ndarray) -> None:
    """Every pixel belongs to a segment of the class that ADE20k's labels have there."""
    png = cv2.imread(str(folder / annotation['file_name']))
    assert not png[..., :2].any()  # of blue, green, red
    covered = 0
    for segment in annotation['segments_info']:
        mask = png[..., 2] == segment['id']
        assert segment['area'] == mask.sum()
        assert segment['bbox'] == list(cv2.boundingRect(mask.astype(np.uint8)))
        assert (labels[mask] == segment['category_id'] % 4 + 1).all()
        covered += segment['area']
    assert covered == labels.size


def test_annotations_of_coco_and_ade_agree(shapes_root):
    categories = set()
    for split, ade_split in shapes.SPLITS.items():
        coco = COCO(shapes_root / f'coco/annotations/instances_{split}.json')
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        panoptic_dir = shapes_root / f'coco/annotations/panoptic_{split}'
        content = json.loads(panoptic_dir.with_suffix('.json').read_text())
        panoptic = {entry['image_id']: entry for entry in content['annotations']}
        assert [c['name'] for c in content['categories']] == [*CLASSES, 'background']
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
                # Polygons of neighbors share an edge; pixels there may belong to either.
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
            check_segments(panoptic[image_id], panoptic_dir, labels)
    assert categories == {1, 2, 3}


def test_the_tool_draws_once(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(shapes, 'ShapesSpec', partial(ShapesSpec, 3, 2, 64))
    for state in ('drawn', 'already there'):
        code, output, _ = call_tool(monkeypatch, capfd, 'make_shapes.py', tmp_path / 'shapes')
        assert code == 0 and state in output


def test_colors_are_spread_over_bands(tmp_path):
    image, _ = draw_image(np.random.default_rng(3), 64)
    np.testing.assert_array_equal(shapes.spread(image, 3), image)
    bands = shapes.spread(image, 13)
    np.testing.assert_array_equal(bands[..., [0, 6, 12]], image)
    assert (np.diff(bands.astype(int), axis=-1) != 0).any((0, 1)).all()  # no two are the same

    spec = replace(SPEC, bands=13)
    assert make_shapes(tmp_path / 'shapes', spec) and not make_shapes(tmp_path / 'shapes', spec)
    make_shapes(tmp_path / 'rgb', SPEC)
    for name in ('coco/train2017', 'ade/images/training'):
        decoded = LoadMultiband(13).decode(
            (tmp_path / f'shapes/{name}/000000000001.tif').read_bytes()
        )
        original = cv2.imread(str(tmp_path / f'rgb/{name}/000000000001.jpg'))[..., ::-1]
        assert np.abs(decoded[..., [0, 6, 12]] - original).mean() < 6  # that of JPEG
    assert 'tif' in (tmp_path / 'shapes/coco/annotations/instances_val2017.json').read_text()
