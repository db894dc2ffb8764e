#!/usr/bin/env python3
"""Predict with the exported model next to this file: objects, or the class of each pixel.

Needs only the runtime of the model, NumPy and Pillow. What the model expects and what its outputs
mean is in the metadata of its file. ``tools/export.py --folder`` of xcit_mm writes copies.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

MODEL = 'model'  # the name of the file without its suffix
TEST, EXPECTED = 'test.png', 'expected'  # the test picture, and the names of its expected result
INSTANCES = 1000  # a panoptic value is the class plus this times the number of the object
BLOCK = 2**22  # numbers that are interpolated at a time
WEIGHT = np.float32(2048)  # OpenCV's unit of the weights of pixels
OPACITY = 0.5
# Fonts of Linux, Windows and macOS. The later ones have Chinese, Japanese, Korean and Hindi.
FONTS = (
    *('DejaVuSans.ttf', 'arial.ttf', 'Arial.ttf', 'NotoSansCJK-Regular.ttc', 'wqy-zenhei.ttc'),
    *('NotoSansDevanagari-Regular.ttf', 'Lohit-Devanagari.ttf', 'msyh.ttc', 'YuGothM.ttc'),
    *('malgun.ttf', 'Nirmala.ttf', 'Nirmala.ttc', 'Arial Unicode.ttf', 'PingFang.ttc'),
)
# What Pillow raises for files that are no images, damaged or too large.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class Objects(NamedTuple):
    """The n objects of an image of H x W pixels, sorted by decreasing score."""

    boxes: np.ndarray  # (n, 4): left, top, right and bottom in pixels of the image
    scores: np.ndarray  # (n,)
    labels: np.ndarray  # (n,), indices of classes
    masks: np.ndarray | None = None  # (n, H, W) bool, of a model with masks


class Regions(NamedTuple):
    """The class of each pixel of an image of H x W pixels."""

    values: np.ndarray  # (H, W) int; of a panoptic model, plus 1000 times the number of the object
    is_panoptic: bool = False

    @property
    def labels(self) -> np.ndarray:
        """Indices of classes (H, W); the number of classes where a pixel has none."""
        return self.values % INSTANCES if self.is_panoptic else self.values


Result = Objects | Regions


class Model:
    """An exported model.

    Attributes:
        classes: The names of the classes.
        palette: A color (red, green, blue) for each class.
        metadata: All that the file says about itself, as text or JSON by name.
    """

    def __init__(self, path: Path) -> None:
        self._run, self.metadata = RUNTIMES[path.suffix](path)
        metadata = self.metadata
        self.classes: list[str] = json.loads(metadata['classes'])
        self.palette: list[list[int]] = json.loads(metadata['palette'])
        self._outputs: list[str] = json.loads(metadata['outputs'])
        self._is_bgr = metadata['channels'] == 'BGR'
        self._resizing = json.loads(metadata['resizing'])
        self._threshold = json.loads(metadata.get('threshold', '0'))
        self._align_corners = json.loads(metadata.get('align_corners', 'false'))

    def predict(self, image: np.ndarray, score_thr: float = 0.0) -> Result:
        """Predict an image (H, W, 3) of RGB, uint8; objects with at least a score."""
        size = image.shape[1::-1]
        resized = resize(image, size_for(size, self._resizing))
        pixels = resized[..., ::-1] if self._is_bgr else resized
        outputs = self._run(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32))
        named = dict(zip(self._outputs, outputs, strict=True))
        if 'logits' in named:
            if resized is image:
                return Regions(named['labels'][0].astype(np.int64))
            return Regions(self._labels(named['logits'][0], size))
        if 'panoptic' in named:
            return Regions(nearest(named['panoptic'], size), is_panoptic=True)
        factors = np.float32(
            [new / old for new, old in zip(resized.shape[1::-1], size, strict=True)] * 2
        )
        kept = named['scores'] >= score_thr
        order = np.argsort(-named['scores'][kept], kind='stable')
        boxes, scores, labels = (named[k][kept][order] for k in ('boxes', 'scores', 'labels'))
        boxes = boxes / factors
        masks = None
        if 'masks' in named:
            masks = np.zeros((len(boxes), *image.shape[:2]), bool)
            for i, mask in enumerate(named['masks'][kept][order]):
                if mask.dtype == bool:
                    masks[i] = resampled(mask.astype(np.float32), size) > 0.5
                else:
                    paste(mask, boxes[i], self._threshold, masks[i])
        return Objects(boxes, scores, labels, masks)

    def _labels(self, logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return the labels (H, W) of logits (K, h, w) that are resized bilinearly."""
        blocks = []
        for block in resampled_blocks(logits, size, self._align_corners):
            if len(block) > 1:
                blocks.append(block.argmax(0))
            else:  # a foreground alone
                blocks.append((1 / (1 + np.exp(-block[0])) > self._threshold).astype(np.int64))
        return np.concatenate(blocks)


