"""Annotations that mmdet drops or stops at are told, and what is left is trained on."""

import json
import multiprocessing
import pickle
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import PATIENCE
from helpers.planted import plant_coco, plant_coco_evaluation
from mmengine.registry import init_default_scope
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from xcit_mm import UserError, environment
from xcit_mm.datasets import annotations as of
from xcit_mm.datasets.annotations import annotation_problem, evaluation_problem, usable_mask

IMAGE = dict(width=120, height=100)
GOOD = [10, 10, 60, 10, 60, 60]


def annotation(**changes) -> dict:
    given = dict(category_id=1, bbox=[10, 10, 50, 50], area=900, segmentation=[GOOD], iscrowd=0)
    return {k: v for k, v in (given | changes).items() if v != 'left out'}


def problem(with_masks: bool = True, **changes) -> str | None:
    return annotation_problem(annotation(**changes), IMAGE, {1, 2}, with_masks)


@pytest.mark.parametrize('box', [[10, 10, 50, 50], [-5, -5, 6, 6], [119, 99, 1, 1], [0, 0, 131, 1]])
def test_boxes_with_a_part_in_the_image_pass(box):
    assert problem(bbox=box) is None


@pytest.mark.parametrize(
    ('changes', 'kind'),
    [
        *(
            (dict(bbox=box), of.NO_BOX)
            for box in (
                'left out',
                None,
                [],
                [1, 2, 3],
                [1, 2, 3, 4, 5],
                '1234',
                [1, 2, '3', 4],
                [1, 2, float('nan'), 4],
                [float('inf'), 2, 3, 4],
                [1, 2, 10**400, 4],
            )
        ),
        *((dict(bbox=[5, 5, *size]), of.NO_SIZE) for size in ([0, 9], [9, 0.9], [-9, -9])),
        *((dict(area=area), of.NO_SIZE) for area in (0, -1)),
        *(
            (dict(bbox=box), of.OUTSIDE)
            for box in ([120, 0, 9, 9], [0, 100, 9, 9], [-9, 0, 9, 9], [0, -10, 9, 9])
        ),
        *(
            (dict(bbox=box), of.FAR_BEYOND)
            for box in ([0, 0, 3e5, 9], [0, 0, 9, 1e308], [-122, 0, 130, 9], [0, -102, 9, 150])
        ),
        *((dict(bbox=box), of.BEYOND) for box in ([60, 0, 75, 9], [0, -13, 9, 50])),
        (dict(category_id=3), of.UNKNOWN_CATEGORY),
    ],
)
def test_what_mmdet_drops_is_told(changes, kind):
    assert problem(**changes) == kind


@pytest.mark.parametrize('area', ['left out', None, 'large', float('nan')])
def test_an_area_that_is_none_is_that_of_the_box(area):
    assert problem(area=area) is None
    assert of.area(annotation(area=area)) == 2500
    assert of_evaluation(area=area) == of.NO_AREA


def of_evaluation(with_masks: bool = True, **changes) -> str | None:
    return evaluation_problem(annotation(**changes), IMAGE, with_masks)


@pytest.mark.parametrize('flag', ['left out', None, '0', 2, -1, [], float('nan')])
def test_an_evaluation_needs_iscrowd(flag):
    assert of_evaluation(iscrowd=flag) == of.NO_CROWD_FLAG
    assert problem(iscrowd=flag) == (None if flag in ('left out', None) else of.NO_CROWD_FLAG)


@pytest.mark.parametrize('flag', [0, 1, True, 1.0])
def test_iscrowd_is_zero_or_one(flag):
    assert problem(iscrowd=flag) is of_evaluation(iscrowd=flag) is None


def runs(*counts, size=(100, 120)) -> dict:
    return dict(size=list(size), counts=list(counts))


def compressed(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask))
    return encoded | dict(counts=encoded['counts'].decode())


