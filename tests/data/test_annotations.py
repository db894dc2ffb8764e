"""Annotations that mmdet drops or pycocotools fails at are reported, and the others are used."""

import json
import multiprocessing
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import TIMEOUT
from helpers.planted import edited, plant_coco
from mmengine.registry import init_default_scope
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from shapely import affinity
from shapely.geometry import box as rectangle

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.data.audit import annotations as kinds
from xcit_mm.data.audit.annotations import find_problem, read_annotations, usable_mask

IMAGE = dict(width=120, height=100)
GOOD = [10, 10, 60, 10, 60, 60]
ABSENT = object()
SHAPES = ['circle', 'square', 'triangle']
NAN = float('nan')


def annotation(**changes) -> dict:
    entry = dict(category_id=1, bbox=[10, 10, 50, 50], area=900, segmentation=[GOOD], iscrowd=0)
    return {k: v for k, v in (entry | changes).items() if v is not ABSENT}


def problem(in_evaluation: bool = False, with_masks: bool = True, **changes) -> str | None:
    return find_problem(annotation(**changes), IMAGE, {1, 2}, with_masks, in_evaluation)


@pytest.mark.parametrize(
    ('kind', 'boxes'),
    [
        (None, [[10, 10, 50, 50], [-5, -5, 6, 6], [119, 99, 1, 1], [0, 0, 131, 1]]),
        (kinds.NO_BOX, [ABSENT, None, [1, 2, 3], '1234', [1, '2', 3, 4], [1, NAN, 3, 4]]),
        (kinds.NO_BOX, [[float('inf'), 2, 3, 4], [1, 2, 10**400, 4]]),
        (kinds.NO_SIZE, [[5, 5, 0, 9], [5, 5, 9, 0.9], [5, 5, -9, -9]]),
        (kinds.OUTSIDE, [[120, 0, 9, 9], [0, 100, 9, 9], [-9, 0, 9, 9], [0, -10, 9, 9]]),
        (kinds.FAR_BEYOND, [[0, 0, 3e5, 9], [0, 0, 9, 1e308]]),
        (kinds.FAR_BEYOND, [[-122, 0, 130, 9], [0, -102, 9, 150]]),
        (kinds.BEYOND, [[60, 0, 75, 9], [0, -13, 9, 50]]),
    ],
)
def test_boxes(kind, boxes):
    assert [problem(bbox=box) for box in boxes] == [kind] * len(boxes)


def test_categories_areas_and_crowd_flags():
    assert problem(category_id=3) == kinds.UNKNOWN_CATEGORY
    for area in (ABSENT, None, 'large', NAN):  # a training takes the area of the box
        assert problem(area=area) is None and kinds.area(annotation(area=area)) == 2500
        assert problem(area=area, in_evaluation=True) == kinds.NO_AREA
    for flag in (ABSENT, None, '0', 2, [], NAN):
        assert problem(iscrowd=flag, in_evaluation=True) == kinds.NO_CROWD_FLAG
        assert problem(iscrowd=flag) == (None if flag in (ABSENT, None) else kinds.NO_CROWD_FLAG)
    assert problem(iscrowd=1) is problem(iscrowd=1, in_evaluation=True) is None


def runs(counts, size=(100, 120)) -> dict:
    return dict(size=list(size), counts=counts)


def padded(*numbers: int, length: int = 12) -> str:
    """COCO's compressed run lengths with more characters than needed, which repeat the sign."""
    text = ''
    for number in numbers:
        characters = [number >> shift & 31 | 32 for shift in range(0, length * 5, 5)]
        text += ''.join(chr(48 + bits) for bits in (*characters[:-1], characters[-1] & 31))
    return text


BROKEN = [
    GOOD,
    *([[*GOOD[:5], number]] for number in (NAN, 1e5, 10**400, '7')),
    [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 1], [2, 3]]],
    *([GOOD[:length]] for length in (0, 4, 5)),
    [[0, 0, 119, 99] * 20_000],
    *(runs(lengths) for lengths in ([10, 20], [12010, -10], [1.5, 11998.5], ['12000'])),
    *(runs([w * h], size=(h, w)) for h, w in ((80, 120), (120, 100), (100.0, 120))),
    *(dict(counts=[12000]), dict(size=[100, 120])),
    *(runs(text) for text in ('', 'abc', 'oooo', '\x01\u1234', padded(0, 11998, 1, 3 - 12000))),
    7,
]