# Runtimes: a path to a function of images (1, 3, H, W), and the metadata of the file.

Loaded = tuple[Callable[[np.ndarray], Sequence[np.ndarray]], Mapping[str, str]]


def _onnx(path: Path) -> Loaded:
    from onnxruntime import InferenceSession

    session = InferenceSession(path, providers=['CPUExecutionProvider'])
    metadata = session.get_modelmeta().custom_metadata_map
    return lambda image: session.run(None, {'image': image}), metadata


def _openvino(path: Path) -> Loaded:
    import openvino

    model = openvino.Core().read_model(path)
    metadata = model.get_rt_info(['xcit_mm']).value
    # Where the processor has bfloat16, it is the default, which may find other objects.
    is_wide = metadata['precision'] == 'float32'
    settings = {'INFERENCE_PRECISION_HINT': 'f32'} if is_wide else {}
    compiled = openvino.compile_model(model, 'CPU', settings)
    return lambda image: [value.copy() for value in compiled(image).values()], metadata


def _torch(path: Path) -> Loaded:
    import torch
    import torchvision  # noqa: F401  registers operators of detectors

    with ZipFile(path) as archive:
        is_compiled = any('/aotinductor/' in name for name in archive.namelist())
    if is_compiled:
        model = torch._inductor.aoti_load_package(str(path))
        metadata = model.get_metadata()
    else:
        files = {'metadata.json': ''}
        program = torch.export.load(path, extra_files=files)
        metadata = json.loads(files['metadata.json'])
        try:
            model = program.module(check_guards=False)
        except TypeError:  # PyTorch before 2.9, which has no guards
            model = program.module()

    def run(image: np.ndarray) -> list[np.ndarray]:
        with torch.inference_mode():
            return [output.numpy() for output in model(torch.from_numpy(image))]

    return run, metadata


RUNTIMES = {'.onnx': _onnx, '.xml': _openvino, '.pt2': _torch}


# Images and sizes. A size is (width, height).