def padded(*numbers: int, length: int = 12) -> str:
    """As COCO compresses run lengths, with more characters than needed, which repeat the sign."""
    text = ''
    for number in numbers:
        characters = [number >> shift & 31 | 32 for shift in range(0, length * 5, 5)]
        text += ''.join(chr(48 + bits) for bits in (*characters[:-1], characters[-1] & 31))
    return text


@pytest.mark.parametrize(
    ('mask', 'kind'),
    [
        *((mask, of.NO_MASK) for mask in ('left out', None, [], {}, '')),
        *(
            (mask, of.BROKEN_MASK)
            for mask in (
                [[]],
                GOOD,
                [GOOD[:5]],
                [GOOD[:4]],
                [[*GOOD, 1]],
                [[*GOOD[:5], float('nan')]],
                [[*GOOD[:5], float('-inf')]],
                [[*GOOD[:5], 1e5]],
                [[*GOOD[:5], 10**400]],
                [[*GOOD[:5], '7']],
                [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 1], [2, 3]]],
                runs(10, 20),
                runs(12010, -10),
                runs(1.5, 11998.5),
                runs('12000'),
                runs(80 * 120, size=(80, 120)),
                runs(12000, size=(120, 100)),
                dict(counts=[12000]),
                dict(size=[100, 120]),
                dict(size=[100, 120], counts='abc'),
                dict(size=[100, 120], counts='oooo'),
                dict(size=[100, 120], counts='\x01\u1234'),
                dict(size=[100, 120], counts=padded(0, 12000 - 2, 1, 3 - 12000)),
                dict(size=[100.0, 120], counts=[12000]),
                dict(size=[100, True], counts=[12000]),
                [[0, 0, 119, 99] * 20_000],
                7,
            )
        ),
        ([GOOD, GOOD[:4]], of.BROKEN_PART),
        ([GOOD, [1e9] * 6], of.BROKEN_PART),
        ([GOOD], None),
        ([GOOD, [-100, -100, 200, -100, 200, 200]], None),
        (runs(6000, 6000), None),
    ],
)
def test_masks_that_pycocotools_does_not_decode_are_told(mask, kind):
    assert problem(segmentation=mask) == kind
    assert problem(segmentation=mask, with_masks=False) is None
    usable = usable_mask(None if mask == 'left out' else mask, IMAGE)
    assert bool(usable) == (kind in (None, of.BROKEN_PART))


@pytest.mark.parametrize(
    'box', [[10, 10, 50, 50], [10, 10, 0, 0], [500, 500, 9, 9], [0, 0, 1e9, 1]]
)
@pytest.mark.parametrize(
    ('mask', 'kind'),
    [
        ([GOOD], None),
        ([GOOD, GOOD[:4], []], None),  # which it draws nothing of
        ([GOOD[:4], GOOD], of.BROKEN_MASK),  # which it takes for boxes
        (GOOD, of.BROKEN_MASK),
        *(([GOOD, [number] * 6], of.BROKEN_MASK) for number in (1e9, 1e300, float('nan'), 'a')),
        ([[0, 0, 119, 99] * 20_000], of.BROKEN_MASK),
        (dict(size=[100, 120], counts=padded(0, 12000 - 2, 1, 3 - 12000)), of.BROKEN_MASK),
        (runs(6000, 6000), None),
        (runs(10, 20), of.BROKEN_MASK),
        ([], of.NO_MASK),
    ],
)
def test_an_evaluation_looks_at_the_mask_whatever_the_box_is(box, mask, kind):
    assert of_evaluation(segmentation=mask, bbox=box) == kind
    assert of_evaluation(with_masks=False, segmentation=mask, bbox=box) is None


