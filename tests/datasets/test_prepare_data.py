"""COCO and ADE20k prepared from a server on this machine, in small."""

import hashlib
import io
import json
import multiprocessing
import resource
import runpy
import signal
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
import pytest
from filelock import FileLock
from helpers import PATIENCE, ROOT, wait_until
from helpers.file_server import serving

from xcit_mm import UserError, http
from xcit_mm.datasets import download as module
from xcit_mm.datasets.config import check_data
from xcit_mm.datasets.download import ADE20K, COCO, DATASETS, Dataset, prepare
from xcit_mm.engine.config.load import load_config

IMAGES = 3  # in each folder
JPEG = np.random.default_rng(0).bytes(40_000)  # enough for an interruption to be in its midst
JSON = json.dumps(dict(images=[], annotations=[], categories=[])).encode()
CONFIGS = {'coco': 'mask_rcnn_xcit_n12_16_3x.py', 'ade20k': 'sem_fpn_xcit_t12_16_80k.py'}


def zipped(files: dict[str | ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, 'w', ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def files_of(archive: module.Archive) -> dict[str, bytes]:
    """What is in the small archive that stands for a large one: with its folders and names."""
    files = {f'{archive.folder}/captions.txt': b'not looked at'}
    for folder in archive.images:
        suffix = 'png' if folder.startswith('annotations') else 'jpg'
        place = archive.folder if folder == '.' else f'{archive.folder}/{folder}'
        files |= {f'{place}/{number:012d}.{suffix}': JPEG for number in range(IMAGES)}
    return files | {f'{archive.folder}/{name}': JSON for name in archive.annotations}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(http, 'PAUSE', 0)
    with serving() as server:
        yield server


@pytest.fixture
def serve(server) -> Callable[..., Dataset]:
    """A small dataset in the layout of a large one; ``changed`` replaces archives by name."""

    def serve(large: Dataset, **changed: bytes) -> Dataset:
        archives = []
        for archive in large.archives:
            content = changed.get(archive.folder) or zipped(files_of(archive))
            server.files[f'/{archive.name}'] = content
            server.versions[f'/{archive.name}'] = '"1"'
            small = replace(
                archive,
                url=server.url(f'/{archive.name}'),
                size=len(content),
                md5=hashlib.md5(content).hexdigest(),
                unpacked=2 * 10**6,
                images=dict.fromkeys(archive.images, IMAGES),
                annotations=dict.fromkeys(archive.annotations, len(JSON)),
            )
            archives.append(small)
        return replace(large, archives=tuple(archives))

    return serve


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != module.LOCK}


@pytest.mark.parametrize('name', DATASETS)
def test_it_leaves_what_the_configs_expect_and_comes_once(serve, server, tmp_path, name):
    lines: list[str] = []
    dataset = serve(DATASETS[name])
    data_root = prepare(dataset, tmp_path, say=lines.append)
    options = {'data_root': str(data_root)}
    check_data(load_config(str(ROOT / 'configs' / CONFIGS[name]), options), ('train', 'val'))
    assert names(tmp_path) == {archive.folder for archive in dataset.archives}
    for archive in dataset.archives:
        for path, content in files_of(archive).items():
            assert (tmp_path / path).read_bytes() == content
    assert all('unpacked and checked' in line for line in lines)

    asked, lines[:] = len(server.requests), []
    assert prepare(dataset, tmp_path, say=lines.append) == data_root
    assert [line for line in lines if 'already there' not in line] == []
    assert len(server.requests) == asked == len(dataset.archives)


@pytest.mark.parametrize('name', DATASETS)
def test_the_default_root_is_where_the_configs_look(name):
    config = load_config(str(ROOT / 'configs' / CONFIGS[name]), {})
    dataset = DATASETS[name]
    assert Path(dataset.root, dataset.data_root) == Path(config.data_root)


def test_the_tool_prepares_what_an_evaluation_needs(serve, server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(DATASETS, 'coco', serve(COCO))
    monkeypatch.chdir(tmp_path)
    for already in (False, True):
        run_tool(monkeypatch, 'coco', '--splits', 'val')
        output = capsys.readouterr().out
        assert ('data/coco/val2017: already there (3 files)' in output) == already
        assert 'data_root' not in output
    assert names(tmp_path / 'data/coco') == {'annotations', 'val2017'}
    assert not any('train2017' in path for path in server.requests)
    run_tool(monkeypatch, 'coco', '--root', 'elsewhere', '--splits', 'val')
    assert '--cfg-options data_root=elsewhere' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['ade20k', '--splits', 'val'], 'not apart in ADEChallengeData2016.zip: ask for both'),
        (['coco', '--mirror', 'ftp://a/b'], 'the mirror ftp://a/b is no address of the form'),
        (['coco', '--root', 'file'], 'the folder file cannot be written to'),
    ],
)
def test_the_tool_says_what_is_wrong(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit) as end:
        run_tool(monkeypatch, *arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def run_tool(monkeypatch, *arguments: str) -> None:
    tool = str(ROOT / 'tools/prepare_data.py')
    monkeypatch.setattr(sys, 'argv', [tool, *arguments])
    monkeypatch.setattr(sys, 'path', list(sys.path))
    runpy.run_path(tool, run_name='__main__')


def test_a_killed_download_goes_on_where_it_was(serve, server, tmp_path):
    come = 1_000  # bytes, fewer than a buffer holds back
    dataset = serve(COCO)
    dataset = replace(dataset, archives=dataset.archives[1:2])
    server.cuts, server.breaks_by = [come], 'silence'
    child = multiprocessing.get_context('fork').Process(target=prepare, args=(dataset, tmp_path))
    child.start()
    assert server.waiting.wait(PATIENCE)
    part = tmp_path / module.DOWNLOADS / '.val2017.zip.part'
    wait_until(lambda: part.exists() and part.stat().st_size == come)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert names(tmp_path) == {module.DOWNLOADS}

    prepare(dataset, tmp_path)
    assert server.ranges == [None, f'bytes={come}-']
    assert names(tmp_path) == {'val2017'}


def test_a_kill_while_unpacking_or_before_the_end_leaves_no_trace(serve, server, tmp_path):
    dataset = serve(COCO)
    prepare(dataset, tmp_path, keep_archives=True)
    half = tmp_path / module.DRAFT / 'val2017'
    half.mkdir(parents=True)
    (half / 'half.jpg').write_bytes(JPEG[:10])
    (tmp_path / 'val2017.zip').rename(tmp_path / module.DOWNLOADS / 'val2017.zip')
    (tmp_path / 'val2017').rename(tmp_path / 'away')
    (tmp_path / 'train2017.zip').rename(tmp_path / module.DOWNLOADS / 'train2017.zip')
    server.requests.clear()
    prepare(dataset, tmp_path)
    kept = {'annotations', 'annotations_trainval2017.zip', 'train2017', 'val2017', 'away'}
    assert names(tmp_path) == kept
    assert len(list((tmp_path / 'val2017').glob('*.jpg'))) == IMAGES
    assert server.requests == []


def test_those_that_ask_at_once_get_one_download(serve, server, tmp_path):
    dataset = serve(COCO)
    lines: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        with FileLock(tmp_path / module.LOCK):
            calls = [pool.submit(prepare, dataset, tmp_path, say=lines.append) for _ in range(3)]
            wait_until(lambda: len(lines) >= 3)
            assert lines == [f'Another process prepares {tmp_path}: waiting for it'] * 3
            assert server.requests == []
        for call in calls:
            call.result()
    assert len(server.requests) == len(dataset.archives)


def test_archives_can_stay_and_be_brought(serve, server, tmp_path):
    dataset = serve(COCO)
    prepare(dataset, tmp_path / 'one', keep_archives=True)
    archives = [tmp_path / 'one' / archive.name for archive in dataset.archives]
    assert all(archive.is_file() for archive in archives)
    (tmp_path / 'two').mkdir()
    for archive in archives:
        archive.rename(tmp_path / 'two' / archive.name)
    server.requests.clear()
    prepare(dataset, tmp_path / 'two')
    assert server.requests == []
    assert {'val2017', 'val2017.zip'} <= names(tmp_path / 'two')


@pytest.mark.parametrize(
    ('change', 'fault'),
    [(lambda c: c[:-1], r'has [\d,]+ bytes instead of'), (lambda c: b'?' + c[1:], 'its MD5 is')],
)
def test_an_archive_that_is_brought_is_checked(serve, server, tmp_path, change, fault):
    dataset = serve(ADE20K)
    file = tmp_path / 'ADEChallengeData2016.zip'
    file.write_bytes(change(server.files[f'/{file.name}']))
    with pytest.raises(UserError, match=rf'{file} .*{fault}.*: move it away, and it is downloaded'):
        prepare(dataset, tmp_path)
    assert names(tmp_path) == {file.name}


def test_a_wrong_checksum_is_said_and_the_file_not_kept(serve, server, tmp_path):
    dataset = serve(ADE20K)
    path = '/ADEChallengeData2016.zip'
    right = server.files[path]
    server.files[path] = right[:-1] + b'?'
    with pytest.raises(UserError, match=rf'{path} is damaged, .* not {dataset.archives[0].md5}'):
        prepare(dataset, tmp_path)
    assert names(tmp_path / module.DOWNLOADS) == set()
    server.files[path] = right
    prepare(dataset, tmp_path)
    assert names(tmp_path) == {'ADEChallengeData2016'}


def test_a_mirror_takes_the_place_of_the_server(serve, server, tmp_path):
    dataset = serve(ADE20K)
    path = '/ADEChallengeData2016.zip'
    with pytest.raises(UserError, match=rf'/mirror{path}: the server answers 404'):
        prepare(dataset, tmp_path, mirror=server.url('/mirror'))
    server.files[f'/mirror{path}'] = server.files.pop(path)
    prepare(dataset, tmp_path, mirror=server.url('/mirror/'))
    assert server.requests == [f'/mirror{path}'] * 2


def test_without_a_network_the_other_ways_are_said(serve, server, tmp_path):
    dataset = serve(ADE20K)
    server.go_away()
    with pytest.raises(UserError, match=rf'cannot be reached .*2016\.zip from .* into {tmp_path}'):
        prepare(dataset, tmp_path)


def test_too_small_a_disk_is_said_before_anything_is_downloaded(serve, server, tmp_path):
    dataset = serve(COCO)
    large = replace(dataset.archives[2], unpacked=3 * 10**18)
    dataset = replace(dataset, archives=(*dataset.archives[:2], large))
    with pytest.raises(UserError, match=r'needs 3,000,000,000\.0 GB .*, and the disk has'):
        prepare(dataset, tmp_path)
    assert server.requests == []
    prepare(dataset, tmp_path, splits=['val'])


def test_the_space_for_what_is_there_is_not_asked_for_again(serve, server, tmp_path, monkeypatch):
    dataset = serve(ADE20K)
    (archive,) = dataset.archives
    server.cuts = [archive.size // 2] + [0] * (http.ATTEMPTS - 1)
    with pytest.raises(UserError, match='broke off'):
        prepare(dataset, tmp_path)
    needed = archive.size - archive.size // 2 + archive.unpacked
    free = needed - 1
    monkeypatch.setattr(module.shutil, 'disk_usage', lambda path: SimpleNamespace(free=free))
    with pytest.raises(UserError, match='make room'):
        prepare(dataset, tmp_path)
    free = needed
    prepare(dataset, tmp_path)


def test_a_disk_that_fills_meanwhile_is_said_and_what_has_come_stays(serve, server, tmp_path):
    dataset = serve(ADE20K)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(UserError, match=rf'{tmp_path} cannot be used .*; what has come stays'):
            prepare(dataset, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    prepare(dataset, tmp_path)
    assert server.ranges == [None, 'bytes=50000-']


def link(name: str) -> ZipInfo:
    entry = ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    'entry', ['../out', 'val2017/../../out', '/out', '..\\out', link('val2017/a.jpg')]
)
def test_an_archive_that_leads_out_of_its_folder_is_refused(serve, server, tmp_path, entry):
    evil = zipped({**files_of(COCO.archives[1]), entry: b'..'})
    root = tmp_path / 'root'
    with pytest.raises(
        UserError, match=r'val2017\.zip is not unpacked: its entry .*(outside|link)'
    ):
        prepare(serve(COCO, val2017=evil), root, ['val'])
    assert names(tmp_path) == {'root'}
    assert names(root) == {'annotations', module.DOWNLOADS}
    assert names(root / module.DOWNLOADS) == {'val2017.zip'}


def test_an_encrypted_archive_is_refused(serve, server, tmp_path):
    archive = bytearray(zipped(files_of(COCO.archives[1])))
    archive[archive.rindex(b'PK\x01\x02') + 8] |= 1  # a flag in the list of its entries
    with pytest.raises(UserError, match=r'val2017\.zip is not unpacked: .* is encrypted'):
        prepare(serve(COCO, val2017=bytes(archive)), tmp_path, ['val'])


def test_a_damaged_archive_is_named(serve, server, tmp_path):
    good = zipped(files_of(COCO.archives[1]))
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    for damaged in (good[:-100], flipped, b'no archive at all'):
        with pytest.raises(UserError, match=r'val2017\.zip is damaged .*: remove it'):
            prepare(serve(COCO, val2017=damaged), tmp_path, ['val'])
        assert names(tmp_path) == {'annotations', module.DOWNLOADS}
        (tmp_path / module.DOWNLOADS / 'val2017.zip').unlink()


def test_an_archive_without_all_of_the_layout_is_not_taken(serve, server, tmp_path):
    files = files_of(ADE20K.archives[0])
    files.pop('ADEChallengeData2016/annotations/validation/000000000001.png')
    dataset = serve(ADE20K, ADEChallengeData2016=zipped(files))
    with pytest.raises(UserError, match='annotations/validation has 2 images instead of 3'):
        prepare(dataset, tmp_path)
    assert names(tmp_path) == {module.DOWNLOADS}

    broken = {**files_of(COCO.archives[0]), 'annotations/instances_val2017.json': b'{' * len(JSON)}
    with pytest.raises(UserError, match=r'instances_val2017\.json is no annotation file'):
        prepare(serve(COCO, annotations=zipped(broken)), tmp_path)
    assert names(tmp_path) == {module.DOWNLOADS}


def test_a_folder_that_is_not_whole_is_named_and_left(serve, server, tmp_path):
    dataset = serve(COCO)
    image = tmp_path / 'val2017' / 'own.jpg'
    image.parent.mkdir()
    prepare(replace(dataset, archives=dataset.archives[:1]), tmp_path)
    image.touch()
    with pytest.raises(UserError, match='val2017 has 1 images instead of 3: move it away'):
        prepare(dataset, tmp_path)
    assert image.exists()
    image.unlink()
    (tmp_path / 'annotations' / 'instances_train2017.json').write_text('{}')
    with pytest.raises(UserError, match=r'instances_train2017\.json has 2 bytes instead of'):
        prepare(dataset, tmp_path)
    assert len(server.requests) == 1


def test_a_folder_may_be_a_link_if_all_of_it_is_there(serve, server, tmp_path):
    dataset = serve(ADE20K)
    prepare(dataset, tmp_path / 'one')
    (tmp_path / 'two').mkdir()
    linked = tmp_path / 'two' / 'ADEChallengeData2016'
    linked.symlink_to(tmp_path / 'one' / 'ADEChallengeData2016')
    prepare(dataset, tmp_path / 'two')
    linked.unlink()
    linked.symlink_to(tmp_path / 'nowhere')
    with pytest.raises(UserError, match='images/training has 0 images instead of 3'):
        prepare(dataset, tmp_path / 'two')
    assert len(server.requests) == 1
