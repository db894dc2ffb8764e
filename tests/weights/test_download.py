"""The weights that a run starts from: downloads are whole in the cache or not there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import ROOT
from helpers.file_server import serving
from mmengine.runner import CheckpointLoader
from safetensors.torch import save

from xcit_mm import UserError, XCiT, http
from xcit_mm.engine.config.load import load_config
from xcit_mm.http import UnreachableError
from xcit_mm.weights.download import cache_path, download
from xcit_mm.weights.pretrained import pretrained_weights, read_all_safely
from xcit_mm.weights.read import read_checkpoint

MEGABYTE = 2**20
REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(http, 'PAUSE', 0)
    with serving() as server:
        yield server


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty cache, and a closed port instead of the server."""
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')


@pytest.fixture
def cached(tmp_path) -> Callable[[], list[str]]:
    """The names of the files in the cache, without the locks and what is in front of the names."""

    def cached() -> list[str]:
        files = (p for p in (tmp_path / 'cache').rglob('*') if p.is_file())
        return [p.name.partition('_')[2] for p in files if p.suffix != '.lock']

    return cached


def weights(size: int = 100) -> bytes:
    return save({'weight': torch.arange(size, dtype=torch.float32)})


def test_processes_that_ask_at_once_get_one_download(server, cached):
    server.files['/xcit/a.pth'] = weights(MEGABYTE)
    url = server.url('/xcit/a.pth')
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(download, [url] * 4))
    assert paths == {cache_path(url)} == {download(url)}
    assert cache_path(url).read_bytes() == weights(MEGABYTE)
    assert server.requests == ['/xcit/a.pth']
    assert cached() == ['a.pth']


def test_files_of_the_same_name_are_kept_apart_in_the_cache(server, tmp_path):
    server.files |= {'/one/a.pth': weights(1), '/two/a.pth': weights(2), '/a.pth?v=3': weights(3)}
    for number, path in enumerate(('/one/a.pth', '/two/a.pth', '/a.pth?v=3'), start=1):
        assert download(server.url(path)).read_bytes() == weights(number)
    for path in ('/../../y.pth', '/..', f'/{"y" * 500}.pth', f'/y.pth?signature={"0" * 500}'):
        cached = cache_path(f'http://h{path}')
        assert cached.parent == tmp_path / 'cache' / 'checkpoints' and len(cached.name) < 150


def test_an_interrupted_download_is_resumed(server, cached):
    server.files['/a.pth'] = weights(MEGABYTE)
    server.versions['/a.pth'] = '"1"'
    server.cuts += [MEGABYTE] + [0] * (http.ATTEMPTS - 1)
    with pytest.raises(UserError, match='the connection broke off'):
        download(server.url('/a.pth'))
    assert 'a.pth' not in cached()
    assert download(server.url('/a.pth')).read_bytes() == weights(MEGABYTE)
    assert server.ranges == [None] + [f'bytes={MEGABYTE}-'] * http.ATTEMPTS
    assert cached() == ['a.pth']


@pytest.mark.parametrize(
    ('content', 'message'),
    [(None, 'the server answers 404'), (b'<html>Log in</html>', 'is not a checkpoint: .*<html>')],
)
def test_a_wrong_address_or_a_web_page_leaves_nothing(server, cached, content, message):
    server.files |= {'/a.pth': content} if content else {}
    with pytest.raises(UserError, match=rf'/a\.pth.* {message}'):
        download(server.url('/a.pth'))
    assert cached() == []


def test_without_a_network_the_local_way_is_named(server):
    url = server.url('/a.pth')
    server.go_away()
    message = rf'{url} cannot be reached \(.*name the local file .*or save it as {cache_path(url)}'
    with pytest.raises(UnreachableError, match=message):
        download(url)


def test_an_unreadable_file_or_folder_of_the_cache_is_named(server, tmp_path):
    url = server.url('/a.pth')
    server.files['/a.pth'] = b'PK\x03\x04 and no more'
    path = download(url)
    with pytest.raises(UserError, match=rf'{url} \({path}: delete it to download it again\)'):
        read_checkpoint(url)
    (tmp_path / 'cache').rename(tmp_path / 'moved')
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache' / 'checkpoints').touch()
    with pytest.raises(UserError, match=r'cannot be kept as .*cache/checkpoints'):
        download(url)


def test_a_backbone_starts_from_a_url(server, tmp_path):
    source = XCiT('n12', 16)
    torch.save({'model': source.state_dict()}, tmp_path / 'a.pth')
    server.files['/xcit_nano.pth'] = (tmp_path / 'a.pth').read_bytes()
    init_cfg = dict(type='Pretrained', checkpoint=server.url('/xcit_nano.pth'))
    model = XCiT('n12', 16, init_cfg=init_cfg)
    model.init_weights()
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_no_training_starts_at_random_by_itself(offline):
    message = r'384_dist\.pth cannot be reached .*--cfg-options pretrained=FILE.*pretrained=None'
    with pytest.raises(UnreachableError, match=message):
        pretrained_weights(load_config(REAL, {'train_cfg.max_iters': 5}))
    for cfg in (load_config(SHAPES), load_config(REAL, {'pretrained': None})):
        (note,) = pretrained_weights(cfg)
        assert 'starts from random weights' in note


def test_the_weights_in_the_cache_are_enough_and_the_config_is_not_changed(offline):
    cfg = load_config(REAL)
    before = cfg.to_dict()
    path = cache_path(cfg.pretrained)
    path.parent.mkdir(parents=True)
    path.touch()
    assert pretrained_weights(cfg) == []
    assert cfg.to_dict() == before


def test_a_file_must_exist(tmp_path):
    cfg = load_config(REAL, {'pretrained': str(tmp_path / 'mine.pth')})
    with pytest.raises(UserError, match=r'mine\.pth does not exist'):
        pretrained_weights(cfg)
    (tmp_path / 'mine.pth').touch()
    assert pretrained_weights(cfg) == []


def test_mmengine_reads_safely_within_the_block_only(tmp_path):
    torch.save({'a': torch.nn.Identity()}, tmp_path / 'code.pth')
    before = dict(CheckpointLoader._schemes)
    with read_all_safely(trusted=True):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    with read_all_safely(trusted=False), pytest.raises(UserError, match='more than weights'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    assert dict(CheckpointLoader._schemes) == before