def drawn_annotation(rng: random.Random) -> dict:
    """An annotation at random, good or not, of an image as IMAGE."""
    far = rng.choice([0, 0, 0, 1e9, 1e300, float('nan'), float('inf'), -(10**400)])

    def polygon() -> list:
        numbers = [rng.uniform(-120, 240) for _ in range(rng.choice([0, 4, 5, 6, 8, 80]))]
        return [far if far and rng.random() < 0.2 else number for number in numbers]

    cuts = sorted(rng.randrange(12001) for _ in range(rng.randrange(6)))
    counts = [end - start for start, end in zip([0, *cuts], [*cuts, 12000], strict=True)]
    counts[-1] += rng.choice([0, 0, 0, 1, -1, 2**32, -(2**32)])
    differences = [n - counts[i - 2] if i > 2 else n for i, n in enumerate(counts)]
    size = rng.choice([[100, 120], [100, 120], [120, 100], [0, 0], [-100, -120], [100.0, 120]])
    length = rng.choice([1, 4, 5, 6, 7, 12])
    mask = rng.choice(
        [
            [polygon() for _ in range(rng.randrange(3))],
            dict(size=size, counts=counts),
            dict(size=size, counts=padded(*differences, length=length)),
        ]
    )
    return annotation(id=1, image_id=1, segmentation=mask, iscrowd=rng.randrange(2))


def evaluate_what_is_accepted() -> None:
    image = np.zeros((100, 120), np.uint8)
    image[30:60, 20:70] = 1
    accepted = 0
    for seed in range(2000):
        drawn = drawn_annotation(random.Random(seed))
        if evaluation_problem(drawn, IMAGE, with_masks=True) is None:
            accepted += 1
            coco = COCO()
            coco.dataset = dict(images=[IMAGE | dict(id=1)], annotations=[drawn])
            with environment.quiet():
                coco.createIndex()
            runs = coco.annToRLE(drawn)
            coco_mask.iou([compressed(image)], [runs], [drawn['iscrowd']])
            coco_mask.decode(runs)
    assert accepted > 200


def test_pycocotools_neither_crashes_nor_hangs_at_what_is_accepted():
    process = multiprocessing.get_context('fork').Process(target=evaluate_what_is_accepted)
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0


def test_compressed_masks_are_understood_as_by_pycocotools():
    rng = np.random.default_rng(0)
    for density in (0, 0.001, 0.01, 1):
        mask = compressed((rng.random((100, 120)) < density).astype(np.uint8))
        assert problem(segmentation=mask) is None
        text = mask['counts']
        for other in (*(text[:end] for end in range(len(text))), f'{text}P'):  # P: it goes on
            assert problem(segmentation=mask | dict(counts=other)) == of.BROKEN_MASK


@pytest.fixture
def dataset(tmp_path, shapes_root):
    """A dataset of a copy of the shapes with a function done to it, or to its annotations."""
    environment.require('mmdet.datasets')
    from mmdet.registry import DATASETS

    import xcit_mm.datasets.coco
    import xcit_mm.datasets.images  # noqa: F401  registered

    init_default_scope('mmdet')
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)

    def build(plant, split='train', with_mask=True, kind='CheckedCocoDataset', **kwargs):
        path = root / f'coco/annotations/instances_{split}2017.json'
        if plant in (plant_coco, plant_coco_evaluation):
            plant(root)
        else:
            content = json.loads(path.read_text())
            plant(content)
            path.write_text(json.dumps(content))
        config = dict(
            type=kind,
            ann_file=str(path),
            data_prefix=dict(img=str(root / f'coco/{split}2017')),
            metainfo=dict(classes=('circle', 'square', 'triangle')),
            pipeline=[
                dict(type='LoadImage'),
                dict(type='LoadAnnotations', with_bbox=True, with_mask=with_mask),
                dict(type='PackDetInputs', meta_keys=('img_path',)),
            ],
            test_mode=split == 'val',
            lazy_init=True,
        )
        return DATASETS.build(config | kwargs)

    return build


