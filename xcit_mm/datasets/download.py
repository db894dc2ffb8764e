"""COCO and ADE20k, from their servers into the folders that the configs name."""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich.console import Console

from ..errors import ArgumentError, UserError, reason
from ..files import require_writable
from ..http import Part, UnreachableError, fetch
from .archives import require_md5, unpack

SPLITS = ('train', 'val')
DOWNLOADS = '.downloads'  # below the root: what is not finished
DRAFT = f'{DOWNLOADS}/unpacked'
LOCK = '.prepare_data.lock'
IMAGES = ('.jpg', '.png')
GIGABYTE = 10**9


@dataclass(frozen=True)
class Archive:
    """A zip archive, and the folder of the dataset that it holds.

    Attributes:
        url: Where its makers serve it.
        size: In bytes.
        md5: In hexadecimal digits.
        unpacked: What it takes on the disk, about, in bytes.
        folder: The one that it unpacks to.
        images: How many images lie in each folder, relative to that one.
        annotations: The size in bytes of each annotation file that a config names.
        split: The only one that it is needed for; None: it is needed for all.
    """

    url: str
    size: int
    md5: str
    unpacked: int
    folder: str
    images: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, int] = field(default_factory=dict)
    split: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition('/')[2]


@dataclass(frozen=True)
class Dataset:
    """What a dataset is made of.

    Attributes:
        root: Where the configs look for it.
        data_root: The folder that configs call so, relative to the root.
        archives: In the order in which they are fetched.
    """

    root: str
    data_root: str
    archives: tuple[Archive, ...]


# COCO's sizes are those of tensorflow_datasets' checksum file, its MD5s those of PaddleDetection
# and of MLCommons' scripts. ADE20k's MD5 is that of several public loaders, its size that of a
# copy. What is unpacked is rounded up.
COCO = Dataset(
    root='data/coco',
    data_root='.',
    archives=(
        Archive(
            url='http://images.cocodataset.org/annotations/annotations_trainval2017.zip',
            size=252_907_541,
            md5='f4bbac642086de4f52a3fdda2de5fa2c',
            unpacked=840_000_000,
            folder='annotations',
            annotations={
                'instances_train2017.json': 469_785_474,
                'instances_val2017.json': 19_987_840,
            },
        ),
        Archive(
            url='http://images.cocodataset.org/zips/val2017.zip',
            size=815_585_330,
            md5='442b8da7639aecaf257c1dceb8ba8c80',
            unpacked=840_000_000,
            folder='val2017',
            images={'.': 5_000},
            split='val',
        ),
        Archive(
            url='http://images.cocodataset.org/zips/train2017.zip',
            size=19_336_861_798,
            md5='cced6f7f71b7629ddf16f17bbcfab6b2',
            unpacked=19_900_000_000,
            folder='train2017',
            images={'.': 118_287},
            split='train',
        ),
    ),
)
ADE20K = Dataset(
    root='data/ade',
    data_root='ADEChallengeData2016',
    archives=(
        Archive(
            url='http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip',
            size=967_382_037,
            md5='7328b3957e407ddae1d3cbf487f149ef',
            unpacked=1_200_000_000,
            folder='ADEChallengeData2016',
            images={
                'images/training': 20_210,
                'images/validation': 2_000,
                'annotations/training': 20_210,
                'annotations/validation': 2_000,
            },
        ),
    ),
)
DATASETS = {'coco': COCO, 'ade20k': ADE20K}


