"""The weighted k-NN of DINO against a loop over the images, and its metric."""

import math

import pytest
import torch
from helpers.small_xcit import SMALL
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement
from torch.nn.functional import cosine_similarity

from xcit_mm.network.models.self_distillation import SelfDistillation
from xcit_mm.predict.results import neighbors
from xcit_mm.predict.results.neighbors import knn_classify, nearest_neighbors, top_accuracy
from xcit_mm.train.metrics.knn_metric import KNNMetric


def features(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 7, generator=torch.Generator().manual_seed(seed))


def labels_of(n: int, classes: int = 4) -> torch.Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(9))


def votes(train, labels, query, k, temperature, classes, own=None) -> list[float]:
    """The definition, for one query."""
    similar = [(cosine_similarity(x, query, dim=0).item(), i) for i, x in enumerate(train)]
    best = sorted((pair for pair in similar if pair[1] != own), reverse=True)[:k]
    shares = [0.0] * classes
    for similarity, i in best:
        shares[labels[i]] += math.exp(similarity / temperature)
    return [share / sum(shares) for share in shares]


@pytest.mark.parametrize('k', [1, 5, 100])
@pytest.mark.parametrize('at_a_time', [1, 40, 2**25])
def test_votes_are_those_of_the_definition(k, at_a_time, monkeypatch):
    monkeypatch.setattr(neighbors, 'MAX_SIMILARITIES', at_a_time)
    train, queries, labels = features(19), features(11, seed=1), labels_of(19)
    found = knn_classify(train, labels, queries, 4, k, 0.2)
    expected = [votes(train, labels, query, k, 0.2, 4) for query in queries]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('at_a_time', [1, 40, 2**25])
def test_an_image_is_no_neighbor_of_itself(at_a_time, monkeypatch):
    monkeypatch.setattr(neighbors, 'MAX_SIMILARITIES', at_a_time)
    train, labels = features(13), labels_of(13)
    found = knn_classify(train, labels, None, 4, 5)
    expected = [votes(train, labels, x, 5, 0.07, 4, own=i) for i, x in enumerate(train)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-6)
    _, indices = nearest_neighbors(train, None, 100)
    assert indices.shape == (13, 12)
    assert not (indices == torch.arange(13)[:, None]).any()


def test_accuracy_counts_the_best_classes():
    scores, labels = torch.eye(4) + torch.arange(4) / 10, torch.tensor([0, 1, 0, 3])
    assert top_accuracy(scores, labels, 1) == 75
    assert top_accuracy(scores, labels, 3) == 75
    assert top_accuracy(scores, labels, 5) == 100


def samples(train, labels) -> list[dict]:
    pairs = zip(train, labels, strict=True)
    return [dict(features=x, gt_label=n, img_path=f'{n}.png') for x, n in pairs]


def test_metric_is_the_accuracy_of_each_image_among_the_others():
    train, labels = features(30), labels_of(30)
    train = train + 2 * torch.eye(7)[labels]  # classes differ
    metric = KNNMetric(k=5)
    for start in (0, 20):
        metric.process({}, samples(train[start : start + 20], labels[start : start + 20]))
    expected = [votes(train, labels, x, 5, 0.07, 4, own=i) for i, x in enumerate(train)]
    right = [row.index(max(row)) == n for row, n in zip(expected, labels.tolist(), strict=True)]
    assert 0 < sum(right) < 30
    assert metric.evaluate(30) == {'knn/top1': pytest.approx(100 * sum(right) / 30)}


def test_metric_measures_the_tokens_of_the_teacher_in_a_validation():
    torch.manual_seed(0)
    network = dict(type='ImageXCiT', arch=SMALL, patch_size=16)
    preprocessor = dict(type='ImagePreprocessor', mean=[0.0], std=[1.0])
    model = SelfDistillation(network, 8, 8, 8, data_preprocessor=preprocessor).eval()
    labels = [0, 0, 0, 1, 1, 1, 1]
    images = [torch.randn(3, 32, 32) * (1 + 3 * label) for label in labels]
    evaluator = Evaluator(dict(type='KNNMetric', k=3))
    for start in (0, 4):
        part = slice(start, start + 4)
        batch = [BaseDataElement(gt_label=label) for label in labels[part]]
        with torch.no_grad():
            predicted = model.val_step(dict(inputs=images[part], data_samples=batch))
        evaluator.process(data_samples=predicted)
    with torch.no_grad():
        tokens = model.teacher.backbone.features(torch.stack(images)).token
    expected = [votes(tokens, labels, x, 3, 0.07, 2, own=i) for i, x in enumerate(tokens)]
    right = sum(row.index(max(row)) == n for row, n in zip(expected, labels, strict=True))
    assert evaluator.evaluate(7) == {'knn/top1': pytest.approx(100 * right / 7)}