def counts(dataset) -> dict[str, int]:
    kinds = [problem.kind for problem in dataset.problems]
    return {kind: kinds.count(kind) for kind in kinds}


def nothing(content: dict) -> None:
    pass


def test_good_annotations_are_those_of_mmdet(dataset, log):
    ours, theirs = dataset(nothing), dataset(nothing, kind='CocoDataset')
    ours.full_init()
    assert len(ours) == len(theirs) == 24
    assert all(ours.get_data_info(i) == theirs.get_data_info(i) for i in range(24))
    assert not ours.problems and not any('check_dataset' in line for line in log)


def test_mmdet_drops_the_same_boxes(dataset):
    """Thousands around the image, of every size, some with an area or category that drops them."""
    rng = np.random.default_rng(0)

    def boxes(content):
        content['images'] = content['images'][:1]
        content['annotations'] = [
            annotation(
                id=i,
                image_id=content['images'][0]['id'],
                bbox=[*rng.integers(-40, 200, 2).tolist(), *rng.uniform(-3, 60, 2).tolist()],
                area=int(rng.integers(-1, 9)),
                category_id=int(rng.integers(1, 5)),
                ignore=int(rng.integers(10) == 0),
            )
            for i in range(3000)
        ]

    theirs = dataset(boxes, kind='CocoDataset').get_data_info(0)['instances']
    ours = dataset(nothing)
    assert ours.get_data_info(0)['instances'] == theirs
    dropped = [problem for problem in ours.problems if problem.kind != of.BEYOND]
    ignored = 3000 - len(dropped) - len(theirs)
    assert 200 < ignored < 400 and len(theirs) > 300
    expected = {of.NO_SIZE, of.OUTSIDE, of.UNKNOWN_CATEGORY, of.BEYOND}
    assert set(counts(ours)) == expected and ours.fate(of.BEYOND) == of.KEPT


def test_all_kinds_are_counted_logged_once_and_survive_the_pipeline(dataset, log):
    built = dataset(nothing)
    planted = plant_coco(Path(built.ann_file).parents[2])
    built.full_init()
    expected = {kind: n for kind, n in planted.items() if kind in of.IN_TRAINING}
    assert counts(built) == expected | {of.NO_OBJECTS: 2}
    [line] = [line for line in log if 'check_dataset' in line]
    assert f'13 x {of.BROKEN_MASK} (ignored)' in line and f'2 x {of.NO_OBJECTS} (kept)' in line
    # Of the four images with the planted annotations, each goes through all of mmdet.
    samples = [built[i]['data_samples'] for i in range(13, 17)]
    ignored = sum(len(sample.ignored_instances) for sample in samples)
    assert ignored == planted[of.BROKEN_MASK] + planted[of.NO_MASK]
    kept = sum(len(sample.gt_instances) for sample in samples)
    infos = [built.get_data_info(i) for i in range(13, 17)]
    assert kept + ignored == sum(len(info['instances']) for info in infos)


def test_masks_are_no_matter_where_they_are_not_loaded(dataset):
    built = dataset(plant_coco, with_mask=False)
    built.full_init()
    assert not {of.NO_MASK, of.BROKEN_MASK, of.BROKEN_PART} & counts(built).keys()
    assert len(built[13]['data_samples'].ignored_instances) == 0


def test_masks_loaded_inside_of_other_transforms_are_seen(dataset):
    load = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
    choice = dict(type='RandomChoice', transforms=[[load]])
    built = dataset(plant_coco, pipeline=[dict(type='LoadImage'), choice])
    built.full_init()
    assert counts(built)[of.BROKEN_MASK] == 13


@pytest.mark.parametrize(
    ('filter_empty_gt', 'left', 'fate'), [(True, 22, 'left out'), (False, 24, 'kept')]
)
def test_images_without_objects_are_left_out_if_the_config_says_so(
    dataset, log, filter_empty_gt, left, fate
):
    built = dataset(plant_coco, filter_cfg=dict(filter_empty_gt=filter_empty_gt))
    assert len(built) == left
    assert any(f'2 x {of.NO_OBJECTS} ({fate})' in line for line in log)


