"""The classifiers of timm from checkpoints: the authors' outputs and accuracy, or an error."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import randomize, relative_error
from helpers.file_server import serving
from helpers.in_process import call_tool
from PIL import Image
from safetensors.torch import save_file
from timm.data import ImageNetInfo
from torchvision import transforms

from xcit_mm import UserError
from xcit_mm.apps.classification import Classifier
from xcit_mm.apps.classification.report import (
    labeled_images,
    published,
    report_folder,
    verdict,
)
from xcit_mm.network.layers import XCA
from xcit_mm.network.weights.names import Architecture
from xcit_mm.network.weights.timm_classifier import load_classifier

NAME = 'xcit_nano_12_p16_224_dist.pth'
N12_16 = Architecture(128, 12, 4, 16)
SYNSETS = ImageNetInfo().label_names()
RANKS = [0, 0, 1, 4, 5, 900]  # of the right class of each image


@pytest.fixture(scope='module')
def model() -> torch.nn.Module:
    model = timm.create_model('xcit_nano_12_p16_224').eval()
    randomize(model)
    return model


@pytest.fixture(scope='module')
def checkpoint(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('checkpoint') / NAME
    torch.save(model.state_dict(), path)
    return path


def weights(archive) -> dict[str, torch.Tensor]:
    return {k.removeprefix('state/'): v for k, v in archive.items() if k.startswith('state/')}


@pytest.fixture(scope='module')
def small(golden, tmp_path_factory) -> Path:
    """A classifier of 10 classes and 32 channels."""
    path = tmp_path_factory.mktemp('small') / 'small.pth'
    torch.save(weights(golden('classifier_p16')), path)
    return path


@torch.inference_mode()
def probabilities_as_released(model, image: Image.Image) -> torch.Tensor:
    """The evaluation of the authors' code: torchvision's transforms at crop ratio 1.0."""
    resize = transforms.Resize(224, interpolation=transforms.InterpolationMode.BICUBIC)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    pixels = transforms.ToTensor()(transforms.CenterCrop(224)(resize(image)))
    return model(normalize(pixels)[None]).softmax(-1)[0]


def draw(seed: int) -> Image.Image:
    colors = np.random.default_rng(seed).integers(0, 255, (5, 7, 3), np.uint8)
    return Image.fromarray(colors).resize((200 + 40 * seed, 260), Image.Resampling.NEAREST)


@pytest.fixture
def classify(monkeypatch, capfd):
    """Run the tool and return its exit code, output and errors."""
    return partial(call_tool, monkeypatch, capfd, 'classify.py', '--workers', 0)


def test_accuracy_equals_that_of_the_released_evaluation(classify, model, checkpoint, tmp_path):
    folder, out = tmp_path / 'val', tmp_path / 'new' / 'out.json'
    for i, rank in enumerate(RANKS):
        label = probabilities_as_released(model, draw(i)).argsort(descending=True)[rank]
        (folder / SYNSETS[label]).mkdir(parents=True, exist_ok=True)
        draw(i).save(folder / SYNSETS[label] / f'{i}.png')
    code, printed, _ = classify(checkpoint, folder, '--batch-size', 4, '--out', out)
    assert code == 0
    assert 'XCiT-N12/16, 1,000 classes, images of 224 pixels' in printed
    assert 'top-1 33.33 % (standard error 19.25), top-5 66.67 % of 6 images' in printed
    assert '33.3 measured, published 72.2 for xcit_nano_12_p16_224_dist' in printed

    bad = folder / next(s for s in SYNSETS if not (folder / s).exists()) / 'text.JPEG'
    bad.parent.mkdir()
    bad.write_text('no image')
    bad.with_name('notes.txt').write_text('not an image file')
    code, _, errors = classify(checkpoint, folder, '--out', out)
    assert code == 1
    assert str(bad) in errors
    content = json.loads(out.read_text())
    assert [content['top1'], content['top5']] == pytest.approx([100 * 2 / 6, 100 * 4 / 6])
    assert content['images'] == 6 and list(content['bad']) == [str(bad)]
    assert content['published'] == {'xcit_nano_12_p16_224_dist': 72.2}
    assert content['agrees'] is None  # too few classes


def test_pictures_are_files_and_urls(classify, model, checkpoint, tmp_path):
    draw(1).save(tmp_path / 'here.png')
    missing, out = tmp_path / 'missing.png', tmp_path / 'out.json'
    with serving() as server:
        server.files['/there.png'] = (tmp_path / 'here.png').read_bytes()
        files = [tmp_path / 'here.png', missing, server.url('/there.png')]
        code, printed, errors = classify(checkpoint, '--out', out, '--images', *files)
    assert code == 1
    assert errors.count(str(missing)) == 1
    content = json.loads(out.read_text())
    assert list(content['images']) == [str(files[0]), str(files[2])]
    guesses, of_url = content['images'].values()
    assert of_url == guesses
    best = probabilities_as_released(model, draw(1)).topk(5)
    assert [g['label'] for g in guesses] == best.indices.tolist()
    assert [g['probability'] for g in guesses] == pytest.approx(best.values.tolist(), rel=1e-4)
    names = ImageNetInfo().label_descriptions()
    assert [g['name'] for g in guesses] == [names[i] for i in best.indices]
    assert f'{best.values[0]:9.1%}  {guesses[0]["name"]}' in printed


def test_workers_do_not_change_the_result_and_the_size_does(small, tmp_path):
    paths = [tmp_path / f'{i}.png' for i in range(5)]
    for i, path in enumerate(paths):
        draw(i).save(path)
    alone = Classifier(small, size=64, batch_size=5, device='cpu').top_classes(paths)
    together = Classifier(small, size=64, batch_size=2, workers=2, device='cpu').top_classes(paths)
    assert [[g.label for g in gs] for gs in together] == [[g.label for g in gs] for gs in alone]
    assert alone[0] != alone[1]
    assert Classifier(small, size=96, device='cpu').top_classes(paths)[0] != alone[0]


def test_folders_of_other_classes_are_counted_in_alphabetical_order(small, tmp_path):
    for i in range(10):
        (tmp_path / f'kind_{i}').mkdir()
        draw(3).save(tmp_path / f'kind_{i}' / 'a.PNG')
    text, content = report_folder(Classifier(small, size=64, device='cpu'), tmp_path)
    assert (content['top1'], content['top5']) == (10, 50)
    assert 'no published figure' in text
    samples, _ = labeled_images(tmp_path, 10)
    assert samples == [(str(tmp_path / f'kind_{i}' / 'a.PNG'), i) for i in range(10)]


def test_a_sample_shows_that_weights_are_other_ones(classify, checkpoint, tmp_path):
    draw(0).save(tmp_path / 'image.png')
    for synset in SYNSETS:
        (tmp_path / 'val' / synset).mkdir(parents=True)
        (tmp_path / 'val' / synset / '0.png').symlink_to(tmp_path / 'image.png')
    samples, is_imagenet = labeled_images(tmp_path / 'val', 1000)
    assert is_imagenet and all(SYNSETS[i] == Path(path).parent.name for path, i in samples)
    code, printed, _ = classify(checkpoint, tmp_path / 'val', '--sample', 5)
    assert code == 1
    assert 'of 5 images of 1,000 classes' in printed
    assert '0.0 measured, published 72.2' in printed
    assert 'these are other weights' in printed


@pytest.mark.parametrize(
    ('names', 'num_classes', 'message'),
    [
        ('a b c d', 10, r'has 4 subfolders \(a, b, c, d\)'),
        ('cats n01440764', 1000, r'2 subfolders \(cats, n01440764.* each of the 1000 classes'),
        ('n01440764', 1000, 'n01440764 has no image'),
    ],
)
def test_folders_that_do_not_match_are_refused(tmp_path, names, num_classes, message):
    for name in names.split():
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=message):
        labeled_images(tmp_path, num_classes)


def test_the_verdict_follows_the_difference():
    candidates = published(N12_16, 224, 'xcit_nano_12_p16_224_dist')  # 72.2
    for images, right, wrong in ((50_000, (72.3, 72.01), (71.99, 0.1)), (5000, (70.5,), (69.0,))):
        for top1 in (*right, *wrong):
            text, agrees = verdict(candidates, top1, images, classes=1000)
            assert agrees is (top1 in right)
            assert ('the right weights' if agrees else 'other weights') in text


@torch.inference_mode()
@pytest.mark.parametrize('name', ['classifier_p16', 'classifier_p8_cls_norm'])
def test_features_and_logits_equal_those_of_the_authors(name, golden, tmp_path):
    archive = golden(name)
    torch.save({'model': weights(archive)}, tmp_path / 'release.pth')
    model = load_classifier(tmp_path / 'release.pth')
    for block in model.cls_attn_blocks:  # N12's variant, which the weights do not determine
        block.tokens_norm = bool(archive['tokens_norm'])
    assert sum(isinstance(m, XCA) for m in model.modules()) == 3  # the attention of xcit_mm
    features = model.forward_features(archive['input'])[:, 0]
    assert relative_error(features, archive['features']) < 1e-5
    assert relative_error(model(archive['input']), archive['logits']) < 1e-5


@torch.inference_mode()
# Only N12 normalizes the class token alone, which the weights do not determine.
@pytest.mark.parametrize(
    'name, suffix', [('xcit_nano_12_p16_224', '.pth'), ('xcit_tiny_12_p8_224', '.safetensors')]
)
def test_a_file_of_timm_gives_the_outputs_of_timm(name, suffix, tmp_path):
    expected, path = timm.create_model(name).eval(), tmp_path / f'model{suffix}'
    randomize(expected)
    (torch.save if suffix == '.pth' else save_file)(expected.state_dict(), path)
    image = torch.randn(1, 3, 80, 56)
    assert relative_error(load_classifier(path)(image), expected(image)) < 1e-5


def without(*starts):
    return lambda state: {k: v for k, v in state.items() if not k.startswith(starts)}


def as_detector(state):
    model = without('cls_', 'norm.', 'head.')(state)
    return {f'backbone.{k}': v for k, v in model.items()} | {'rpn_head.weight': torch.zeros(1)}


@pytest.mark.parametrize(
    'edit, message',
    [
        (as_detector, 'is not a classifier but a backbone, detector or segmentor'),
        (without('head.'), 'has no classification head, like every DINO model'),
        (without('cls_attn_blocks.1.norm2'), r'2 tensors differ.*cls_attn_blocks\.1\.norm2'),
        (lambda state: state | {'another': torch.zeros(2)}, r'another \(2,\)'),
    ],
)
def test_other_weights_are_refused(golden, tmp_path, edit, message):
    path = tmp_path / 'release.pth'
    torch.save({'model': edit(weights(golden('classifier_p16')))}, path)
    with pytest.raises(UserError, match=message) as caught:
        load_classifier(path)
    assert str(path) in str(caught.value)
