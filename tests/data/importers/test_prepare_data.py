"""COCO and ADE20k, prepared in small from a server on this machine."""

import hashlib
import json
import resource
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipInfo

import numpy as np
import pytest
from helpers import ROOT
from helpers.file_server import serving
from helpers.in_process import call_tool
from helpers.pickles import zipped

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check_data
from xcit_mm.data.datasets import fetch as module
from xcit_mm.data.datasets.fetch import ADE20K, COCO, DATASETS, DOWNLOADS, Archive, Dataset, prepare

IMAGES = 3  # in each folder
JPEG = np.random.default_rng(0).bytes(40_000)  # large enough to be interrupted
JSON = json.dumps(dict(images=[], annotations=[], categories=[])).encode()
CONFIGS = {'coco': 'mask_rcnn_xcit_n12_16_3x.py', 'ade20k': 'sem_fpn_xcit_t12_16_80k.py'}
ADE_ZIP = '/ADEChallengeData2016.zip'
ADE_FOLDERS = [
    f'{kind}/{split}' for kind in ('images', 'annotations') for split in ('training', 'validation')
]


def files_of(archive: Archive) -> dict[str, bytes]:
    """Return the files of a small archive in the layout of a large one."""
    files = {f'{archive.folder}/captions.txt': b'ignored'}
    if archive.folder == 'annotations':
        names = 'instances_train2017.json', 'instances_val2017.json'
        return files | {f'annotations/{name}': JSON for name in names}
    is_ade = archive.folder == 'ADEChallengeData2016'
    for folder in ADE_FOLDERS if is_ade else ['.']:
        suffix = 'png' if folder.startswith('annotations') else 'jpg'
        paths = (Path(archive.folder, folder, f'{n:012d}.{suffix}') for n in range(IMAGES))
        files |= {str(path): JPEG for path in paths}
    return files


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def serve(server) -> Callable[..., Dataset]:
    """Serve a small dataset; ``changed`` replaces the archives of some folders."""

    def serve(large: Dataset, **changed: bytes) -> Dataset:
        archives = []
        for archive in large.archives:
            content = changed.get(archive.folder) or zipped(files_of(archive), ZIP_DEFLATED)
            server.files[f'/{archive.name}'] = content
            server.versions[f'/{archive.name}'] = '"1"'
            small = replace(
                archive,
                url=server.url(f'/{archive.name}'),
                size=len(content),
                md5=hashlib.md5(content).hexdigest(),
            )
            archives.append(small)
        return replace(large, archives=tuple(archives))

    return serve


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != module.LOCK}


@pytest.mark.parametrize('name', DATASETS)
def test_a_dataset_is_prepared_once_in_the_layout_of_the_configs(
    serve, server, tmp_path, capsys, name
):
    dataset = serve(DATASETS[name])
    config = str(ROOT / 'configs' / CONFIGS[name])
    assert Path(dataset.root, dataset.data_root) == Path(load_config(config, {}).data_root)
    data_root = prepare(dataset, tmp_path)
    check_data(load_config(config, {'data_root': str(data_root)}), ('train', 'val'))
    assert names(tmp_path) == {archive.folder for archive in dataset.archives}
    for archive in dataset.archives:
        for path, content in files_of(archive).items():
            assert (tmp_path / path).read_bytes() == content
    assert capsys.readouterr().out.count(': checked and unpacked\n') == len(dataset.archives)

    assert prepare(dataset, tmp_path) == data_root
    assert capsys.readouterr().out.count(': already there\n') == len(dataset.archives)
    assert len(server.requests) == len(dataset.archives)


