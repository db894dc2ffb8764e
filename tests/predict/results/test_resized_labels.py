"""Labels from the classes that can win against the interpolation of all classes."""

import pytest
import torch
from torch.nn import functional as F

from xcit_mm.large.maps import resized_labels
from xcit_mm.large.maps.resized_labels import bilinear, labels_of_resized


def field(classes, height, width, noise=0.3):
    """Return scores (classes, h, w) as a segmentor computes them: smooth, with some noise."""
    coarse = torch.randn(1, classes, max(1, height // 5), max(1, width // 5)) * 3
    scores = F.interpolate(coarse, (height, width), mode='bicubic')[0]
    return scores + noise * torch.randn(classes, height, width)


def resized(scores, sizes, align_corners):
    for size in sizes:
        scores = F.interpolate(scores[None], size, mode='bilinear', align_corners=align_corners)[0]
    return scores


def labels_of(scores, sizes, align_corners):
    rows, columns = zip(*sizes, strict=True)
    samplings = (
        bilinear(n, s, align_corners)
        for n, s in zip(scores.shape[1:], (rows, columns), strict=True)
    )
    return labels_of_resized(scores, *samplings)


SIZES = [
    [(64, 92)],
    [(61, 95)],
    [(1, 1)],
    [(64, 92), (60, 101)],
    [(61, 95), (7, 11)],
]


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('sizes', SIZES, ids=str)
@pytest.mark.parametrize('classes', [2, 40])
@pytest.mark.parametrize('block', [5, 64])
def test_labels_equal_those_of_all_classes(classes, sizes, align_corners, block, monkeypatch):
    monkeypatch.setattr(resized_labels, 'BLOCK', block)
    scores = field(classes, 16, 23)
    values = resized(scores, sizes, align_corners)
    best, second = values.topk(2, dim=0).values
    is_clear = best - second > 1e-5
    assert is_clear.float().mean() > 0.99
    for layout in scores, scores[None].contiguous(memory_format=torch.channels_last)[0]:
        labels = labels_of(layout, sizes, align_corners)
        assert labels.dtype == torch.uint8 and labels.shape == sizes[-1]
        assert torch.equal(labels[is_clear].long(), values.argmax(0)[is_clear])


@pytest.mark.parametrize('size', [(1, 9), (9, 1), (1, 1)])
def test_maps_of_one_row_or_column(size):
    scores = field(6, *size)
    for align_corners in (False, True):
        sizes = [(4 * size[0], 3 * size[1] + 1)]
        expected = resized(scores, sizes, align_corners).argmax(0)
        assert torch.equal(labels_of(scores, sizes, align_corners).long(), expected)


@pytest.mark.parametrize('cost', [0, 1e9], ids=['candidates', 'all classes'])
def test_of_equal_scores_the_first_class_wins(cost, monkeypatch):
    monkeypatch.setattr(resized_labels, 'COST', cost)
    monkeypatch.setattr(resized_labels, 'BLOCK', 7)
    monkeypatch.setattr(resized_labels, 'MAX_SCORES', 3000)  # a few classes at a time
    scores = field(20, 24, 17, noise=1).round()  # of which scale 4 makes numbers without rounding
    values = resized(scores, [(96, 68)], False)
    best, second = values.topk(2, dim=0).values
    assert (best == second).sum() > 100
    assert torch.equal(labels_of(scores, [(96, 68)], False).long(), values.argmax(0))


@pytest.mark.parametrize('align_corners', [False, True])
def test_windows_equal_the_parts_of_the_whole(align_corners):
    scores = field(9, 21, 30)
    rows, columns = (bilinear(n, [m], align_corners) for n, m in ((21, 83), (30, 120)))
    whole = labels_of_resized(scores, rows, columns)
    for y, x in ((slice(0, 40), slice(17, 64)), (slice(40, 83), slice(119, 120))):
        (of_rows, part_rows), (of_columns, part_columns) = rows.part(y), columns.part(x)
        part = labels_of_resized(scores[:, of_rows, of_columns], part_rows, part_columns)
        assert torch.equal(part, whole[y, x])


def test_more_than_256_classes_and_float64():
    scores = field(300, 8, 9).double()
    samplings = (bilinear(n, [3 * n], False, torch.float64) for n in (8, 9))
    labels = labels_of_resized(scores, *samplings)
    assert labels.dtype == torch.long
    assert torch.equal(labels, resized(scores, [(24, 27)], False).argmax(0))