@pytest.mark.parametrize(
    ('kind', 'masks'),
    [
        (None, [[GOOD], [GOOD, [-100, -100, 200, -100, 200, 200]], runs([6000, 6000])]),
        (kinds.NO_MASK, [ABSENT, None, [], {}, '']),
        (kinds.BROKEN_MASK, BROKEN),
    ],
)
def test_masks(kind, masks):
    for mask in masks:
        for in_evaluation in (False, True):
            assert problem(in_evaluation, segmentation=mask) == kind, mask
            assert problem(in_evaluation, with_masks=False, segmentation=mask) is None
        assert bool(usable_mask(None if mask is ABSENT else mask, IMAGE)) == (kind is None)


def test_masks_with_a_broken_part():
    for mask, in_evaluation in (
        ([GOOD, GOOD[:4], []], kinds.BROKEN_PART),  # pycocotools draws nothing of it
        ([GOOD[:4], GOOD], kinds.BROKEN_MASK),  # pycocotools takes it for boxes
        ([GOOD, [1e9] * 6], kinds.BROKEN_MASK),
    ):
        assert problem(segmentation=mask) == kinds.BROKEN_PART
        assert problem(segmentation=mask, in_evaluation=True) == in_evaluation
        assert usable_mask(mask, IMAGE) == [GOOD]
    for box in ([10, 10, 0, 0], [500, 500, 9, 9], [0, 0, 1e9, 1]):  # an evaluation reads its mask
        assert problem(True, bbox=box, segmentation=[[1e9] * 6]) == kinds.BROKEN_MASK
        assert kinds.CONSEQUENCES[problem(True, bbox=box)][1] == kinds.KEPT


def test_compressed_masks_are_those_that_pycocotools_writes():
    rng = np.random.default_rng(0)
    for density in (0, 0.001, 0.01, 1):
        mask = (rng.random((100, 120)) < density).astype(np.uint8)
        text = coco_mask.encode(np.asfortranarray(mask))['counts'].decode()
        assert problem(segmentation=runs(text)) is None
        for changed in (*(text[:end] for end in range(len(text))), f'{text}P'):  # P: not the end
            assert problem(segmentation=runs(changed)) == kinds.BROKEN_MASK


def evaluate_random_masks() -> None:
    """Let pycocotools decode and compare every mask that passes the check."""
    image = np.zeros((100, 120), np.uint8, order='F')
    image[30:60, 20:70] = 1
    accepted = 0
    for seed in range(2000):
        rng = random.Random(seed)
        far = rng.choice([0, 0, 0, 1e9, 1e300, NAN, float('inf'), -(10**400)])
        lengths = rng.choices([0, 4, 5, 6, 8, 80], k=rng.randrange(3))
        polygons = [[rng.uniform(-120, 240) for _ in range(n)] for n in lengths]
        polygons = [[far if far and rng.random() < 0.2 else n for n in p] for p in polygons]
        cuts = sorted(rng.sample(range(1, 12000), rng.randrange(6)))
        counts = [end - start for start, end in zip([0, *cuts], [*cuts, 12000], strict=True)]
        counts[-1] += rng.choice([0, 0, 0, 1, -1, 2**32, -(2**32)])
        differences = [n - counts[i - 2] if i > 2 else n for i, n in enumerate(counts)]
        text = padded(*differences, length=rng.choice([1, 3, 4, 7, 12]))
        size = rng.choice([[100, 120], [100, 120], [120, 100], [0, 0], [-100, -120]])
        mask = rng.choice([polygons, runs(counts, size), runs(text, size)])
        kind = problem(True, segmentation=mask)
        if kind is None or kinds.CONSEQUENCES[kind][1] != kinds.STOPS:
            accepted += 1
            coco = COCO()
            coco.imgs = {1: IMAGE}
            encoded = coco.annToRLE(annotation(image_id=1, segmentation=mask))
            coco_mask.iou([coco_mask.encode(image)], [encoded], [seed % 2])
            coco_mask.decode(encoded)
    assert accepted > 200


def test_pycocotools_neither_crashes_nor_hangs_at_what_is_accepted():
    process = multiprocessing.get_context('fork').Process(target=evaluate_random_masks)
    process.start()
    process.join(TIMEOUT)
    process.kill()
    assert process.exitcode == 0


