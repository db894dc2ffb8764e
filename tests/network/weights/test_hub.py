"""Models on the hub: only the config and the weights are downloaded, and refusals are sentences."""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.fake_hub import TOKEN, FakeHub, Repo, fake_hub, sha
from huggingface_hub import constants
from safetensors.torch import save

from xcit_mm import UserError, XCiT
from xcit_mm.base.shipped import is_folder
from xcit_mm.config.load import load_config
from xcit_mm.network.weights.hub import download_model, find_file, parse_name
from xcit_mm.network.weights.pretrained import download_pretrained, load_pretrained, require_file
from xcit_mm.network.weights.read import read_checkpoint

DATA = {'weight': torch.arange(1000.0)}
NAME = 'hf://owner/name'


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[FakeHub]:
    """A hub with a model of two commits."""
    with fake_hub(monkeypatch, str(tmp_path / 'cache')) as hub:
        hub.repos['owner/name'] = repo = Repo()
        other = dict(README__md=b'# <script>', evil__py=b'raise SystemExit', pytorch_model__bin=b'')
        repo.commit(config__json=b'{}', model__safetensors=save({'weight': torch.zeros(9)}))
        repo.commit(model__safetensors=save(DATA), **other)
        yield hub


def test_only_the_config_and_the_weights_of_one_commit_are_downloaded(hub):
    assert torch.equal(read_checkpoint(NAME)['weight'], DATA['weight'])
    file = find_file(NAME)
    assert file.parent.name == sha(1)
    assert sorted(path.name for path in file.parent.iterdir()) == ['config.json', file.name]
    hub.repos['owner/name'].commit(model__safetensors=save({}))
    assert find_file(NAME) == file  # a process uses one commit
    download_model.cache_clear()
    assert find_file(NAME).parent.name == sha(2)


def test_a_revision_is_pinned(hub):
    assert read_checkpoint(f'{NAME}@{sha(0)}')['weight'].shape == (9,)
    with pytest.raises(UserError, match=f'{NAME}@v2: .*Revision Not Found'):
        find_file(f'{NAME}@v2')


def test_what_was_downloaded_is_there_without_a_network(hub, monkeypatch):
    file = find_file(NAME)
    download_model.cache_clear()
    monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:1')
    assert find_file(NAME) == file
    with pytest.raises(UserError, match=r'hf://a/b: ConnectError'):
        find_file('hf://a/b')


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('hf://owner/gone', 'Repository Not Found'),
        ('hf://owner/private', 'make sure you are authenticated'),
        ('hf://owner/gated', 'Cannot access gated repo'),
        ('hf://owner', 'is not of the form hf://owner/name'),
        ('hf://owner/../name', 'is not of the form'),
        ('hf://owner/name@', 'is not of the form'),
        ('hf://owner/name@../../../../notes', 'is not of the form'),
        ('hf://owner/name@a/../b', 'is not of the form'),
        ('hf://../name', 'is not of the form'),
    ],
)
def test_a_refusal_is_a_sentence(hub, name, message):
    hub.repos['owner/private'] = Repo([{}], private=True)
    hub.repos['owner/gated'] = Repo([{}], gated=True)
    with pytest.raises(UserError, match=f'^{name}:? .*{message}'):
        require_file(name)


@pytest.mark.parametrize('token', ['hf_wrong', 'hf_wröng', 'hf_wr\tong'])
def test_a_wrong_token_is_an_error_without_it(hub, monkeypatch, token):
    hub.repos['owner/private'] = Repo([{}], private=True)
    monkeypatch.setenv('HF_TOKEN', token)
    with pytest.raises(UserError, match=r'401|UnicodeEncodeError') as error:
        find_file('hf://owner/private')
    assert token not in str(error.value) and 'wr' not in str(error.value)