def read_image(path: Path) -> np.ndarray:
    """Return an image file as RGB (H, W, 3) uint8, in its EXIF orientation."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
        # Some versions of Pillow open PNG files of 16 bits in the mode I.
        if image.mode.startswith('I;16') or (image.mode, file.format) == ('I', 'PNG'):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ('I', 'F'):  # Pillow would clip or scale the values
            raise ValueError(f'{file.format} with values of 32 bits: save it as PNG')
        if image.mode == 'P':
            image = image.convert('RGBA')
        return np.array(image.convert('RGB'))


def size_for(size: tuple[int, int], resizing: dict[str, Any] | None) -> tuple[int, int]:
    """Return the size at which the model expects an image of a size."""
    if resizing is None:
        return size
    scale = resizing['scale']
    if not resizing['keep_ratio']:
        return tuple(scale)
    factor = min(max(scale) / max(size), min(scale) / min(size))
    width, height = (int(side * factor + 0.5) for side in size)
    return width, height


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image (H, W, 3) of uint8 bilinearly, bit for bit as OpenCV does."""
    width, height = size
    old_height, old_width = image.shape[:2]
    if size == (old_width, old_height):
        return image
    if (old_width, old_height) == (2 * width, 2 * height):  # the mean of four pixels
        sums = image.reshape(height, 2, width, 2, 3).sum((1, 3), dtype=np.int32)
        return (sums + 2 >> 2).astype(np.uint8)
    x, part = _places(old_width, width)
    part = np.where((x < 0) | (x >= old_width - 1), np.float32(0), part)
    before, after = (weight[:, None] for weight in _weights(part))
    pixels = image.astype(np.int32)
    mixed = pixels[:, _inside(x, old_width)] * before
    mixed = mixed + pixels[:, _inside(x + 1, old_width)] * after >> 4
    y, part = _places(old_height, height)
    above, below = (weight[:, None, None] for weight in _weights(part))
    total = mixed[_inside(y, old_height)] * above >> 16
    total = total + (mixed[_inside(y + 1, old_height)] * below >> 16)
    return (total + 2 >> 2).clip(0, 255).astype(np.uint8)


