"""The weights that a run starts from: downloads are whole in the cache or not there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import ROOT
from helpers.file_server import serving
from mmengine.runner import CheckpointLoader
from safetensors.torch import save

from xcit_mm import UserError
from xcit_mm.base import http
from xcit_mm.config.load import load_config
from xcit_mm.network.weights.cache import cache_path, download
from xcit_mm.network.weights.pretrained import download_pretrained, read_all_safely
from xcit_mm.network.weights.read import read_checkpoint

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
def cached(tmp_path) -> Callable[[], list[str]]:
    """The names of the files in the cache, without the locks and what is in front of the names."""

    def cached() -> list[str]:
        files = (p for p in (tmp_path / 'cache').rglob('*') if p.is_file())
        return [p.name.partition('_')[2] for p in files if p.suffix != '.lock']

    return cached


def weights(size: int = 100) -> bytes:
    return save({'weight': torch.arange(size, dtype=torch.float32)})


def test_processes_resume_an_interrupted_download_once(server, cached):
    server.files['/xcit/a.pth'], server.versions['/xcit/a.pth'] = weights(MEGABYTE), '"1"'
    url = server.url('/xcit/a.pth')
    server.cuts += [MEGABYTE] + [0] * (http.ATTEMPTS - 1)
    with pytest.raises(UserError, match='the connection broke off'):
        download(url)
    assert 'a.pth' not in cached()
    server.ranges.clear()
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(download, [url] * 4))
    assert paths == {cache_path(url)} == {download(url)}
    assert cache_path(url).read_bytes() == weights(MEGABYTE)
    assert server.ranges == [f'bytes={MEGABYTE}-']
    assert cached() == ['a.pth']


def test_files_of_the_same_name_are_kept_apart_in_the_cache(server, tmp_path):
    server.files |= {'/one/a.pth': weights(1), '/two/a.pth': weights(2), '/a.pth?v=3': weights(3)}
    for number, path in enumerate(('/one/a.pth', '/two/a.pth', '/a.pth?v=3'), start=1):
        assert download(server.url(path)).read_bytes() == weights(number)
    for path in ('/../../y.pth', '/..', f'/{"y" * 500}.pth', f'/y.pth?signature={"0" * 500}'):
        cached = cache_path(f'http://h{path}')
        assert cached.parent == tmp_path / 'cache' / 'checkpoints' and len(cached.name) < 150


@pytest.mark.parametrize(
    ('content', 'message'),
    [(None, 'the server answers 404'), (b'<html>Log in</html>', 'is not a checkpoint: .*<html>')],
)
def test_a_wrong_address_or_a_web_page_leaves_nothing(server, cached, content, message):
    server.files |= {'/a.pth': content} if content else {}
    with pytest.raises(UserError, match=rf'/a\.pth.* {message}'):
        download(server.url('/a.pth'))
    assert cached() == []


def test_an_unreadable_file_of_the_cache_is_named(server):
    url = server.url('/a.pth')
    server.files['/a.pth'] = b'PK\x03\x04 and no more'
    path = download(url)
    with pytest.raises(UserError, match=rf'{url} \({path}: delete it to download it again\)'):
        read_checkpoint(url)


def test_a_training_starts_with_its_weights_or_at_random_if_that_is_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')  # a closed port
    cfg = load_config(REAL)
    before, cached = cfg.to_dict(), cache_path(cfg.pretrained)
    message = rf'{cfg.pretrained} cannot be reached \(.* another machine and save it as {cached}, '
    with pytest.raises(UserError, match=rf'{message}.*pretrained=FILE.* pretrained=None'):
        download_pretrained(cfg)
    cached.parent.mkdir(exist_ok=True)
    cached.touch()
    assert download_pretrained(cfg) == []
    assert cfg.to_dict() == before

    cfg = load_config(REAL, {'pretrained': str(tmp_path / 'mine.pth')})
    with pytest.raises(UserError, match=r'mine\.pth does not exist'):
        download_pretrained(cfg)
    (tmp_path / 'mine.pth').touch()
    assert download_pretrained(cfg) == []

    for cfg in (load_config(SHAPES), load_config(REAL, {'pretrained': None})):
        (note,) = download_pretrained(cfg)
        assert 'starts from random weights' in note


def test_mmengine_reads_safely_within_the_block_only(tmp_path):
    torch.save({'a': torch.nn.Identity()}, tmp_path / 'code.pth')
    before = dict(CheckpointLoader._schemes)
    with read_all_safely(trusted=True):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    with read_all_safely(trusted=False), pytest.raises(UserError, match='more than weights'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    assert dict(CheckpointLoader._schemes) == before
