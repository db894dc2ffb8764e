"""A pushed model predicts the same from a folder and from the hub, and the token stays secret."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT
from helpers.fake_hub import TOKEN, FakeHub, Repo, fake_hub
from helpers.in_process import call_tool
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file

from xcit_mm import UserError, load_model
from xcit_mm.apps.push.run import push
from xcit_mm.network.weights.read import read_checkpoint
from xcit_mm.predict.model import Model

HEIGHTS = 'configs/heights_xcit_n12_16_shapes.py'
BANDS = 'configs/sem_fpn_xcit_n12_16_13bands_shapes.py'
PANOPTIC = 'configs/mask2former_panoptic_xcit_n12_16_shapes.py'
REPO = 'owner/name'


@pytest.fixture(scope='module')
def checkpoint(weights, tmp_path_factory) -> Callable[[str], Path]:
    """Return random weights for a config."""
    folder, made = tmp_path_factory.mktemp('checkpoints'), dict(weights)

    def find(config: str) -> Path:
        if config not in made:
            made[config] = save_random_weights(config, folder / f'{Path(config).stem}.pth')
        return made[config]

    return find


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[FakeHub]:
    with fake_hub(monkeypatch, str(tmp_path / 'cache')) as hub:
        monkeypatch.setenv('HF_TOKEN', TOKEN)
        yield hub


def assert_predict_same(model: Model, expected: Model, image: np.ndarray) -> None:
    assert (model.task, model.classes, model.palette, model.dtype) == (
        *(expected.task, expected.classes, expected.palette, expected.dtype),
    )
    first, second = model.predict(image), expected.predict(image)
    for name in ('boxes', 'scores', 'labels', 'masks', 'heights', 'objects'):
        value = getattr(second, name, None)
        if isinstance(value, np.ndarray):
            assert np.array_equal(getattr(first, name), value), name
    assert np.array_equal(first.draw(), second.draw())


@pytest.mark.parametrize(
    ('config', 'pipeline_tag'),
    [
        (DETECTOR, 'image-segmentation'),
        (SEGMENTOR, 'image-segmentation'),
        (PANOPTIC, 'image-segmentation'),
        (HEIGHTS, 'depth-estimation'),
        (BANDS, 'image-segmentation'),
    ],
)
def test_a_pushed_folder_predicts_the_same(config, pipeline_tag, checkpoint, image, tmp_path):
    folder = tmp_path / 'pushed'
    assert push(config, checkpoint(config), REPO, folder=folder) == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *('README.md', 'config.json', 'model.safetensors'),
    ]
    if config == BANDS:
        image = np.random.default_rng(0).random((96, 128, 13), np.float32)
    expected = load_model(config, checkpoint(config), 'cpu')
    assert_predict_same(load_model(folder, device='cpu'), expected, image)
    card = ModelCard.load(folder / 'README.md')
    assert card.data.pipeline_tag == pipeline_tag and card.data.library_name == 'xcit_mm'
    assert card.data.tags == ['xcit_mm', 'xcit', expected.task]


def test_only_weights_are_written_and_whole_again(checkpoint, tmp_path):
    content = torch.load(checkpoint(SEGMENTOR))
    training = dict(optimizer={'state': {}}, ema_state_dict={'steps': torch.ones(1)})
    source = tmp_path / 'iter_7.pth'
    torch.save(content | training, source)
    push(SEGMENTOR, source, REPO, folder=tmp_path / 'pushed')
    written = load_file(tmp_path / 'pushed/model.safetensors')
    assert written.keys() == content['state_dict'].keys()
    for name, value in content['state_dict'].items():
        assert torch.equal(written[name], value), name
    again = tmp_path / 'again'  # a pushed folder is pushed once more
    push(tmp_path / 'pushed', None, REPO, folder=again)
    for name in ('model.safetensors', 'config.json', 'README.md'):
        assert (again / name).read_bytes() == (tmp_path / 'pushed' / name).read_bytes()


def test_a_model_travels_through_the_hub(hub, checkpoint, image, tmp_path, monkeypatch, capfd):
    metrics, picture = tmp_path / 'metrics.json', tmp_path / 'drawn.PNG'
    values = {'coco/bbox_mAP': 0.73456, 'coco/segm_mAP_50': 0.9, 'coco/bbox_mAP_s': -1.0}
    values['coco/bbox_AP_circle'] = 0.5
    report = dict(config=DETECTOR, checkpoint=str(checkpoint(DETECTOR)), metrics=values)
    metrics.write_text(json.dumps(report))
    Image.fromarray(image).save(picture)
    options = ['--metrics', metrics, '--picture', picture, '--license', 'apache-2.0']
    weights = checkpoint(DETECTOR)
    code, output, error = call_tool(
        monkeypatch, capfd, 'push.py', DETECTOR, weights, REPO, *options, '--private'
    )
    assert (code, output) == (0, f'uploaded to {hub.address}/{REPO}\n'), error
    repo = hub.repos[REPO]
    _, files = repo.commits
    assert repo.private
    assert files.keys() == {'README.md', 'config.json', 'model.safetensors', 'picture.png'}
    assert files['picture.png'] == picture.read_bytes()

    card = ModelCard(files['README.md'].decode())
    assert (card.data.license, card.data.datasets) == ('apache-2.0', ['shapes'])
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {'coco/bbox_mAP': 0.73456, 'coco/segm_mAP_50': 0.9}
    for text in ('| Box AP | 0.7346 |', '![Predictions](picture.png)', 'circle, square, triangle'):
        assert text in card.text
    assert 'XCiT-N12/16' in card.text and f"load_model('hf://{REPO}')" in card.text

    expected = load_model(DETECTOR, weights, 'cpu')
    assert_predict_same(load_model(f'hf://{REPO}', device='cpu'), expected, image)
    assert read_checkpoint(f'hf://{REPO}').keys() == expected.module.state_dict().keys()
    out = tmp_path / 'predictions'
    arguments = [picture, '--out', out, '--score-thr', 0]
    code, output, error = call_tool(monkeypatch, capfd, 'infer.py', f'hf://{REPO}', *arguments)
    assert code == 0 and 'images      1' in output, error
    assert json.loads((out / 'predictions.json').read_text())['annotations']

    kept = [path for path in tmp_path.rglob('*') if path.is_file()]
    assert len(kept) > 5
    assert not any(TOKEN.encode() in path.read_bytes() for path in kept)
    assert not any(TOKEN.encode() in content for content in files.values())
    assert TOKEN not in output + error


def test_names_of_classes_are_no_html_in_the_card(checkpoint, tmp_path):
    names = ['<img src=x>', '[a](http://b)', '`$(c)` | # d\n---\nlicense: mit']
    options = {'test_dataloader.dataset.metainfo': dict(classes=names)}
    push(
        DETECTOR,
        checkpoint(DETECTOR),
        REPO,
        folder=tmp_path / 'pushed',
        dataset='a: [b',
        options=options,
    )
    text = (tmp_path / 'pushed/README.md').read_text()
    assert '&lt;img src=x&gt;' in text and '<img' not in text
    assert ModelCard(text).data.license is None
    assert load_model(tmp_path / 'pushed', device='cpu').classes[1] == names[1]


def test_a_public_model_is_not_taken_for_a_private_one(hub, checkpoint):
    hub.repos[REPO] = Repo([{}])
    with pytest.raises(UserError, match=f'{REPO} is a public model: make it private'):
        push(SEGMENTOR, checkpoint(SEGMENTOR), REPO, private=True)
    assert hub.repos[REPO].commits == [{}]


def test_an_upload_without_a_valid_token_is_a_sentence(hub, checkpoint, monkeypatch):
    for token in ('hf_wrong', None):
        if token is None:
            monkeypatch.delenv('HF_TOKEN')
        else:
            monkeypatch.setenv('HF_TOKEN', token)
        with pytest.raises(UserError, match=f'{REPO}: .*401') as error:
            push(SEGMENTOR, checkpoint(SEGMENTOR), REPO)
        assert 'hf_wrong' not in str(error.value)
    assert hub.repos == {}


@pytest.mark.parametrize(
    ('changed', 'message'),
    [
        (dict(repo='name'), 'hf://name is not of the form'),
        (dict(repo='owner/name@v1'), 'leave out @v1'),
        (dict(folder=ROOT / 'docs'), '--folder .*docs already exists: name a new folder'),
        (dict(config='configs/classify_xcit_n12_8_shapes.py'), 'default_scope='),
    ],
)
def test_a_wrong_argument_is_an_error_and_nothing_is_written(
    checkpoint, tmp_path, changed, message
):
    arguments = dict(
        config=SEGMENTOR, checkpoint=checkpoint(SEGMENTOR), repo=REPO, folder=tmp_path / 'pushed'
    )
    with pytest.raises(UserError, match=message):
        push(**arguments | changed)
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_alone_has_no_weights(monkeypatch, capfd, tmp_path):
    with pytest.raises(UserError, match='has no weights of its own: name a checkpoint, too'):
        load_model(SEGMENTOR)
    out = ['--out', tmp_path / 'out']
    code, _, error = call_tool(monkeypatch, capfd, 'infer.py', SEGMENTOR, *out, 'weights.pth')
    assert code == 2 and f'{SEGMENTOR}: name a checkpoint and inputs' in error