def _places(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where new pixels lie among old ones: the pixel before each, and the part after it."""
    place = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    whole = np.floor(place)
    return whole.astype(np.int64), place - whole


def _weights(part: np.ndarray) -> list[np.ndarray]:
    return [np.rint(w * WEIGHT).astype(np.int32) for w in (np.float32(1) - part, part)]


def _inside(places: np.ndarray, length: int) -> np.ndarray:
    return places.clip(0, length - 1)


# Outputs of the model at the size of the image.


def resampled(values: np.ndarray, size: tuple[int, int], align_corners: bool = False) -> np.ndarray:
    """Resize values (..., h, w) bilinearly as PyTorch's ``interpolate`` does."""
    return np.concatenate([*resampled_blocks(values, size, align_corners)], axis=-2)


def resampled_blocks(
    values: np.ndarray, size: tuple[int, int], align_corners: bool
) -> Iterator[np.ndarray]:
    """Yield blocks of the rows of :func:`resampled`, because all of them may take gigabytes."""
    columns, rows = (
        _sources(old, new, align_corners)
        for old, new in zip(values.shape[:-3:-1], size, strict=True)
    )
    number = max(1, BLOCK // (values[..., 0, 0].size * max(values.shape[-1], size[0])))
    for start in range(0, len(rows), number):
        yield bilinear(values, rows[start : start + number], columns)


def _sources(old: int, new: int, align_corners: bool) -> np.ndarray:
    place = np.arange(new, dtype=np.float32)
    if align_corners:
        return place * np.float32((old - 1) / max(new - 1, 1))
    return ((place + np.float32(0.5)) * np.float32(old / new) - np.float32(0.5)).clip(0, old - 1)


def bilinear(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolate values (..., h, w) at rows and columns in range, to (..., rows, columns)."""
    for axis, places in ((-2, rows), (-1, columns)):
        last = values.shape[axis] - 1
        lower = np.floor(places).astype(np.int64).clip(0, last)
        part = (places - lower).astype(np.float32)
        part = part[:, None] if axis == -2 else part
        upper = np.minimum(lower + 1, last)
        values = values.take(lower, axis) * (1 - part) + values.take(upper, axis) * part
    return values


def nearest(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize values (h, w) to the nearest ones as PyTorch's ``interpolate`` does."""
    columns, rows = (
        (np.arange(new) * np.float32(old / new)).astype(np.int64).clip(0, old - 1)
        for old, new in zip(values.shape[::-1], size, strict=True)
    )
    return values[rows[:, None], columns]


def paste(mask: np.ndarray, box: np.ndarray, threshold: float, target: np.ndarray) -> None:
    """Set the pixels (H, W) where the mask (M, M) of a box has at least a probability.

    The mask is interpolated as mmdet does, with 0 outside of the box.
    """
    low = np.maximum(np.floor(box[:2]).astype(int) - 1, 0)
    high = np.minimum(np.ceil(box[2:]).astype(int) + 1, target.shape[::-1])
    if (low >= high).any() or not (box[2:] > box[:2]).all():
        return
    padded = np.pad(mask, 1)
    columns, rows = (
        ((np.arange(start, end, dtype=np.float32) + 0.5 - first) / (last - first) * length + 0.5)
        .astype(np.float32)
        .clip(0, length + 1)
        for start, end, first, last, length in zip(
            low, high, box[:2], box[2:], mask.shape[::-1], strict=True
        )
    )
    inside = bilinear(padded, rows, columns) >= threshold
    target[low[1] : high[1], low[0] : high[0]] = inside


# Results in files.


def save(result: Result, classes: Sequence[str], path: Path) -> None:
    """Write a result: PATH.json, and labels of pixels to PATH_labels.png.

    Masks in the JSON file are run lengths as in COCO's annotations. The PNG file holds the index of
    the class of each pixel, or for a panoptic model COCO's panoptic format: the value is
    red + 256 * green + 65536 * blue.
    """
    content = _objects(result, classes) if isinstance(result, Objects) else _shares(result, classes)
    if isinstance(result, Regions):
        values = result.values
        if result.is_panoptic:
            values = np.stack([values >> shift & 255 for shift in (0, 8, 16)], -1)
        dtype = np.uint8 if values.max() < 256 else np.uint16
        Image.fromarray(values.astype(dtype)).save(_labels_path(path))
    _with_suffix(path, '.json').write_text(json.dumps(content) + '\n', encoding='utf-8')


def load(path: Path) -> Result:
    """Read a result that :func:`save` has written."""
    if not _labels_path(path).exists():
        objects = json.loads(_with_suffix(path, '.json').read_text(encoding='utf-8'))['objects']
        masks = [_mask(**obj['mask']) for obj in objects if 'mask' in obj]
        return Objects(
            np.array([obj['box'] for obj in objects], np.float32).reshape(-1, 4),
            np.array([obj['score'] for obj in objects], np.float32),
            np.array([obj['label'] for obj in objects], np.int64),
            np.array(masks) if masks else None,
        )
    with Image.open(_labels_path(path)) as file:
        values = np.array(file, np.int64)
    if values.ndim == 3:
        return Regions(values @ [1, 256, 65536], is_panoptic=True)
    return Regions(values)


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _labels_path(path: Path) -> Path:
    return _with_suffix(path, '_labels.png')


def _objects(objects: Objects, classes: Sequence[str]) -> dict[str, Any]:
    written = []
    for i, label in enumerate(objects.labels.tolist()):
        entry = dict(label=label, score=float(objects.scores[i]), box=objects.boxes[i].tolist())
        if objects.masks is not None:
            entry['mask'] = _run_lengths(objects.masks[i])
        written.append({'class': classes[label], **entry})
    return {'objects': written}


def _shares(regions: Regions, classes: Sequence[str]) -> dict[str, Any]:
    """Return the share of the pixels of each class, and the area of each panoptic segment."""
    counts = np.bincount(regions.labels.ravel(), minlength=len(classes))
    names = [i for i in np.argsort(-counts[: len(classes)], kind='stable') if counts[i]]
    content = {'shares': {classes[i]: counts[i] / regions.labels.size for i in names}}
    if regions.is_panoptic:
        values, areas = np.unique(regions.values, return_counts=True)
        content['segments'] = [
            {'id': value, 'class': classes[value % INSTANCES], 'area': area}
            for value, area in zip(values.tolist(), areas.tolist(), strict=True)
            if value % INSTANCES < len(classes)
        ]
    return content


def _run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    flat = mask.ravel(order='F')
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff([0, *changes, flat.size]).tolist()
    return {'size': [*mask.shape], 'counts': [0, *counts] if flat[0] else counts}


def _mask(size: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(size, order='F')


def draw(image: np.ndarray, result: Result, model: Model) -> Image.Image:
    """Draw a result over its image (H, W, 3) of RGB, uint8."""
    colors = np.array([*model.palette, (0, 0, 0)], np.uint8)
    canvas = image.copy()
    if isinstance(result, Regions):
        _blend(canvas, colors[result.labels.clip(max=len(model.classes))], result.labels >= 0)
    elif result.masks is not None:
        for mask, label in reversed([*zip(result.masks, result.labels, strict=True)]):
            _blend(canvas, colors[label], mask)
    picture = Image.fromarray(canvas)
    pen = ImageDraw.Draw(picture)
    font = _font(max(10, sum(picture.size) // 80), ''.join(model.classes))
    style = dict(font=font, stroke_width=1, stroke_fill='black')
    if isinstance(result, Regions):
        present = [i for i in np.unique(result.labels) if i < len(model.classes)]
        for row, i in enumerate(present):
            place = 4, 4 + 1.3 * font.size * row
            pen.text(place, model.classes[i], fill=tuple(model.palette[i]), **style)
        return picture
    for box, score, label in reversed([*zip(*result[:3], strict=True)]):
        color = tuple(model.palette[label])
        pen.rectangle([*np.sort(box.reshape(2, 2), 0).ravel().tolist()], outline=color, width=2)
        text = f'{model.classes[label]} {score:.2f}'
        last = np.subtract(picture.size, pen.textbbox((0, 0), text, font)[2:]) - 3
        place = np.minimum(np.add(box[:2], (3, 2)), last).clip(0)
        pen.text(tuple(place), text, fill=color, **style)
    return picture


def _font(size: int, text: str) -> ImageFont.FreeTypeFont:
    """Return Pillow's own font, or the font of the system that lacks the fewest letters."""
    fonts = []
    for name in () if text.isascii() else FONTS:
        try:
            fonts.append(ImageFont.truetype(name, size))
        except OSError:  # not on this system
            continue
    default = ImageFont.load_default(size)
    return min(fonts, key=lambda font: _lacking(font, text), default=default)


def _lacking(font: ImageFont.FreeTypeFont, text: str) -> int:
    square = bytes(font.getmask('\uffff'))
    return sum(bytes(font.getmask(letter)) == square for letter in {*text} if not letter.isspace())


def _blend(canvas: np.ndarray, colors: np.ndarray, where: np.ndarray) -> None:
    blended = canvas * (1 - OPACITY) + colors * OPACITY
    np.copyto(canvas, blended.astype(np.uint8), where=where[..., None])


def _images(path: Path) -> list[Path]:
    """Return the path of an image, or the paths of the images in a folder."""
    if not path.is_dir():
        return [path]
    suffixes = {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    files = [f for f in path.iterdir() if f.suffix.lower() in suffixes and f.name[0] != '.']
    return sorted(file for file in files if not _is_written(file))


def _is_written(picture: Path) -> bool:
    """Return whether an earlier call wrote a picture, whose result is next to it."""
    name, _, kind = picture.name.rpartition('_')
    return kind in ('drawn.png', 'labels.png') and picture.with_name(f'{name}.json').exists()


# The comparison with the expected result.


def differences(result: Result, expected: Result, tolerance: Mapping[str, float]) -> str | None:
    """Say how a result differs from the expected one by more than the tolerance, or return None.

    The tolerance holds the share of pixels with another label (``labels``); or the least IoU of
    boxes and of masks (``overlap``), the score above which objects are counted (``score``), and the
    share of them that may have no counterpart (``lost``).
    """
    if isinstance(expected, Regions):
        share = (result.values != expected.values).mean()
        return f'{share:.2%} of the pixels differ' if share > tolerance['labels'] else None
    number = lost = 0
    for side, other in ((result, expected), (expected, result)):
        for i in np.flatnonzero(side.scores > tolerance['score']):
            number += 1
            lost += not _has_counterpart(side, i, other, tolerance['overlap'])
    if lost > tolerance['lost'] * number:
        return f'{lost} of {number} objects have no counterpart'
    return None


def _has_counterpart(objects: Objects, i: int, others: Objects, least: float) -> bool:
    for j in np.flatnonzero(others.labels == objects.labels[i]):
        if _overlap_of_boxes(objects.boxes[i], others.boxes[j]) < least:
            continue
        if objects.masks is None:
            return True
        mask, other = objects.masks[i], others.masks[j]
        if (mask & other).sum() >= least * (mask | other).sum():
            return True
    return False


def _overlap_of_boxes(box: np.ndarray, other: np.ndarray) -> float:
    common = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
    common = np.prod(common.clip(0))
    areas = np.prod(box[2:] - box[:2]) + np.prod(other[2:] - other[:2])
    return common / max(areas - common, 1e-9)


def check(folder: Path, model: Model) -> str | None:
    """Compare the result for the test picture of a folder with the expected one."""
    result = model.predict(read_image(folder / TEST))
    content = json.loads((folder / f'{EXPECTED}.json').read_text(encoding='utf-8'))
    return differences(result, load(folder / EXPECTED), content['tolerance'])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('images', nargs='*', type=Path, help='image files, or folders of them')
    parser.add_argument('--out', type=Path, default=Path('predictions'), metavar='DIR')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='least score of an object (default: 0.3)'
    )
    parser.add_argument(
        '--check', action='store_true', help=f'compare the result for {TEST} with the expected one'
    )
    args = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):  # redirected on Windows, they lack most letters
        stream.reconfigure(errors='backslashreplace')
    if bool(args.images) == args.check:
        parser.error('name images, or only --check')
    images = [image for path in args.images for image in _images(path)]
    if not images and not args.check:
        parser.error(f'{args.images[0]} holds no image')
    names = [path.name for path in images]
    if len({*names}) < len(names):
        parser.error('two images have the same name, but their results go into one folder')
    folder = Path(__file__).resolve().parent
    paths = [folder / f'{MODEL}{suffix}' for suffix in RUNTIMES]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        parser.error(f'{folder} holds none of {", ".join(path.name for path in paths)}')
    try:
        model = Model(path)
    except ImportError as error:
        parser.error(f'{error}: install what README.md names')
    except Exception as error:  # each runtime has its own
        parser.error(f'{path} cannot be used ({error}): copy the whole folder again')
    if args.check:
        try:
            problem = check(folder, model)
        except FileNotFoundError as error:
            parser.error(f'{error.filename} is missing: copy the whole folder again')
        print(f'{TEST}: {problem or "as expected"}')
        sys.exit(1 if problem else 0)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f'--out {args.out} cannot be a folder ({error.strerror})')
    failed = False
    for image_path in images:
        try:
            image = read_image(image_path)
        except UNREADABLE as error:
            print(f'{image_path} cannot be read: {error}', file=sys.stderr)
            failed = True
            continue
        try:
            result = model.predict(image, args.score_thr)
        except Exception as error:  # each runtime has its own
            width, height = image.shape[1::-1]
            what = f'an image of {width}x{height} pixels'
            print(f'{image_path}: the model does not take {what} ({error})', file=sys.stderr)
            failed = True
            continue
        target = args.out / image_path.name
        save(result, model.classes, target)
        draw(image, result, model).save(_with_suffix(target, '_drawn.png'))
        print(f'{image_path}: {_with_suffix(target, ".json")}')
    sys.exit(2 if failed else 0)


if __name__ == '__main__':
    main()