def test_small_images_are_counted_and_left_out(dataset, log):
    built = dataset(plant_coco, filter_cfg=dict(min_size=32))
    assert len(built) == 23
    assert any(f'1 x {of.TOO_SMALL} (left out)' in line for line in log)


def test_no_image_left_is_an_error(dataset):
    def empty(content):
        content['annotations'] = []

    with pytest.raises(UserError, match=r'train2017\.json: none of its 24 images is left'):
        dataset(empty, filter_cfg=dict(filter_empty_gt=True)).full_init()


def test_an_evaluation_stops_at_what_falsifies_it(dataset):
    built = dataset(plant_coco_evaluation, 'val')
    with pytest.raises(
        UserError, match=r'val2017\.json: 4 annotations cannot be evaluated: 100'
    ) as e:
        built.full_init()
    assert of.NO_AREA in str(e.value) and of.NO_CROWD_FLAG in str(e.value)
    assert counts(built)[of.OUTSIDE] == 1  # which pycocotools takes as it is


def test_an_evaluation_of_good_annotations_runs(dataset):
    assert len(dataset(nothing, 'val')) == 4


def duplicate_annotation(content):
    content['annotations'][1]['id'] = content['annotations'][0]['id']


def duplicate_image(content):
    content['images'][1]['id'] = content['images'][0]['id']


def without(part, name):
    def remove(content):
        del content[part][2][name]

    return remove


def value(part, name, wrong):
    return lambda content: content[part][2].update({name: wrong})


def text_as_width(content):
    content['images'][2]['width'] = '160'


@pytest.mark.parametrize(
    ('plant', 'says'),
    [
        (duplicate_annotation, r'two annotations with the id 1: give each'),
        (duplicate_image, r'two images with the id 1: give each'),
        (without('images', 'width'), r'the image with the id 3 has the width None'),
        (without('images', 'file_name'), r'the image with the id 3 has the file_name None'),
        (text_as_width, r"the image with the id 3 has the width '160'"),
        (without('images', 'id'), r'an entry of it has no id'),
        (without('annotations', 'category_id'), r'an entry of it has no category_id'),
        (without('annotations', 'image_id'), r'an entry of it has no image_id'),
        (lambda content: content.update(annotations=[3]), r'one of annotations is a int'),
        (lambda content: content.update(annotations={}), r'annotations is a dict, not a list'),
        (lambda content: content.update(images=None), r'images is a NoneType, not a list'),
        (value('annotations', 'id', [1]), r'id of annotations is int, list, not int everywhere'),
        (value('annotations', 'id', 'a'), r'id of annotations is int, str, not int everywhere'),
        (value('images', 'id', 2.0), r'id of images is float, int, not int everywhere or str'),
        (value('images', 'id', 2**60), r'id of images is beyond 2\*\*53'),
        (value('categories', 'name', 3), r'name of categories is int, str, not str'),
        (value('categories', 'id', 1), r'two categories with the id 1: give each'),
        (value('images', 'file_name', 'a' * 10**6), r'the image with the id 3 has the file_name'),
        (value('images', 'file_name', '\0'), r'the image with the id 3 has the file_name'),
        (value('images', 'width', 0), r'the image with the id 3 has the width 0'),
        (value('images', 'width', 160.0), r'the image with the id 3 has the width 160\.0'),
        (value('images', 'height', 2**21), r'the image with the id 3 has the height'),
    ],
)
def test_a_file_that_is_none_is_refused(dataset, plant, says):
    with pytest.raises(UserError, match=rf'instances_train2017\.json .*{says}|: {says}'):
        dataset(plant).full_init()


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('[' * 100_000, 'RecursionError'),
        ('{"info": ' * 100_000, 'RecursionError'),
        (f'{{"images": [{{"id": {"1" * 5000}}}]}}', 'ValueError: Exceeds the limit'),
        ('[]', 'a list, not an object'),
        ('{"images": [], "images": []}', r"the name 'images' twice in one entry"),
        ('{"images": []}', 'categories is a NoneType, not a list'),
        ('\ufeff{}', 'JSONDecodeError'),
        (b'\xff', 'UnicodeDecodeError'),
    ],
)
def test_text_that_is_no_annotation_file_is_refused_in_a_sentence(tmp_path, text, says):
    path = tmp_path / 'own.json'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=rf'own\.json is no COCO annotation file \(.*{says}') as e:
        of.read_annotations(path)
    assert len(str(e.value)) < 3000


