"""tools/classify.py: the accuracy is that of timm, the published figure stands beside it."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import randomize
from helpers.file_server import serving
from helpers.in_process import call_tool
from PIL import Image
from torchvision import transforms

from xcit_mm import UserError
from xcit_mm.classification import Accuracy, Classifier, labelled_images
from xcit_mm.classification.folder import LabelledImages, class_names, synsets
from xcit_mm.classification.published import (
    TOP1,
    allowed_difference,
    input_size,
    published,
    released,
    standard_error,
)
from xcit_mm.classification.report import Report, report_folder, verdict
from xcit_mm.weights.architecture import Architecture

NAME = 'xcit_nano_12_p16_224_dist.pth'
N12_16 = Architecture(128, 12, 4, 16)
RANKS = [0, 0, 1, 4, 5, 900]  # of the right class among the guesses for an image


@pytest.fixture(scope='module')
def model() -> torch.nn.Module:
    model = timm.create_model('xcit_nano_12_p16_224')
    randomize(model)
    return model.eval()


@pytest.fixture(scope='module')
def checkpoint(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('checkpoint') / NAME
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope='module')
def small(golden, tmp_path_factory) -> Path:
    """A classifier of 10 classes, of 32 channels."""
    state = {k.removeprefix('state/'): v for k, v in golden('classifier_p16').items()}
    path = tmp_path_factory.mktemp('small') / 'small.pth'
    torch.save(
        {k: v for k, v in state.items() if k not in ('input', 'logits', 'features', 'tokens_norm')},
        path,
    )
    return path


@torch.inference_mode()
def probabilities_as_released(model, image: Image.Image) -> torch.Tensor:
    """The evaluation of the authors' code: torchvision's transforms at crop ratio 1.0."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transform = transforms.Compose(
        [
            transforms.Resize(224, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )
    return model(transform(image)[None]).softmax(-1)[0]


def draw(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 255, (5, 7, 3), np.uint8)
    return Image.fromarray(colours).resize((200 + 40 * seed, 260), Image.Resampling.NEAREST)


@pytest.fixture(scope='module')
def imagenet(model, tmp_path_factory) -> Path:
    """Images of which timm's model gives the right class the rank of RANKS."""
    root = tmp_path_factory.mktemp('imagenet')
    for i, rank in enumerate(RANKS):
        image = draw(i)
        label = probabilities_as_released(model, image).argsort(descending=True)[rank]
        folder = root / synsets()[label]
        folder.mkdir(exist_ok=True)
        image.save(folder / f'{i}.png')
    return root


@pytest.fixture
def classify(monkeypatch, capfd):
    """Run the tool: its exit code, and what it prints."""
    return lambda *args: call_tool(monkeypatch, capfd, 'classify.py', *args, '--workers', 0)


def test_the_synsets_of_timm_are_the_classes_in_order():
    assert len(synsets()) == 1000
    assert synsets() == sorted(synsets())
    assert synsets()[0] == 'n01440764'
    assert class_names(1000)[0].startswith('tench')


def test_the_accuracy_is_that_of_the_released_evaluation(classify, checkpoint, imagenet, tmp_path):
    out = tmp_path / 'new' / 'out.json'
    code, printed, _ = classify(checkpoint, imagenet, '--batch-size', 4, '--out', out)
    assert code == 0
    content = json.loads(out.read_text())
    assert content['top1'] == pytest.approx(100 * 2 / 6)
    assert content['top5'] == pytest.approx(100 * 4 / 6)
    assert content['images'] == 6
    assert content['published'] == {'xcit_nano_12_p16_224_dist': 72.2}
    assert content['agrees'] is None  # of a few classes nothing can be said
    assert 'XCiT-N12/16, 3.05 M parameters, 1,000 classes' in printed
    assert 'images: 224 pixels (as its name says)' in printed
    assert 'top-1 33.33 % (standard error 19.25), top-5 66.67 % of 6 images' in printed
    assert '33.3 measured, published 72.2 for xcit_nano_12_p16_224_dist' in printed


def test_bad_images_are_named_and_left_out(classify, checkpoint, imagenet, tmp_path):
    for folder in imagenet.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    bad = tmp_path / next(s for s in synsets() if not (tmp_path / s).exists())
    bad.mkdir()
    (bad / 'text.JPEG').write_text('no image')
    (bad / 'notes.txt').write_text('not even called one')
    out = tmp_path / 'out.json'
    code, _, errors = classify(checkpoint, tmp_path, '--out', out)
    assert code == 1
    assert f'{bad / "text.JPEG"}: it is no image that can be read; left out' in errors
    content = json.loads(out.read_text())
    assert content['images'] == 6
    assert list(content['bad']) == [str(bad / 'text.JPEG')]
    assert content['top1'] == pytest.approx(100 * 2 / 6)


def test_top_five_of_pictures(classify, model, checkpoint, tmp_path):
    for i in range(2):
        draw(i).save(tmp_path / f'{i}.png')
    missing, out = tmp_path / 'missing.png', tmp_path / 'out.json'
    files = [tmp_path / '0.png', missing, tmp_path / '1.png']
    code, printed, errors = classify(checkpoint, '--out', out, '--images', *files)
    assert code == 1
    assert f'{missing} does not exist' in errors
    content = json.loads(out.read_text())
    assert list(content['images']) == [str(files[0]), str(files[2])]
    expected = probabilities_as_released(model, draw(1))
    best = expected.topk(5)
    guesses = content['images'][str(files[2])]
    assert [g['label'] for g in guesses] == best.indices.tolist()
    assert [g['probability'] for g in guesses] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [g['name'] for g in guesses] == [class_names(1000)[i] for i in best.indices]
    assert f'{100 * best.values[0]:7.1f} %  {guesses[0]["name"]}' in printed


def test_pictures_can_be_addresses(classify, small, tmp_path):
    draw(1).save(tmp_path / 'here.png')
    out = tmp_path / 'out.json'
    with serving() as server:
        server.files['/there.png'] = (tmp_path / 'here.png').read_bytes()
        files = [tmp_path / 'here.png', server.url('/there.png'), server.url('/missing.png')]
        code, _, errors = classify(small, '--out', out, '--images', *files)
    assert code == 1
    assert f'{files[2]}: the server answers 404' in errors
    assert errors.count(files[2]) == 1
    here, there = json.loads(out.read_text())['images'].values()
    assert here == there


def test_workers_and_the_size_change_nothing_else(small, tmp_path):
    paths = []
    for i in range(5):
        paths.append(tmp_path / f'{i}.png')
        draw(i).save(paths[-1])
    alone = Classifier(small, size=64, batch_size=5, device='cpu').top_classes(paths)
    together = Classifier(small, size=64, batch_size=2, workers=2, device='cpu').top_classes(paths)
    assert [[g.label for g in gs] for gs in together] == [[g.label for g in gs] for gs in alone]
    assert alone[0] != alone[1]
    assert Classifier(small, size=96, device='cpu').top_classes(paths)[0] != alone[0]


def test_classes_of_ones_own_are_the_folders_in_order(classify, small, tmp_path):
    image = draw(3)
    path = tmp_path / 'image.png'
    image.save(path)
    (guesses,) = Classifier(small, device='cpu').top_classes([path])
    for i in range(10):
        (tmp_path / 'own' / f'kind_{i}').mkdir(parents=True)
    image.save(tmp_path / 'own' / f'kind_{guesses[0].label}' / 'a.png')
    image.save(tmp_path / 'own' / f'kind_{guesses[2].label}' / 'b.PNG')
    code, printed, _ = classify(small, tmp_path / 'own')
    assert code == 0
    assert 'top-1 50.00 %' in printed
    assert 'top-5 100.00 % of 2 images of 2 classes' in printed
    assert 'no published figure for classes of your own' in printed
    assert '224 pixels (as its name does not say otherwise' in printed


def test_a_sample_is_the_same_each_time(tmp_path):
    images = LabelledImages([Path(str(i)) for i in range(100)], list(range(100)), True, 100)
    sample = images.sample(10)
    assert sample == images.sample(10)
    assert [int(str(path)) for path in sample.paths] == sample.labels  # each keeps its own
    assert sample.labels != list(range(10))
    assert sample.num_classes == 100  # of all: those drawn are from a whole validation set
    assert len(images.sample(1000).paths) == 100


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    'names, num_classes, message',
    [
        ([], 1000, 'holds no folders, where there should be one for each class'),
        (['train', 'val'], 1000, r'2 folders \(train, val\), .* 1000 classes.*; is it .*/val\?'),
        (['n01440764', 'cats'], 1000, 'cats are no synsets of ImageNet-1k, as the others'),
        (['a', 'b', 'c', 'd'], 10, r'has 4 folders \(a, b, c, \.\.\.\), but the classifier 10'),
        (['n01440764'], 1000, 'hold no image'),
    ],
)
def test_other_folders_are_refused(names, num_classes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        labelled_images(folders(tmp_path, *names), num_classes)


def test_wrong_input_is_a_sentence(classify, checkpoint, small, tmp_path):
    text = tmp_path / 'text.png'
    text.write_text('no image')
    for args, message in [
        ((checkpoint, tmp_path / 'nowhere'), 'there is no such folder'),
        ((checkpoint, '--images', text), f'{text}: it is no image that can be read'),
        ((tmp_path / 'nowhere.pth', tmp_path), 'cannot be read'),
        ((small, tmp_path, '--device', 'cuda:77'), "device='cuda:77' cannot be used"),
        ((small, tmp_path, '--size', 0), '--size: 0: not a positive number'),
        ((small, tmp_path, '--out', tmp_path), 'a folder, not a file to write to'),
        ((small, tmp_path, '--images', text), 'not allowed with argument'),
        ((small,), 'one of the arguments folder --images is required'),
    ]:
        code, _, errors = classify(*args)
        assert code == 2
        assert message in errors
        assert 'Traceback' not in errors


def test_figures_of_the_paper():
    assert set(TOP1) == {
        (a, p) for a in ('n12', 't12', 't24', 's12', 's24', 'm24', 'l24') for p in (8, 16)
    }
    assert TOP1['s12', 16] == (82.0, 83.3, 84.7)  # tables 1 and 2
    assert TOP1['l24', 8] == (84.4, 85.4, 86.0)
    assert all(plain < distilled < finer for plain, distilled, finer in TOP1.values())


@pytest.mark.parametrize(
    'path, expected',
    [
        ('dir/xcit_small_12_p16_224_dist.pth', ('s12', 16, '224_dist')),
        ('https://dl.fbaipublicfiles.com/xcit/xcit_large_24_p8_224.pth', ('l24', 8, '224')),
        ('timm://xcit_tiny_24_p8_384.fb_dist_in1k', ('t24', 8, '384_dist')),
        ('timm://xcit_tiny_24_p8_384', ('t24', 8, '384_dist')),
        ('timm://xcit_nano_12_p16_224.fb_in1k', ('n12', 16, '224')),
        ('xcit_small_12_p8_512.pth', None),
        ('xcit_small_24_p32_224.pth', None),
        ('xcit_small_12_p16_224/model.pth', None),
        ('checkpoint.pth', None),
    ],
)
def test_the_name_says_which_of_the_release_a_file_is(path, expected):
    assert released(path) == expected


def test_without_a_name_every_model_of_the_size_is_a_candidate():
    assert [m.top1 for m in published(N12_16, 224, None)] == [69.9, 72.2]
    assert [m.name for m in published(N12_16, 384, None)] == ['xcit_nano_12_p16_384_dist']
    assert published(N12_16, 256, None) == []
    assert published(Architecture(32, 3, 4, 16), 224, None) == []
    # A name against the weights counts as none.
    assert len(published(N12_16, 224, released('xcit_small_12_p8_224_dist.pth'))) == 2
    assert input_size(released('xcit_nano_12_p8_384_dist.pth'))[0] == 384


def test_a_name_against_the_weights_is_said(checkpoint, tmp_path):
    other = tmp_path / 'xcit_small_12_p8_224.pth'
    other.symlink_to(checkpoint)
    assert 'although its name says S12/8' in Classifier(other, device='cpu').describe()


def test_fewer_images_may_be_further_from_the_published_accuracy():
    assert standard_error(50.0, 2500) == pytest.approx(1.0)
    assert allowed_difference(50.0, 50_000) == pytest.approx(0.2)
    assert allowed_difference(50.0, 2500) == pytest.approx(0.2 + 3 * 0.95**0.5)


@pytest.mark.parametrize(
    'top1, images, agrees',
    [(72.3, 50_000, True), (72.01, 50_000, True), (71.99, 50_000, False), (0.1, 50_000, False),
     (70.5, 5000, True), (69.0, 5000, False)],
)  # fmt: skip
def test_the_verdict_follows_the_difference(checkpoint, top1, images, agrees):
    classifier = Classifier(checkpoint, device='cpu')
    data = LabelledImages([], [], True, 1000)
    text, verdict_ = verdict(classifier, data, Accuracy(top1, 90.0, images))
    assert verdict_ is agrees
    assert f'{top1:.1f} measured, published 72.2 for xcit_nano_12_p16_224_dist' in text
    assert ('the right weights' if agrees else 'These are other weights') in text
    assert Report(text, {}, [], agrees).is_right is agrees


def test_what_cannot_be_compared_is_said(small, imagenet, checkpoint):
    report = report_folder(Classifier(checkpoint, size=32, device='cpu'), imagenet, sample=2)
    assert report.content['images'] == 2
    assert report.agrees is None
    assert report.is_right
    assert 'no published figure for XCiT-N12/16 at 32 pixels' in report.text