def test_the_tool_prepares_one_split(serve, server, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(DATASETS, 'coco', serve(COCO))
    monkeypatch.chdir(tmp_path)
    code, output, _ = call_tool(monkeypatch, capfd, 'prepare_data.py', 'coco', '--splits', 'val')
    assert code == 0 and 'data_root' not in output
    assert names(tmp_path / 'data/coco') == {'annotations', 'val2017'}
    assert not any('train2017' in path for path in server.requests)
    arguments = ('coco', '--splits', 'val', '--root', 'elsewhere')
    code, output, _ = call_tool(monkeypatch, capfd, 'prepare_data.py', *arguments)
    assert code == 0 and '--cfg-options data_root=elsewhere' in output


def test_a_download_that_fills_the_disk_is_resumed(serve, server, tmp_path):
    dataset = serve(ADE20K)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # as on a full disk
    try:
        with pytest.raises(UserError, match=f'{tmp_path} cannot be written to'):
            prepare(dataset, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == {DOWNLOADS}
    (archive,) = dataset.archives
    part = max(path.stat().st_size for path in (tmp_path / DOWNLOADS).iterdir())
    prepare(dataset, tmp_path)
    assert part and server.ranges == [None, f'bytes={part}-']
    assert names(tmp_path) == {archive.folder}


def test_archives_are_kept_provided_and_used_after_a_kill(serve, server, tmp_path):
    dataset = serve(COCO)
    prepare(dataset, tmp_path, keep_archives=True)
    half = tmp_path / module.DRAFT / 'val2017'
    half.mkdir(parents=True)
    (half / 'half.jpg').write_bytes(JPEG[:10])
    for folder in ('val2017', 'annotations'):
        (tmp_path / folder).rename(tmp_path / f'moved_{folder}')
    for name in ('val2017.zip', 'train2017.zip'):  # killed while unpacking, and after it
        (tmp_path / name).rename(tmp_path / DOWNLOADS / name)
    server.requests.clear()
    prepare(dataset, tmp_path)
    folders = {'annotations', 'train2017', 'val2017', 'moved_val2017', 'moved_annotations'}
    assert names(tmp_path) == {'annotations_trainval2017.zip', *folders}
    assert names(tmp_path / 'val2017') == names(tmp_path / 'moved_val2017')
    assert server.requests == []


def test_processes_that_prepare_the_same_root_share_the_download(serve, server, tmp_path):
    dataset = serve(COCO)
    with ThreadPoolExecutor(3) as pool:
        for call in [pool.submit(prepare, dataset, tmp_path) for _ in range(3)]:
            call.result()
    assert len(server.requests) == len(dataset.archives)


@pytest.mark.parametrize('is_provided', [True, False])
def test_a_wrong_archive_is_refused(serve, server, tmp_path, is_provided):
    dataset = serve(ADE20K)
    correct = server.files[ADE_ZIP]
    wrong = correct[:-1] + b'?'
    source = server.url(ADE_ZIP)
    if is_provided:
        source = tmp_path / ADE_ZIP[1:]
        source.write_bytes(wrong)
    server.files[ADE_ZIP] = wrong
    with pytest.raises(UserError, match=rf'{source} is damaged .* not {dataset.archives[0].md5}'):
        prepare(dataset, tmp_path)
    if is_provided:
        source.unlink()
    server.files[ADE_ZIP] = correct
    prepare(dataset, tmp_path)
    assert names(tmp_path) == {'ADEChallengeData2016'}


def test_a_mirror_replaces_the_server_and_both_may_be_unreachable(serve, server, tmp_path):
    dataset = serve(ADE20K)
    server.files[f'/mirror{ADE_ZIP}'] = server.files.pop(ADE_ZIP)
    prepare(dataset, tmp_path / 'first', mirror=server.url('/mirror/'))
    assert server.requests == [f'/mirror{ADE_ZIP}']
    server.go_away()
    with pytest.raises(UserError, match=rf'use --mirror, or copy {ADE_ZIP[1:]} .* to {tmp_path}'):
        prepare(dataset, tmp_path / 'second')


def test_no_entry_of_an_archive_leads_out_of_its_folder(serve, tmp_path):
    link = ZipInfo('val2017/link')
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    entries = ['../out', 'val2017/../../out', str(tmp_path / 'out'), '..\\out', link]
    evil = zipped({**files_of(COCO.archives[1]), **dict.fromkeys(entries, b'..')})
    prepare(serve(COCO, val2017=evil), tmp_path / 'root', ['val'])
    assert names(tmp_path) == {'root'}
    assert names(tmp_path / 'root') == {'annotations', 'val2017'}
    assert not any(path.is_symlink() for path in tmp_path.rglob('*'))


def test_a_folder_of_the_user_is_kept(serve, server, tmp_path):
    dataset = serve(COCO)
    image = tmp_path / 'val2017' / 'own.jpg'
    image.parent.mkdir()
    image.touch()
    prepare(replace(dataset, archives=dataset.archives[:2]), tmp_path)
    assert names(image.parent) == {'own.jpg'} and len(server.requests) == 1