@pytest.fixture
def dataset(root):
    """Build a dataset of a copy of the shapes after a function changed its annotations."""
    environment.require('mmdet.datasets')
    from mmdet.registry import DATASETS

    environment.require('xcit_mm.data.datasets.coco')
    init_default_scope('mmdet')

    def build(change=None, split='train', kind='CheckedCocoDataset', with_mask=True, **kwargs):
        path = root / f'coco/annotations/instances_{split}2017.json'
        if change is plant_coco:
            change(root)
        elif change:
            with edited(path) as content:
                change(content)
        load = dict(type='LoadAnnotations', with_bbox=True, with_mask=with_mask)
        loads = [dict(type='LoadImage'), dict(type='RandomChoice', transforms=[[load]])]
        config = dict(
            type=kind,
            ann_file=str(path),
            data_prefix=dict(img=str(root / f'coco/{split}2017')),
            metainfo=dict(classes=SHAPES),
            pipeline=[*loads, dict(type='PackDetInputs', meta_keys=('img_path',))],
            test_mode=split == 'val',
            lazy_init=True,
        )
        return DATASETS.build(config | kwargs)

    return build


def counts(dataset) -> Counter:
    return Counter(problem.kind for problem in dataset.problems)


def test_good_annotations_are_loaded_as_by_mmdet(dataset, log):
    checked, original = dataset(), dataset(kind='CocoDataset')
    assert len(checked) == len(original) == 24 and len(dataset(split='val')) == 4
    assert all(checked.get_data_info(i) == original.get_data_info(i) for i in range(24))
    assert not checked.problems and not any('check_dataset' in line for line in log)


def test_mmdet_drops_the_same_boxes(dataset):
    rng = np.random.default_rng(0)

    def add_boxes(content):
        content['images'] = content['images'][:1]
        content['annotations'] = [
            annotation(
                id=i,
                image_id=content['images'][0]['id'],
                bbox=[*rng.integers(-40, 200, 2).tolist(), *rng.uniform(-3, 60, 2).tolist()],
                area=int(rng.integers(1, 9)),
                category_id=int(rng.integers(1, 5)),
                ignore=i % 10 == 0,
            )
            for i in range(3000)
        ]

    expected = dataset(add_boxes, kind='CocoDataset').get_data_info(0)['instances']
    checked = dataset()
    assert checked.get_data_info(0)['instances'] == expected
    dropped = {kind: n for kind, n in counts(checked).items() if kind != kinds.BEYOND}
    assert dropped.keys() == {kinds.NO_SIZE, kinds.OUTSIDE, kinds.UNKNOWN_CATEGORY}
    assert sum(dropped.values()) + len(expected) == 2700 and len(expected) > 300


def test_broken_masks_are_ignored_in_training_and_logged(dataset, log):
    built = dataset()
    planted = plant_coco(Path(built.ann_file).parents[2])
    samples = [built[i]['data_samples'] for i in range(14, 17)]  # with the planted annotations
    assert any(
        f'{planted[kinds.BROKEN_MASK]} x {kinds.BROKEN_MASK} (ignored)' in line for line in log
    )
    num_ignored = sum(len(sample.ignored_instances) for sample in samples)
    assert num_ignored == planted[kinds.BROKEN_MASK] + planted[kinds.NO_MASK]
    num_kept = sum(len(sample.gt_instances) for sample in samples)
    infos = [built.get_data_info(i) for i in range(14, 17)]
    assert num_kept + num_ignored == sum(len(info['instances']) for info in infos)


def test_masks_are_checked_if_loaded_and_images_left_out_if_the_config_says_so(dataset, log):
    filters = dict(filter_empty_gt=True, min_size=32)
    built = dataset(plant_coco, with_mask=False, filter_cfg=filters)
    assert len(built) == 21
    [line] = [line for line in log if 'check_dataset' in line]
    assert (
        f'2 x {kinds.NO_OBJECTS} (left out)' in line and f'1 x {kinds.TOO_SMALL} (left out)' in line
    )
    assert not {kinds.NO_MASK, kinds.BROKEN_MASK, kinds.BROKEN_PART} & counts(built).keys()


