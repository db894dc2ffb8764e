"""The program that is copied next to an exported model computes what OpenCV, mmdet and mmseg do."""

import io
import json

import cv2
import mmcv
import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from torch.nn import functional as F

from xcit_mm.predict.sources import decode_rgb

pytest.importorskip('onnxruntime')

from xcit_mm.apps.export import predict

TOLERANCE = dict(overlap=0.99, score=0.3, lost=0.02, different=3e-4)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_images_are_resized_bit_for_bit_as_by_opencv():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 200, (100, 4)).tolist()
    sizes += [(2 * h, 2 * w, h, w) for _, _, h, w in sizes[:10]]  # OpenCV takes means
    sizes += [(2 * h, 4 * w, h, w) for _, _, h, w in sizes[:10]]
    for old_height, old_width, height, width in sizes:
        image = noise(old_height, old_width)
        expected = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(predict.resize(image, (width, height)), expected)


@pytest.mark.parametrize('keep_ratio', [True, False])
@pytest.mark.parametrize('scale', [(1333, 800), (800, 1333), (160, 160)])
def test_sizes_are_those_of_mmcv(scale, keep_ratio):
    rule = dict(scale=list(scale), keep_ratio=keep_ratio)
    for size in np.random.default_rng(0).integers(1, 3000, (200, 2)).tolist():
        expected = mmcv.rescale_size(tuple(size), scale) if keep_ratio else scale
        assert predict.size_for(tuple(size), rule) == expected
    assert predict.size_for((31, 17), None) == (31, 17)


def encoded(image, suffix, **options):
    stream = io.BytesIO()
    image.save(stream, suffix, **options)
    return stream.getvalue()


def files():
    """Yield a kind of image file, and its content."""
    smooth = cv2.GaussianBlur(noise(61, 83), (5, 5), 2)
    image, turned = Image.fromarray(smooth), Image.Exif()
    turned[0x0112] = 6
    for subsampling in range(3):
        yield f'JPEG {subsampling}', encoded(image, 'JPEG', subsampling=subsampling)
    yield 'progressive', encoded(image, 'JPEG', progressive=True)
    yield 'turned JPEG', encoded(image, 'JPEG', exif=turned)
    yield 'turned PNG', encoded(image, 'PNG', exif=turned)
    wide = smooth.astype(np.uint16) * 256 + noise(61, 83, 1)
    yield 'RGB of 16 bits', cv2.imencode('.png', wide)[1].tobytes()
    for suffix in ('PNG', 'TIFF'):
        yield f'gray {suffix} of 16 bits', encoded(Image.fromarray(wide[..., 0]), suffix)
    translucent = Image.fromarray(np.dstack([smooth, smooth[..., 0]]))
    yield 'RGBA', encoded(translucent, 'PNG')
    yield 'gray with alpha', encoded(translucent.convert('LA'), 'PNG')
    for mode in ('L', 'P', '1'):
        yield mode, encoded(image.convert(mode), 'PNG')
    yield 'a transparent color', encoded(image.convert('P'), 'PNG', transparency=3)
    for suffix in ('BMP', 'WEBP', 'TIFF', 'PPM'):
        yield suffix, encoded(image, suffix)


def test_images_are_read_as_by_xcit_mm():
    for kind, content in files():
        read = predict.read_image(io.BytesIO(content))
        assert np.array_equal(read, decode_rgb(content)), kind


def test_masks_are_pasted_as_by_mmdet():
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    rng = np.random.default_rng(0)
    masks = rng.random((40, 28, 28), np.float32)
    corners = rng.uniform(-20, 140, (40, 2, 2)).astype(np.float32)
    boxes = np.sort(corners, 1).reshape(-1, 4)
    tensors = torch.from_numpy(masks)[:, None], torch.from_numpy(boxes)
    expected = _do_paste_mask(*tensors, 101, 123, skip_empty=False)[0].numpy() >= 0.5
    pasted = np.zeros((40, 101, 123), bool)
    for mask, box, target in zip(masks, boxes, pasted, strict=True):
        predict.paste(mask, box, 0.5, target)
    assert 1000 < expected.sum() < 0.9 * expected.size
    assert (pasted != expected).mean() <= 1e-5
    empty = np.zeros((101, 123), bool)
    for box in ([7, 7, 7, 30], [-9, -9, -3, -3], [200, 5, 210, 9]):
        predict.paste(masks[0], np.float32(box), 0.5, empty)
    assert not empty.any()


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size', [(50, 41), (7, 200), (13, 9), (1, 1)])
def test_values_are_resized_as_by_pytorch(size, align_corners):
    values = torch.rand(3, 13, 9)
    options = dict(size=size[::-1], mode='bilinear', align_corners=align_corners)
    expected = F.interpolate(values[None], **options)[0].numpy()
    columns, rows = predict.places(values, size, align_corners)
    resized = predict.bilinear(values.numpy(), rows, columns)
    assert resized == pytest.approx(expected, abs=1e-5)
    nearest = F.interpolate(values[None, :1], size[::-1], mode='nearest')[0, 0].numpy()
    assert np.array_equal(predict.nearest(values[0].numpy(), size), nearest)


def objects(**changes):
    boxes = np.float32([[1, 2, 11, 12], [20, 5, 30, 25], [3, 3, 9, 9]])
    masks = np.zeros((3, 30, 40), bool)
    masks[0, 2:12, 1:11] = masks[1, 5:25, 20:30] = masks[2, :, 0] = True
    values = dict(boxes=boxes, scores=np.float32([0.9, 0.8, 0.1]), labels=np.array([1, 0, 1]))
    return {**values, 'masks': masks, **changes}


