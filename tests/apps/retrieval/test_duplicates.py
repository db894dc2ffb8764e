"""Near-copies that are planted among drawings, by tools/embed.py with random weights."""

import csv
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xcit_mm.apps.retrieval.descriptor_files import Described
from xcit_mm.apps.retrieval.duplicates import Pair, groups_of
from xcit_mm.apps.retrieval.picture_match import similarity, small_picture
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes

pytest.importorskip('faiss')
COPIED = 10  # drawings, of each of which there are three copies


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """40 images: ten drawings, and each resized, cropped by 10 % and with JPEG quality 50."""
    root = tmp_path_factory.mktemp('drawings')
    make_shapes(root / 'shapes', ShapesSpec(num_train=COPIED, num_val=1))
    images = root / 'images'
    images.mkdir()
    random = np.random.default_rng(0)
    for path in sorted((root / 'shapes' / 'coco' / 'train2017').iterdir()):
        image = Image.open(path).convert('RGB')
        image.save(images / f'{path.stem}.original.png')
        width, height = image.size
        image.resize((round(0.6 * width), round(0.6 * height)), Image.Resampling.BICUBIC).save(
            images / f'{path.stem}.resized.png'
        )
        left, top = (int(random.integers(0, n - round(0.9 * n) + 1)) for n in image.size)
        box = left, top, left + round(0.9 * width), top + round(0.9 * height)
        image.crop(box).save(images / f'{path.stem}.cropped.png')
        image.save(images / f'{path.stem}.jpeg.jpg', quality=50)
    return images


def drawing(name):
    return Path(name).name.partition('.')[0]


def test_planted_copies_are_found(embed, folder, tmp_path):
    out, sheet = tmp_path / 'copies.json', tmp_path / 'copies.png'
    code, printed, errors = embed(folder, '--duplicates', '--out', out, '--sheet', sheet)
    assert code == 0, errors
    content = json.loads(out.read_text())
    found = {(pair['first'], pair['second']) for pair in content['pairs']}
    names = sorted(map(str, folder.iterdir()))
    planted = {pair for pair in combinations(names, 2) if len({*map(drawing, pair)}) == 1}
    right = {pair for pair in found if len({*map(drawing, pair)}) == 1}
    assert len(planted) == 6 * COPIED
    assert len(right) >= 0.95 * len(planted) and len(right) >= 0.95 * len(found)
    assert [{*map(drawing, group)} for group in content['groups']] == [
        {drawing(name)} for name in names[::4]
    ]
    assert all(len(group) == 4 for group in content['groups'])
    assert f'40 images, {len(found)} pairs of near-copies in {COPIED} groups' in printed
    with Image.open(sheet) as image:
        assert image.size == (4 * 168 + 16, COPIED * 184 + 8)


def test_pairs_are_written_as_csv(embed, folder, tmp_path):
    out = tmp_path / 'copies.csv'
    inputs = sorted(folder.iterdir())[:8]
    assert embed(*inputs, '--duplicates', '--out', out, '--threshold', 0.9)[0] == 0
    with out.open(newline='') as file:
        rows = list(csv.DictReader(file))
    assert {row['group'] for row in rows} == {'1', '2'}
    assert all(drawing(row['first']) == drawing(row['second']) for row in rows)
    assert all(0.9 <= float(row['score']) <= 1 for row in rows)


def test_images_without_copies_have_no_groups(embed, folder, tmp_path):
    out, sheet = tmp_path / 'copies.json', tmp_path / 'copies.png'
    originals = sorted(folder.glob('*.original.png'))
    code, printed, _ = embed(*originals, '--duplicates', '--out', out, '--sheet', sheet)
    assert code == 0 and '0 pairs of near-copies in 0 groups' in printed
    assert json.loads(out.read_text())['groups'] == [] and not sheet.exists()


def test_plain_pictures_are_alike_by_their_color():
    plain = {
        name: small_picture(np.full((40, 30, 3), color, np.uint8))
        for name, color in dict(white=255, light=250, black=0, red=(255, 0, 0)).items()
    }
    assert similarity(plain['white'], plain['light']) > 0.95
    assert similarity(plain['white'], plain['black']) < 0.1
    assert similarity(plain['white'], plain['red']) < 0.1
    # A pattern that is as bright as a plain picture, and one of other contrast.
    pattern = np.random.default_rng(0).integers(0, 2, (8, 8, 1)).repeat(3, 2)
    gray, strong = (
        small_picture((125 + 100 * contrast * (pattern - pattern.mean())).astype(np.uint8))
        for contrast in (0, 1)
    )
    assert similarity(gray, strong) < 0.1 and similarity(strong, strong) > 0.999


def test_groups_are_what_pairs_connect_with_the_largest_first():
    described = Described(list('abcde'), [(2, 2), (3, 3), (9, 9), (1, 1), (5, 5)], np.eye(5))
    pairs = [Pair(0, 3, 1.0), Pair(2, 4, 1.0), Pair(1, 3, 1.0)]
    assert groups_of(pairs, described) == [[1, 0, 3], [2, 4]]
