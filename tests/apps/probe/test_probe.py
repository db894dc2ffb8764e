"""The accuracies of k-NN and of a linear classifier on the features of a file."""

import json
from functools import partial

import cv2
import numpy as np
import pytest
import torch
from helpers.in_process import call_tool
from helpers.small_xcit import SMALL

from xcit_mm.apps.probe import linear
from xcit_mm.apps.probe.linear import linear_scores
from xcit_mm.network.models.image_xcit import ImageXCiT

COLORS = dict(blue=(220, 30, 30), green=(30, 220, 30), red=(30, 30, 220))  # BGR
SYNSETS = tuple(f'n{i:08}' for i in range(1000))


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('checkpoint') / 'small.pth'
    torch.save(ImageXCiT(SMALL, 16).state_dict(), path)
    return path


def draw(folder, number, seed):
    """Noisy images of one color for each class."""
    random = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(number):
            image = (color + random.normal(0, 20, (32, 40, 3))).clip(0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / name / f'{i}.png'), image)
    return folder


@pytest.fixture
def folders(tmp_path):
    return draw(tmp_path / 'train', 6, 0), draw(tmp_path / 'val', 3, 1)


@pytest.fixture
def probe(monkeypatch, capfd):
    """Run the tool and return its exit code, output and errors."""
    return partial(call_tool, monkeypatch, capfd, 'probe.py', '--workers', 0, '--size', 32)


def test_tool_prints_and_writes_the_accuracies(probe, checkpoint, folders, tmp_path):
    out = tmp_path / 'new' / 'out.json'
    code, printed, _ = probe(checkpoint, *folders, '--out', out)
    assert code == 0
    assert 'class tokens, images of 32 pixels on' in printed
    assert '9 images of 3 classes, by 18 labeled images' in printed
    assert 'k-NN, k = 10: top-1 100.00 %' in printed
    assert 'linear: top-1 100.00 %' in printed
    content = json.loads(out.read_text())
    assert list(content['knn']) == ['10']  # fewer than 20 labeled images
    assert content['linear'] == dict(top1=100.0, top5=100.0)
    assert [content[k] for k in ('train_images', 'images', 'classes')] == [18, 9, 3]
    assert content['published'] is None and content['bad'] == {}
    assert [content['size'], content['has_token']] == [32, True]


def test_labels_decide(probe, checkpoint, folders, tmp_path):
    train, val = folders
    (val / 'blue').rename(val / 'other')
    (val / 'red').rename(val / 'blue')
    (val / 'other').rename(val / 'red')
    out = tmp_path / 'out.json'
    assert probe(checkpoint, train, val, '--out', out)[0] == 0
    content = json.loads(out.read_text())
    third = pytest.approx(100 / 3)
    assert content['linear']['top1'] == content['knn']['10']['top1'] == third


def test_unreadable_images_are_left_out(probe, checkpoint, folders, tmp_path):
    bad = [folder / 'red' / 'text.png' for folder in folders]
    for path in bad:
        path.write_text('no image')
    code, printed, errors = probe(checkpoint, *folders, '--out', tmp_path / 'out.json')
    assert code == 1
    assert '9 images of 3 classes, by 18 labeled images' in printed
    assert all(str(path) in errors.replace('\n', '') for path in bad)
    assert list(json.loads((tmp_path / 'out.json').read_text())['bad']) == [str(p) for p in bad]


def test_sample_is_the_same_in_every_call(probe, checkpoint, folders):
    printed = [probe(checkpoint, *folders, '--sample', 8)[1] for _ in range(2)]
    assert '8 images of 3 classes, by 8 labeled images' in printed[0]
    assert 'k-NN, k = 8:' in printed[0]  # all labeled images
    assert printed[0] == printed[1]


def clusters(n, seed, classes=3):
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centers = torch.randn(classes, 6, generator=torch.Generator().manual_seed(5))
    return centers[labels] + torch.randn(n, 6, generator=random), labels


def normalized(train, values):
    return (values - train.mean(0)) / train.std(0, correction=0)