def test_objects_are_written_with_masks_as_run_lengths_of_coco(tmp_path):
    predict.save(objects(), ['a', 'b'], tmp_path / 'x.jpg')
    entries = json.loads((tmp_path / 'x.jpg.json').read_text())['objects']
    assert [entry['class'] for entry in entries] == ['b', 'a', 'b']
    for i, entry in enumerate(entries):
        for name, values in (('box', 'boxes'), ('score', 'scores'), ('label', 'labels')):
            assert np.array_equal(entry[name], objects()[values][i])
        lengths = coco_mask.frPyObjects(entry['mask'], 30, 40)
        assert np.array_equal(coco_mask.decode(lengths), objects()['masks'][i])
    predict.save({k: v[:0] for k, v in objects().items()}, [], tmp_path / 'y.jpg')
    assert json.loads((tmp_path / 'y.jpg.json').read_text()) == {'objects': []}


@pytest.mark.parametrize('largest', [3, 300])
def test_labels_are_written_with_the_share_of_each_class(tmp_path, largest):
    labels = np.array([[0, 1, 1], [1, largest, 0]])
    predict.save({'labels': labels}, ['a', 'b', 'c'], tmp_path / 'x.jpg')
    shares = json.loads((tmp_path / 'x.jpg.json').read_text())['shares']
    assert shares == pytest.approx({'a': 1 / 3, 'b': 1 / 2})
    with Image.open(tmp_path / 'x.jpg_labels.png') as file:
        assert np.array_equal(np.array(file), labels)


def test_panoptic_labels_are_written_in_the_format_of_coco(tmp_path):
    values = np.array([[0, 1, 2002], [70001, 2, 2]])
    predict.save({'panoptic': values}, ['a', 'b'], tmp_path / 'x.jpg')
    shares = json.loads((tmp_path / 'x.jpg.json').read_text())['shares']
    assert shares == pytest.approx({'a': 1 / 6, 'b': 1 / 3})  # the rest has no class
    with Image.open(tmp_path / 'x.jpg_labels.png') as file:
        assert np.array_equal(np.array(file, np.int64) @ [1, 256, 65536], values)


def test_a_result_that_differs_is_noticed():
    expected = objects()
    assert predict.difference(objects(), expected | TOLERANCE) == ''
    faint = objects(scores=np.float32([0.9, 0.8, 0.25]), boxes=objects()['boxes'] + 1e-3)
    assert predict.difference(faint, expected | TOLERANCE) == ''
    masks = expected['masks'].copy()
    masks[0, :8] = False
    for changed in (
        objects(boxes=objects()['boxes'] + 1),
        objects(labels=np.array([1, 2, 1])),
        objects(masks=masks),
        {name: value[1:] for name, value in expected.items()},
    ):
        for one, other in ((changed, expected), (expected, changed)):
            assert 'have no counterpart' in predict.difference(one, other | TOLERANCE)
    labels = np.zeros((30, 40), np.int64)
    other = labels.copy()
    other[0, :3] = 1
    assert predict.difference({'labels': labels}, {'labels': labels} | TOLERANCE) == ''
    problem = predict.difference({'labels': other}, {'labels': labels} | TOLERANCE)
    assert problem == '0.25% of the pixels differ'


def drawn(result, image, classes=('a', 'b'), palette=((200, 30, 30), (30, 30, 200))):
    return np.array(predict.draw(image, result, list(classes), [*map(list, palette)]))


def test_texts_lie_within_pictures_and_do_not_hide_a_small_image():
    gray = np.full((240, 320, 3), 100, np.uint8)
    boxes = np.float32([[2, 1, 90, 80], [300, 230, 320, 240]])
    result = objects(boxes=boxes, scores=np.float32([0.9, 0.8]), labels=np.array([1, 0]))
    result['masks'] = np.zeros((2, 240, 320), bool)
    picture = drawn(result, gray, ['a long name of a class', 'b'])
    assert picture.shape == (480, 640, 3)
    is_red, is_blue = ((picture == color).all(-1) for color in ((200, 30, 30), (30, 30, 200)))
    assert is_blue[:30, 4:60].sum() > 500  # the text of the first box is moved into the picture
    rows, columns = np.nonzero(is_red[:460])  # of the text alone
    assert 20 <= np.ptp(rows) + 1 <= 40 and columns.max() == 639 and columns.min() > 300
    assert (picture[100:400, 10:170] != 100).any(-1).mean() < 0.5


def test_pixels_have_the_colors_of_their_classes():
    labels = np.repeat([[0, 1]], 480, 0).repeat(300, 1)
    labels[-1] = 2  # of no class
    image = np.full((480, 600, 3), 100, np.uint8)
    for result in ({'labels': labels}, {'panoptic': labels + predict.INSTANCES}):
        picture = drawn(result, image)
        assert np.abs(picture[300, [10, 590]] - [[150, 65, 65], [65, 65, 150]]).max() <= 1
        assert picture[300, [299, 300]].tolist() == [[200, 30, 30], [30, 30, 200]]  # outlines
        assert (picture[-1] == 100).all()
        assert (picture[0, :40] == (200, 30, 30)).all(-1).mean() > 0.5  # the legend


def test_results_are_named_after_the_stems_of_images_unless_two_are_equal():
    names = ['a/cat.jpg', 'dog.png', 'Cat.png', 'x_labels.png', 'x.png', 'y_labels.png']
    named = predict.names_for([*map(predict.Path, names)])
    assert named == ['cat.jpg', 'dog', 'Cat.png', 'x_labels.png', 'x', 'y_labels']