def changed(part: str, **fields) -> dict:
    """A file whose third image or annotation, or first category, has other fields."""
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=9, height=9) for i in range(3)],
        annotations=[annotation(id=i, image_id=i) for i in range(3)],
        categories=[dict(id=1, name='circle')],
    )
    content[part][-1] |= fields
    return content


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (changed('annotations', id=1), r'annotations\[2\] has the id 1 of an earlier entry'),
        (changed('annotations', image_id=None), r'annotations\[2\] has the image_id None'),
        (changed('images', width='wide'), r"images\[2\] has the width 'wide'"),
        (changed('images') | dict(annotations=[3]), 'annotations is not a list of objects'),
        (dict(images=[], annotations=[]), 'categories is not a list of objects'),
        (b'\xff', 'UnicodeDecodeError'),
    ],
)
def test_what_mmdet_or_pycocotools_would_misread_is_refused(tmp_path, content, message):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / 'own.json').write_bytes(data)
    with pytest.raises(UserError, match=rf'own\.json is not a COCO annotation file \(.*{message}'):
        kinds.read_annotations(tmp_path / 'own.json')

    with pytest.raises(UserError, match=r'/dev/zero is not a COCO annotation .*Not a regular'):
        kinds.read_annotations('/dev/zero')


NAMES = ['5eb3', 'f00d', '7-b']
CONVERTED = 'are texts or floats and are converted to integers'
NUMBERED = 'are numbered from 1 in the order of the file'
OF_IMAGES = 'images.id', 'annotations.image_id'
OF_CATEGORIES = 'categories.id', 'annotations.category_id'


@pytest.mark.parametrize(
    ('fields', 'written', 'read', 'remark'),
    [
        (
            *(OF_IMAGES, [['00', 1.0, '2.0'], [0, '1', '02']], [[0, 1, 2], [0, 1, 2]]),
            f'images.id, annotations.image_id {CONVERTED}',
        ),
        (
            *(['images.width', *OF_IMAGES], [[9.0, 9, 9], NAMES, ['f00d', '5eb3', 3]]),
            [[9, 9, 9], [1, 2, 3], [2, 1, '3']],  # no image
            f': images.width {CONVERTED}; images {NUMBERED}',
        ),
        (
            *(OF_IMAGES, [[2**60, 2**60 + 1, 3], [2**60 + 1, 3, 1]], [[1, 2, 3], [2, 3, '1']]),
            f'images {NUMBERED}',
        ),
        (OF_IMAGES, [[-3, 0, 5], [0, -3, 5]], [[1, 2, 3], [2, 1, 3]], f'images {NUMBERED}'),
        (
            *(OF_CATEGORIES, [['pear'], ['pear', 'plum', 'pear']], [[1], [1, 'plum', 1]]),
            f'categories {NUMBERED}',
        ),
        (OF_IMAGES, [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1, 2]], None),
    ],
)
def test_sizes_and_ids_in_other_forms_become_integers(tmp_path, fields, written, read, remark):
    content = changed('annotations')
    places = [name.split('.') for name in fields]
    for (part, field), values in zip(places, written, strict=True):
        for entry, value in zip(content[part], values, strict=True):
            entry[field] = value
    path = tmp_path / 'own.json'
    path.write_text(json.dumps(content), 'utf-8-sig')
    content, said = kinds.read_annotations(path)
    assert said == '' if remark is None else said.startswith(f'{path}: ') and remark in said
    actual = [[entry[field] for entry in content[part]] for part, field in places]
    assert repr(actual) == repr(read)  # with the types


@pytest.mark.parametrize(
    ('names', 'more'),
    [
        (SHAPES[:2], ''),
        (['square', 'circle', 'triangle'], r', in another order'),
        (['cirkle', 'square', 'triangle'], r': .* in the heads; did you mean cirkle\?$'),
    ],
)
def test_different_classes_in_the_annotations_are_refused_with_both_lists(dataset, names, more):
    def rename(content):
        content['categories'] = [dict(id=i, name=name) for i, name in enumerate(names, 1)]

    message = (
        f'train2017.json has the {len(names)} classes ({", ".join(names)}), the config the 3 '
        'classes (circle, square, triangle)'
    )
    with pytest.raises(UserError, match=re.escape(message) + more):
        dataset(rename).full_init()


@pytest.mark.parametrize(
    ('change', 'cause'),
    [
        (lambda x, y, w, h: dict(bbox=[x, y, x + w, y + h]), 'boxes may be two corners instead'),
        (lambda *box: dict(bbox=[4 * n for n in box]), 'images of another size'),
        (lambda x, y, w, h: dict(bbox=[x - 99, y, w + 99, h]), None),  # beyond the image
        (lambda *box: dict(segmentation=[]), 'train a model without masks'),
        (lambda *box: dict(bbox=[n / 160 for n in box]), 'if the coordinates are relative'),
    ],
)
def test_annotations_of_another_format_are_named_with_the_likely_cause(dataset, log, change, cause):
    def change_all(content):
        for entry in content['annotations']:
            entry |= change(*entry['bbox'])

    built = dataset(change_all)
    built.full_init()
    if cause is None:
        assert built.misplaced(max_share=0) is None
        assert any(f'{kinds.BEYOND} (clipped to the image)' in line for line in log)
        return
    assert cause in built.misplaced(max_share=0.1)
    if 'relative' in cause:
        with pytest.raises(UserError, match=r'none of its 24 images is left: .*are relative'):
            dataset(filter_cfg=dict(filter_empty_gt=True)).full_init()