class Call:
    """What a pickle runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def test_a_pickle_is_not_even_downloaded_without_trust(hub, tmp_path):
    trace = tmp_path / 'trace'
    hub.repos['owner/pickle'] = repo = Repo()
    repo.commit(config__json=b'{}', pytorch_model__bin=pickle.dumps(Call(trace)))
    with pytest.raises(UserError, match=r'hf://owner/pickle has no model\.safetensors: .*--trust'):
        read_checkpoint('hf://owner/pickle')
    assert not any('pytorch_model.bin' in request for request in hub.requests)
    assert find_file('hf://owner/pickle', trusted=True).name == 'pytorch_model.bin'
    assert not trace.exists()
    torch.save({'a': torch.ones(1)}, tmp_path / 'pytorch_model.bin')
    assert read_checkpoint(tmp_path, trusted=True)['a'] == 1  # a folder with the same file
    with pytest.raises(UserError, match=r'has no model\.safetensors'):
        read_checkpoint(tmp_path)


def test_a_pickle_is_of_the_commit_of_the_config_and_is_not_downloaded_without_need(hub):
    hub.repos['owner/pickle'] = repo = Repo()
    first = repo.commit(config__json=b'{}', pytorch_model__bin=b'first')
    config = find_file('hf://owner/pickle', file='config.json')
    repo.commit(config__json=b'{"another": 1}', pytorch_model__bin=b'second')
    weights = find_file('hf://owner/pickle', trusted=True)
    assert config.parent == weights.parent and weights.parent.name == first
    assert weights.read_bytes() == b'first'
    hub.requests.clear()
    assert find_file(NAME, trusted=True).name == 'model.safetensors'
    assert not any('pytorch_model.bin' in request for request in hub.requests)


def test_a_training_cannot_start_from_what_the_hub_does_not_have(hub):
    cfg = load_config('configs/mask_rcnn_xcit_s12_8_3x.py', {'pretrained': 'hf://owner/of_nobody'})
    with pytest.raises(UserError, match=r'hf://owner/of_nobody: .*Repository Not Found'):
        download_pretrained(cfg)


def test_names_of_the_hub_and_folders_are_known(tmp_path):
    from tools.cli import has_weights

    assert parse_name('hf://a/b.c-d@refs/pr/1') == ('a/b.c-d', 'refs/pr/1')
    for name, expected in {
        NAME: True,
        tmp_path: True,
        'config.py': False,
        'setup.py': False,
        '~nobody_of_this_name/model': False,
        'x' * 300: False,
    }.items():
        assert is_folder(name) == has_weights(str(name)) == expected


def test_a_folder_hides_a_config_of_this_package_only_if_it_is_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = 'mask_rcnn_xcit_n12_16_shapes'
    (tmp_path / name).mkdir()  # of results
    assert not is_folder(name) and load_config(name).model.type == 'MaskRCNN'
    (tmp_path / name / 'config.json').touch()
    assert is_folder(name)


def test_an_exported_folder_is_predicted_with_by_its_own_program(tmp_path):
    folder = tmp_path / 'exported'
    folder.mkdir()
    (folder / 'model.onnx').touch()
    with pytest.raises(UserError, match=r'exported has no config\.json.* that tools/push'):
        load_config(folder)
    (folder / 'predict.py').touch()
    program = re.escape(f'{folder} is an exported model, which its own program predicts with: ')
    with pytest.raises(UserError, match=f'^{program}python {folder}/predict.py IMAGE$'):
        load_config(folder)


def test_a_download_that_breaks_off_is_an_error_and_then_whole(hub, monkeypatch):
    monkeypatch.setattr('time.sleep', lambda seconds: None)
    hub.cut = 100
    with pytest.raises(UserError, match=f'{NAME}: RemoteProtocolError'):
        find_file(NAME)
    hub.cut = None
    assert torch.equal(read_checkpoint(NAME)['weight'], DATA['weight'])


def test_a_token_opens_a_private_model(hub, monkeypatch):
    hub.repos['owner/name'].private = True
    monkeypatch.setenv('HF_TOKEN', TOKEN)
    assert find_file(NAME).is_file()


def test_a_backbone_starts_from_the_hub(hub):
    source = XCiT(arch='n12')
    hub.repos['owner/backbone'] = repo = Repo()
    repo.commit(model__safetensors=save(source.state_dict()))
    backbone = XCiT(arch='n12')
    load_pretrained(backbone, 'hf://owner/backbone')
    for name, value in source.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], value), name
    cfg = load_config('configs/mask_rcnn_xcit_s12_8_3x.py', {'pretrained': 'hf://owner/of_nobody'})
    with pytest.raises(UserError, match=r'hf://owner/of_nobody: .*Repository Not Found'):
        download_pretrained(cfg)