def prepare(
    dataset: Dataset,
    root: str | Path,
    splits: Collection[str] = SPLITS,
    mirror: str | None = None,
    keep_archives: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Download, check and unpack what of a dataset is not there yet.

    A folder takes its name when all of it is there. What was interrupted goes on with the next
    call. An archive that already lies in ``root`` is taken, and stays. A process that asks for
    the same root waits for the first one.

    Args:
        dataset: What is to be there.
        root: The folder for it, which is made.
        splits: 'train', 'val' or both: images of another split alone are left out.
        mirror: The address of a folder that has the archives under their names; None: the
            servers of those who made the dataset.
        keep_archives: Whether to leave the archives in ``root``.
        say: Is given what is done, line by line.

    Returns:
        What configs call ``data_root``.

    Raises:
        ArgumentError: If the mirror is no web address, or the dataset comes in one archive and
            is asked for one split.
        UnreachableError: If the network or the server is away.
        UserError: If the disk has not enough space or cannot be written to, a file on the server
            or in ``root`` is another one, or the connection broke off too often.
    """
    root = Path(root)
    archives = _needed(dataset, splits)
    _require_address(mirror)
    require_writable(root)
    try:
        with _alone(root, say):
            shutil.rmtree(root / DRAFT, ignore_errors=True)  # of a call that was killed
            missing = [archive for archive in archives if not _is_there(root, archive)]
            _require_space(root, missing, keep_archives)
            for archive in archives:
                if archive in missing:
                    _prepare(root, archive, mirror, say)
                else:
                    say(f'{root / archive.folder}: already there ({_contents(archive)})')
                _put_away(root, archive, keep_archives)
            with suppress(OSError):  # it has parts of other archives, or was not needed
                (root / DOWNLOADS).rmdir()
    except OSError as error:
        raise UserError(
            f'{root} cannot be used ({reason(error)}): see to it, and start again; what has come '
            'stays'
        ) from None
    return root / dataset.data_root


def _needed(dataset: Dataset, splits: Collection[str]) -> list[Archive]:
    if not splits or not set(splits) <= set(SPLITS):
        raise ArgumentError(f'the splits {", ".join(splits)} are none of {", ".join(SPLITS)}')
    archives = [archive for archive in dataset.archives if archive.split in (None, *splits)]
    if len(archives) == len(dataset.archives) and set(splits) != set(SPLITS):
        names = ', '.join(archive.name for archive in archives)
        raise ArgumentError(f'the splits are not apart in {names}: ask for both of them')
    return archives


def _require_address(mirror: str | None) -> None:
    if mirror is not None and not (
        mirror.startswith(('http://', 'https://')) and urlsplit(mirror).netloc
    ):
        raise ArgumentError(f'the mirror {mirror} is no address of the form http://SERVER/FOLDER')


@contextmanager
def _alone(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(root / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f'Another process prepares {root}: waiting for it')
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_there(root: Path, archive: Archive) -> bool:
    """Whether the folder of an archive is whole, as far as can be seen without reading it all."""
    folder = root / archive.folder
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if is_free and not folder.is_symlink():
        return False
    fault = _fault(folder, archive)
    if fault:
        raise UserError(
            f'{folder} is there, but {fault}: move it away, and it is downloaded anew, or name '
            'another folder'
        )
    return True


def _fault(folder: Path, archive: Archive) -> str | None:
    """What a folder lacks of an archive's layout."""
    for name, count in archive.images.items():
        found = _count_images(folder / name)
        if found != count:
            return f'{folder / name} has {found:,} images instead of {count:,}'
    for name, size in archive.annotations.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else 0
        if found != size:
            return f'{file} has {found:,} bytes instead of {size:,}'
    return None


def _count_images(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.name.endswith(IMAGES) for entry in entries)


def _contents(archive: Archive) -> str:
    return f'{sum(archive.images.values()) + len(archive.annotations):,} files'


def _require_space(root: Path, missing: Sequence[Archive], keep_archives: bool) -> None:
    """The largest that is taken at any time: each archive goes when it is unpacked."""
    taken = peak = 0
    for archive in missing:
        is_given = (root / archive.name).is_file()
        rest = 0 if is_given else archive.size - _come(root, archive)
        peak = max(peak, taken + rest + archive.unpacked)
        taken += rest + archive.unpacked
        if not (is_given or keep_archives):
            taken -= archive.size
    free = shutil.disk_usage(root).free
    if peak > free:
        raise UserError(
            f'{root} needs {peak / GIGABYTE:,.1f} GB for the archives and what they unpack to, and '
            f'the disk has {free / GIGABYTE:,.1f} GB free: make room, or name another folder'
        )


def _come(root: Path, archive: Archive) -> int:
    """How many bytes of an archive earlier calls have downloaded."""
    file = root / DOWNLOADS / archive.name
    return file.stat().st_size if file.is_file() else Part(file).offset


def _prepare(root: Path, archive: Archive, mirror: str | None, say: Callable[[str], None]) -> None:
    given = root / archive.name
    if given.is_file():
        file = given
        _require_given(file, archive)
    else:
        file = root / DOWNLOADS / archive.name
        file.parent.mkdir(exist_ok=True)
        if not file.is_file():
            _fetch(archive, file, mirror)
    _unpack(root, archive, file)
    say(f'{root / archive.folder}: unpacked and checked ({_contents(archive)})')


def _require_given(file: Path, archive: Archive) -> None:
    remedy = 'move it away, and it is downloaded'
    size = file.stat().st_size
    if size != archive.size:
        raise UserError(f'{file} has {size:,} bytes instead of {archive.size:,}: {remedy}')
    with file.open('rb') as opened:
        require_md5(opened, archive.md5, size, str(file), remedy)


def _fetch(archive: Archive, file: Path, mirror: str | None) -> None:
    url = f'{mirror.rstrip("/")}/{archive.name}' if mirror else archive.url
    remedy = 'what came is thrown away; try again, or name a mirror'
    check = partial(require_md5, md5=archive.md5, size=archive.size, name=url, remedy=remedy)
    try:
        fetch(url, file, check, archive.size)
    except UnreachableError as error:
        raise UnreachableError(
            f'{error}; name a mirror, or put {archive.name} from another machine into '
            f'{file.parents[1]}'
        ) from None


def _unpack(root: Path, archive: Archive, file: Path) -> None:
    """Unpack a file beside the place of its folder, which is whole when it gets there."""
    draft = root / DRAFT
    try:
        unpack(file, draft)
        folder = draft / archive.folder
        fault = _fault(folder, archive)
        if fault:
            raise UserError(f'{file} does not hold what it should: {fault}; remove it')
        for name in archive.annotations:
            _require_json(folder / name)
        os.sync()  # a loss of power finds all of it, or not the name
        folder.rename(root / archive.folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _require_json(file: Path) -> None:
    try:
        with file.open('rb') as opened, Console(stderr=True).status(f'Reading {file.name}'):
            json.load(opened)
    except ValueError as error:
        raise UserError(f'{file.name} is no annotation file ({reason(error)})') from None


def _put_away(root: Path, archive: Archive, keep_archives: bool) -> None:
    """What of an archive is of no more use, also where an earlier call was killed before this."""
    file = root / DOWNLOADS / archive.name
    if keep_archives and file.is_file():
        file.replace(root / archive.name)
    file.unlink(missing_ok=True)
    Part(file).remove()