def test_a_few_lost_annotations_and_those_of_other_images_are_not_another_format(dataset):
    def change(content):
        content['images'] = [*content['images'][:12], content['images'][0]]  # the first one twice
        content['annotations'][0]['bbox'] = [500, 500, 9, 9]

    built = dataset(change)
    built.full_init()
    assert len(built) == 12
    assert counts(built)[kinds.NO_IMAGE] > 10 and counts(built)[kinds.OUTSIDE] == 1
    assert built.misplaced(max_share=0.1) is None
    assert '1 x box outside the image' in built.misplaced(max_share=0)


def adapted(path: Path, images: list[dict], *annotations: dict) -> tuple[dict, str]:
    annotations = [dict(a, id=i, iscrowd=0) for i, a in enumerate(annotations, 1)]
    content = dict(images=images, annotations=annotations, categories=[dict(id=1, name='x')])
    (path / 'a.json').write_text(json.dumps(content))
    return read_annotations(path / 'a.json')


def test_rotated_boxes_of_cvat_and_areas_of_0_are_adapted(tmp_path):
    image, common = dict(IMAGE, id=1, file_name='a.jpg'), dict(image_id=1, category_id=1)
    content, remark = adapted(
        tmp_path,
        [image],
        dict(common, bbox=[10, 20, 40, 10], area=400, attributes=dict(rotation=30.0)),
        dict(common, bbox=[10, 20, 40, 10], area=0, attributes=dict(rotation=0.0)),
        dict(common, bbox=[10, 20, 0, 10], area=0),
        dict(
            common, bbox=[10, 20, 40, 10], area=7, segmentation=[GOOD], attributes=dict(rotation=9)
        ),
    )
    rotated, upright, empty, outlined = content['annotations']
    expected = affinity.rotate(rectangle(10, 20, 50, 30), 30)  # with y down, clockwise
    left, top, right, bottom = expected.bounds
    assert rotated['bbox'] == pytest.approx([left, top, right - left, bottom - top])
    outline = np.reshape(rotated['segmentation'], (-1, 2))
    assert expected.equals_exact(type(expected)(outline).normalize(), 1e-9, normalize=True)
    assert rotated['area'] == 400 == upright['area']
    assert upright['bbox'] == outlined['bbox'] == [10, 20, 40, 10] and outlined['area'] == 7
    assert empty['area'] == 0 and problem(**empty) == kinds.NO_SIZE
    assert '1 boxes are rotated' in remark and '1 annotations have an area of 0' in remark


def test_objects_of_a_file_with_several_ids_are_joined(tmp_path):
    names = 'a b.jpg', './a%20b.jpg', 'c.jpg'
    images = [dict(IMAGE, id=i, file_name=name) for i, name in enumerate(names, 1)]
    boxes = [[1, 1, 9, 9], [1, 1, 9, 9], [30, 1, 9, 9], [1, 1, 9, 9]]
    objects = [
        dict(image_id=i, category_id=1, bbox=b, area=81)
        for i, b in zip((1, 2, 2, 3), boxes, strict=True)
    ]
    content, remark = adapted(tmp_path, images, *objects)
    assert [image['id'] for image in content['images']] == [1, 3]
    found = [(a['image_id'], a['bbox']) for a in content['annotations']]
    assert found == [(1, boxes[0]), (1, boxes[2]), (3, boxes[3])]
    assert 'several image ids, such as 1 and 2' in remark
    images[1]['width'] += 1
    with pytest.raises(UserError, match=r'the images 1 and 2 are the file .* 120x100 and 121x100'):
        adapted(tmp_path, images, *objects)


def test_percent_signs_of_file_names_are_kept(tmp_path):
    names = '50%.jpg', '50%25.jpg', 'a%20b.jpg', 'a b.jpg'
    images = [dict(IMAGE, id=i, file_name=name) for i, name in enumerate(names, 1)]
    content, _ = adapted(tmp_path, images)
    assert [image['id'] for image in content['images']] == [1, 2, 3, 4]
