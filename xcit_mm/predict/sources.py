"""The images and videos that a command line names."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from PIL import Image, ImageOps

from ..base.errors import ArgumentError, UserError, list_folder_hint, reason
from ..base.files import read_regular, valid_name
from ..base.http import NO_HEADERS, is_url, read_url
from ..base.progress import ImageProgress
from ..data.transforms.decode import MAX_BYTES as MAX_FILE_BYTES
from ..data.transforms.decode import BadImageError, decode, rgb_of
from ..data.transforms.multiband import LoadMultiband
from ..large.files.open_image import needs_windows
from ..large.files.zarr_images import is_zarr
from .folders import VIDEOS, Folder
from .video import read_video

MAX_DOWNLOAD = 2**29  # bytes of an image
MAX_NAME = 150  # bytes; file systems take 255, including suffixes
# Of all images whose predictions are in memory: the masks of a large image take gigabytes.
MAX_PIXELS = 2**25


class Frame(NamedTuple):
    """An image, or a frame of a video."""

    source: str  # path or URL
    name: str  # of the files of its predictions, without suffix
    image: np.ndarray  # as ``Model.read`` returns it
    index: int | None = None  # of a frame, from 0
    rate: float | None = None  # frames per second of a video
    prepared: Any = None  # what ``Model.prepare`` returns for the image

    @property
    def pixels(self) -> int:
        return self.image[..., 0].size


class Inputs(NamedTuple):
    """What a command line names.

    Attributes:
        sources: The images and videos by name, which is the path below the folder that was named,
            without suffix.
        problems: A sentence on each argument without inputs, and each folder that cannot be read.
        notes: A sentence on the files of each folder that are not images or videos.
    """

    sources: dict[str, str]
    problems: list[str]
    notes: list[str]


def find_inputs(arguments: Sequence[str], is_output: Callable[[Path], bool]) -> Inputs:
    """List the images and videos behind paths, folders, patterns and URLs, each once.

    ``is_output`` tells which paths to skip.
    """
    sources: dict[str, tuple[str, PurePosixPath]] = {}  # by real path
    problems: list[str] = []
    notes: list[str] = []
    for argument in arguments:
        expanded = list(_expand(argument, is_output, problems, notes))
        if not expanded:
            kind = 'holds no image or video' if Path(argument).is_dir() else 'matches no file'
            problems.append(f'{argument} {kind}')
        for source, name in expanded:
            real_path = source if is_url(source) else os.path.realpath(source)
            sources.setdefault(real_path, (source, name))
    # Some file systems ignore case, and the labels of a video go into a folder of its name.
    taken = {str(folder).casefold() for _, name in sources.values() for folder in name.parents}
    inputs = {}
    for source, name in sources.values():
        unique, number = str(name), 1
        while unique.casefold() in taken:
            number += 1
            unique = f'{name}_{number}'
        taken.add(unique.casefold())
        inputs[unique] = source
    return Inputs(inputs, [*dict.fromkeys(problems)], [*dict.fromkeys(notes)])


def mosaic_name(argument: str) -> str:
    """Return the name of a scene whose first tiles an argument names.

    It is the name of the file or the folder; for a pattern, of the folder that it starts in.
    """
    # Without resolving links, whose names are kept.
    path = Path(os.path.abspath(Path(argument).expanduser()))  # noqa: PTH100
    if has_magic(argument) and not path.exists():
        path = next(folder for folder in path.parents if not has_magic(str(folder)))
    return str(_name(path.stem))


def read_frames(
    inputs: dict[str, str], progress: ImageProgress, read: Callable[[str], np.ndarray]
) -> Iterator[Frame]:
    """Read images and videos; ``progress`` reports those that cannot be read.

    ``read`` reads the image of a path or URL, or raises a UserError.
    """
    for name, source in inputs.items():
        expected = 1
        try:
            path = source.partition('?')[0] if is_url(source) else source
            if path.lower().endswith(VIDEOS):
                expected, rate, images = read_video(source)
                progress.expect(expected - 1)
                frames = (Frame(source, name, im, i, rate) for i, im in enumerate(images))
            else:
                frames = [Frame(source, name, read(source))]
            for frame in frames:
                expected -= 1
                yield frame
        except UserError as error:
            progress.give_up(str(error), expected)
        else:
            progress.expect(-expected)


def batches(frames: Iterable[Frame], batch_size: int) -> Iterator[list[Frame]]:
    """Group frames into batches of at most ``MAX_PIXELS`` pixels, or one image."""
    batch: list[Frame] = []
    for frame in frames:
        batch.append(frame)
        if len(batch) == batch_size or (len(batch) + 1) * frame.pixels > MAX_PIXELS:
            yield batch
            batch = []
    if batch:
        yield batch


def to_rgb(image: str | Path | np.ndarray | Image.Image) -> np.ndarray:
    """Return the image of a path, a URL or PIL, or an array, as an array (H, W, 3) of uint8.

    Arrays are gray, RGB or RGBA, of 8 or 16 bits; see
    :func:`~xcit_mm.data.transforms.decode.rgb_of`.
    """
    if isinstance(image, (str, Path)):
        return read_image(str(image))
    if isinstance(image, Image.Image):
        image = ImageOps.exif_transpose(image)
        is_8_bit = image.mode[0] not in 'IF'  # convert() would clip the others at 255
        return rgb_of(np.asarray(image.convert('RGB') if is_8_bit else image))
    return rgb_of(image)


def to_bands(image: str | Path | np.ndarray, loader: LoadMultiband) -> np.ndarray:
    """Return the image of a path or URL, or an array, as the bands of a loader (H, W, channels).

    An array (H, W) has one band.
    """
    if isinstance(image, (str, Path)):
        return read_image(str(image), loader.decode)
    array = np.asarray(image)
    try:
        return loader.bands(array[..., None] if array.ndim == 2 else array)
    except BadImageError as error:
        raise ArgumentError(f'an array of shape {array.shape} cannot be used: {error}') from None


def decode_rgb(data: bytes, path: Path | None = None) -> np.ndarray:
    """Decode an image file to RGB, (H, W, 3) uint8, or raise a BadImageError."""
    return np.ascontiguousarray(decode(data, path=path)[..., ::-1])


def read_image(
    source: str,
    decode: Callable[..., np.ndarray] = decode_rgb,
    headers: Mapping[str, str] = NO_HEADERS,
) -> np.ndarray:
    """Read an image file or URL, by default as RGB, (H, W, 3) uint8.

    ``headers`` are sent with the request for a URL.

    Raises:
        UserError: If the image does not exist or cannot be read.
    """
    if needs_windows(source) and Path(source).expanduser().exists():
        raise UserError(f'{source} is read window by window: add --stream (predict_large)')
    try:
        if is_url(source):
            return decode(read_url(source, MAX_DOWNLOAD, headers))
        path = Path(source).expanduser()
        return decode(read_regular(path, MAX_FILE_BYTES), path=path)
    except FileNotFoundError:
        raise UserError(f'{source} does not exist{list_folder_hint(source)}') from None
    except OSError as error:
        raise UserError(f'{source} cannot be opened ({reason(error)})') from None
    except BadImageError as error:
        raise UserError(f'{source}: {error}') from None


def _expand(
    argument: str, is_output: Callable[[Path], bool], problems: list[str], notes: list[str]
) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield sources and their names, which two sources may share."""

    def report(error: OSError) -> None:
        problems.append(f'{error.filename} cannot be opened ({reason(error)})')

    if is_url(argument):
        yield argument, _name(unquote(PurePosixPath(argument.partition('?')[0]).stem))
        return
    argument = str(Path(argument).expanduser())  # also in a pattern, which the shell leaves
    matches = [Path(argument)]
    if has_magic(argument) and not matches[0].exists():
        paths = map(Path, sorted(glob(argument, recursive=True)))  # noqa: PTH207  absolute ones
        matches = [path for path in paths if not is_output(path)]
    for match in matches:
        if not match.is_dir() or is_zarr(match):
            yield str(match), _name(match.stem)
            continue
        folder = Folder(match, is_output, report)
        for path in folder:
            below = PurePosixPath(path.relative_to(match).parent.as_posix())
            yield str(path), below / _name(path.stem)
        notes += folder.notes()


def _name(stem: str) -> PurePosixPath:
    """Make any text a valid file name."""
    shortened = stem.encode(errors='replace')[:MAX_NAME].decode(errors='ignore')
    return PurePosixPath(valid_name(shortened) or 'image')