@pytest.mark.parametrize('at_a_time', [1, 20, 2**25])
def test_linear_classifier_is_the_minimum_of_its_loss(at_a_time, monkeypatch):
    monkeypatch.setattr(linear, 'MAX_LOGITS', at_a_time)
    (train, labels), (queries, _) = clusters(40, 0), clusters(9, 1)
    # The reference is Newton's method in float64.
    x = torch.cat([normalized(train, train), torch.ones(40, 1)], 1).double()
    penalized = torch.cat([torch.ones(6), torch.zeros(1)]).double()

    def loss(flat):
        weights = flat.view(3, 7)
        penalty = (weights.square() * penalized).sum() / 80
        return torch.nn.functional.cross_entropy(x @ weights.T, labels) + penalty

    flat = torch.zeros(21, dtype=torch.float64)
    for _ in range(30):
        hessian = torch.autograd.functional.hessian(loss, flat)
        gradient = torch.autograd.functional.jacobian(loss, flat)
        flat = flat - torch.linalg.pinv(hessian, rtol=1e-10) @ gradient
    assert gradient.norm() < 1e-10
    inputs = torch.cat([normalized(train, queries), torch.ones(9, 1)], 1).double()
    expected = (inputs @ flat.view(3, 7).T).softmax(-1).float()
    found = linear_scores(train, labels, queries, 3).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_linear_classifier_is_that_of_scikit_learn():
    models = pytest.importorskip('sklearn.linear_model')
    (train, labels), (queries, _) = clusters(60, 0), clusters(20, 1)
    reference = models.LogisticRegression(C=1.0, max_iter=1000, tol=1e-8)
    reference.fit(normalized(train, train).numpy(), labels.numpy())
    expected = reference.predict_proba(normalized(train, queries).numpy())
    found = linear_scores(train, labels, queries, 3).softmax(-1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)


def test_published_figures_are_printed_beside_the_measured_ones(
    probe, folders, tmp_path, monkeypatch
):
    monkeypatch.setattr('xcit_mm.apps.probe.report.NUM_CLASSES', 3)
    for folder in folders:
        for i, name in enumerate(COLORS):
            (folder / name).rename(folder / SYNSETS[i])
    path = tmp_path / 'xcit_small_12_cp16_dino.pth'
    torch.save(ImageXCiT('s12', 16).state_dict(), path)
    extra = folders[0] / SYNSETS[0]
    for i in range(2):  # 20 labeled images
        (extra / f'more_{i}.png').write_bytes((extra / f'{i}.png').read_bytes())
    code, printed, _ = probe(path, *folders, '--out', tmp_path / 'out.json')
    assert code == 0
    lines = dict(line.split(':', 1) for line in printed.splitlines() if ': top-1' in line)
    assert lines['k-NN, k = 20'].endswith('; published 76.0 for xcit_small_12_p16_dino')
    assert lines['linear'].endswith('; published 77.8 for xcit_small_12_p16_dino')
    assert 'published' not in lines['k-NN, k = 10']
    content = json.loads((tmp_path / 'out.json').read_text())
    assert content['published'] == {'xcit_small_12_p16_dino': dict(linear=77.8, knn=76.0)}


def test_digits_are_separable(tmp_path):
    pytest.importorskip('sklearn')
    from helpers.digits import write_digits

    write_digits(tmp_path, side=16)
    counts = {split: len(list((tmp_path / split).glob('?/*.png'))) for split in ('train', 'val')}
    assert counts == dict(train=1200, val=597)
    pixels, labels = {}, {}
    for split in counts:
        files = sorted((tmp_path / split).glob('?/*.png'))
        images = [cv2.imread(str(file)) for file in files]
        pixels[split] = torch.tensor(np.stack(images)[..., 0]).flatten(1).float()
        labels[split] = torch.tensor([int(file.parent.name) for file in files])
    scores = linear_scores(pixels['train'], labels['train'], pixels['val'], 10)
    assert (scores.argmax(1) == labels['val']).double().mean() > 0.85


def test_channels_that_are_constant_change_nothing():
    (train, labels), (queries, _) = clusters(30, 0), clusters(10, 1)
    expected = linear_scores(train, labels, queries, 3)
    constant = [torch.cat([x, torch.full((len(x), 1), 3.0)], 1) for x in (train, queries)]
    found = linear_scores(constant[0], labels, constant[1], 3)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