def test_a_device_is_no_annotation_file():
    with pytest.raises(UserError, match=r'/dev/zero is no COCO annotation file .*Not a regular'):
        of.read_annotations('/dev/zero')


def relative(box, width, height):
    return [box[0] / width, box[1] / height, box[2] / width, box[3] / height]


def corners(box, width, height):
    return [box[0], box[1], box[0] + box[2], box[1] + box[3]]


def of_larger(box, width, height):
    return [4 * number for number in box]


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (relative, r'box of no size\): the boxes look like relative coordinates'),
        (corners, 'the boxes look like two corners: write x, y, width, height'),
        (of_larger, 'are they of images of another size'),
    ],
)
@pytest.mark.parametrize('split', ['train', 'val'])
def test_boxes_of_another_format_are_seen(dataset, split, change, says):
    def plant(content):
        sizes = {image['id']: (image['width'], image['height']) for image in content['images']}
        for entry in content['annotations']:
            entry['bbox'] = change(entry['bbox'], *sizes[entry['image_id']])

    built = dataset(plant, split)
    built.full_init()
    assert re.search(says, built.misplaced(max_share=0.1))


def test_masks_that_are_missing_everywhere_are_seen(dataset):
    def plant(content):
        for entry in content['annotations']:
            entry['segmentation'] = []

    built = dataset(plant)
    built.full_init()
    assert 'train a model without masks' in built.misplaced(max_share=0.1)


def test_a_few_lost_annotations_and_those_of_other_images_are_no_other_format(dataset):
    def plant(content):
        content['images'] = content['images'][:12]
        content['annotations'][0]['bbox'] = [500, 500, 9, 9]

    built = dataset(plant)
    built.full_init()
    assert counts(built)[of.NO_IMAGE] > 10 and counts(built)[of.OUTSIDE] == 1
    assert built.misplaced(max_share=0.1) is None
    assert '1 x box outside the image' in built.misplaced(max_share=0)


def test_an_image_of_none_left_is_said_with_the_cause(dataset):
    def plant(content):
        for entry in content['annotations']:
            entry['bbox'] = relative(entry['bbox'], 160, 160)

    with pytest.raises(UserError, match=r'none of its 24 images is left: .*relative coordinates'):
        dataset(plant, filter_cfg=dict(filter_empty_gt=True)).full_init()


def test_a_flag_that_is_neither_makes_an_object_ignored(dataset):
    built = dataset(lambda content: content['annotations'][0].update(iscrowd='0'))
    built.full_init()
    assert counts(built) == {of.NO_CROWD_FLAG: 1}
    assert [i['ignore_flag'] for i in built.get_data_info(0)['instances']].count(1) == 1


def test_the_same_image_listed_twice_is_one(dataset):
    assert len(dataset(lambda content: content['images'].append(content['images'][0]))) == 24


def test_copies_for_loaders_are_without_the_problems(dataset):
    built = dataset(plant_coco)
    built.full_init()
    copy = pickle.loads(pickle.dumps(built))
    assert copy.problems == [] and built.problems
    assert len(copy) == len(built) and copy[20].keys() == built[20].keys()
