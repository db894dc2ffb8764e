"""The download of COCO and ADE20k into the folders that the configs name."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from filelock import FileLock
from rich.console import Console
from torchvision.datasets.utils import calculate_md5

from ...base.errors import UserError
from ...base.files import move_folder, require_writable, writing_to
from ...base.http import fetch

SPLITS = ('train', 'val')
DOWNLOADS = '.downloads'  # in the root: everything that is not complete
DRAFT = f'{DOWNLOADS}/unpacked'
LOCK = '.prepare_data.lock'


@dataclass(frozen=True)
class Archive:
    """A zip archive that contains one folder of a dataset."""

    url: str
    size: int  # bytes
    md5: str
    folder: str
    split: str | None = None  # the only split that needs the archive; None: all of them

    @property
    def name(self) -> str:
        return self.url.rpartition('/')[2]


@dataclass(frozen=True)
class Dataset:
    """The archives of a dataset, and where the configs look for it."""

    root: str
    data_root: str  # of the configs, relative to the root
    archives: tuple[Archive, ...]


# Sizes and checksums are those that tensorflow_datasets, PaddleDetection and MLCommons publish for
# COCO, and several public loaders for ADE20k.
ANNOTATIONS = Archive(
    url='http://images.cocodataset.org/annotations/annotations_trainval2017.zip',
    size=252_907_541,
    md5='f4bbac642086de4f52a3fdda2de5fa2c',
    folder='annotations',
)
VAL2017 = Archive(
    url='http://images.cocodataset.org/zips/val2017.zip',
    size=815_585_330,
    md5='442b8da7639aecaf257c1dceb8ba8c80',
    folder='val2017',
    split='val',
)
TRAIN2017 = Archive(
    url='http://images.cocodataset.org/zips/train2017.zip',
    size=19_336_861_798,
    md5='cced6f7f71b7629ddf16f17bbcfab6b2',
    folder='train2017',
    split='train',
)
ADE_CHALLENGE = Archive(
    url='http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip',
    size=967_382_037,
    md5='7328b3957e407ddae1d3cbf487f149ef',
    folder='ADEChallengeData2016',
)
COCO = Dataset('data/coco', '.', (ANNOTATIONS, VAL2017, TRAIN2017))
ADE20K = Dataset('data/ade', 'ADEChallengeData2016', (ADE_CHALLENGE,))
DATASETS = {'coco': COCO, 'ade20k': ADE20K}


def prepare(
    dataset: Dataset,
    root: str | Path,
    splits: Collection[str] = SPLITS,
    mirror: str | None = None,
    keep_archives: bool = False,
) -> Path:
    """Download, check and unpack the missing folders of a dataset, and return its ``data_root``.

    A folder gets its name when it is complete. After an interruption, the next call resumes the
    download. An archive that already is in ``root`` is used and stays there. If another process
    prepares the same root, the call waits for it.
    """
    root = Path(root)
    archives = [archive for archive in dataset.archives if archive.split in (None, *splits)]
    require_writable(root)
    with writing_to(root):
        with Console(stderr=True).status(f'{root}: waiting for another process to prepare it'):
            lock = FileLock(root / LOCK).acquire()
        with lock:
            shutil.rmtree(root / DRAFT, ignore_errors=True)  # from a killed process
            (root / DOWNLOADS).mkdir(exist_ok=True)
            for archive in archives:
                folder = root / archive.folder  # which gets its name when it is complete
                if folder.is_dir() and any(folder.iterdir()):
                    state = 'already there'
                else:
                    _install(root, archive, mirror)
                    state = 'checked and unpacked'
                print(f'{folder}: {state}', flush=True)
                downloaded = root / DOWNLOADS / archive.name
                if keep_archives and downloaded.exists():
                    downloaded.replace(root / archive.name)
                downloaded.unlink(missing_ok=True)
            with suppress(OSError):  # it may contain parts of other archives
                (root / DOWNLOADS).rmdir()
    return root / dataset.data_root


def _install(root: Path, archive: Archive, mirror: str | None) -> None:
    """Unpack an archive that the user provided, or else download it."""
    file = root / archive.name
    if file.is_file():
        _require_md5(archive.md5, str(file), file)
    else:
        file = root / DOWNLOADS / archive.name
        url = f'{mirror.rstrip("/")}/{archive.name}' if mirror else archive.url
        hint = f'use --mirror, or copy {archive.name} from another machine to {root}'
        check = partial(_require_md5, archive.md5, url)
        if not file.is_file():  # it was checked before a process was killed
            fetch(url, file, check, archive.size, hint=hint)
    draft = root / DRAFT
    try:
        with Console(stderr=True).status(f'Unpacking {file}'), ZipFile(file) as opened:
            opened.extractall(draft)  # never outside of it, and without links
        if hasattr(os, 'sync'):  # not on Windows
            os.sync()  # after a power failure, too, a folder of this name is complete
        move_folder(draft / archive.folder, root / archive.folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _require_md5(md5: str, source: str, file: Path) -> None:
    with Console(stderr=True).status(f'Checking {source}'):
        actual = calculate_md5(file)
    if actual != md5:
        raise UserError(
            f'{source} is damaged or a different file (its MD5 is {actual}, not {md5}): remove it '
            'and start again, or use another --mirror'
        )
