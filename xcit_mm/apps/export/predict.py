#!/usr/bin/env python3
"""Predict objects, or the class of each pixel, with the model.onnx next to this file.

Needs onnxruntime, NumPy and Pillow. ``tools/export.py --folder`` of xcit_mm writes copies.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession
from PIL import Image, ImageDraw, ImageFont, ImageOps

Result = dict[str, np.ndarray]

MODEL, TEST, EXPECTED = 'model.onnx', 'test.png', 'expected.npz'
TEXTS = ('config', 'precision', 'channels')  # metadata that is not JSON
INSTANCES = 1000  # a panoptic value is the class plus this times the number of the object
WEIGHT = np.float32(2048)  # OpenCV's unit of the weights of pixels
BLOCK = 2**22  # values that are interpolated at a time
TEXT_SIZE, SMALLEST_TEXT = 0.035, 12  # relative to the shorter side of a picture; in pixels
MIN_SIDE = 480  # pixels of a picture: a smaller image is enlarged, or labels would hide it


class Model:
    """An exported model, with the metadata of its file by name."""

    def __init__(self, path: Path) -> None:
        self.session = InferenceSession(path, providers=['CPUExecutionProvider'])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.metadata = {k: v if k in TEXTS else json.loads(v) for k, v in metadata.items()}

    def predict(self, image: np.ndarray, score_thr: float = 0.0) -> Result:
        """Predict an image (H, W, 3) of RGB, uint8.

        Returns:
            Of a detector ``boxes`` (n, 4), left, top, right and bottom in pixels, ``scores`` (n,)
            of at least ``score_thr``, decreasing, ``labels`` (n,), and maybe ``masks`` (n, H, W).
            Of a segmentor ``labels`` (H, W). Of a panoptic model ``panoptic`` (H, W).
        """
        size = image.shape[1::-1]
        resized = resize(image, size_for(size, self.metadata['resizing']))
        pixels = resized[..., ::-1] if self.metadata['channels'] == 'BGR' else resized
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)
        values = self.session.run(None, {'image': pixels})
        outputs = dict(zip(self.metadata['outputs'], values, strict=True))
        if 'panoptic' in outputs:
            return {'panoptic': nearest(outputs['panoptic'], size)}
        if 'logits' in outputs:
            is_whole = resized is image
            return {'labels': outputs['labels'][0] if is_whole else self._labels(outputs, size)}
        order = np.argsort(-outputs['scores'], kind='stable')
        order = order[outputs['scores'][order] >= score_thr]
        objects = {name: value[order] for name, value in outputs.items()}
        factors = [new / old for new, old in zip(resized.shape[1::-1], size, strict=True)]
        objects['boxes'] /= np.float32(factors * 2)
        if 'masks' in objects:
            masks = np.zeros((len(order), *image.shape[:2]), bool)
            for target, mask, box in zip(masks, objects['masks'], objects['boxes'], strict=True):
                paste(mask, box, self.metadata.get('threshold', 0), target)
            objects['masks'] = masks
        return objects

    def _labels(self, outputs: Result, size: tuple[int, int]) -> np.ndarray:
        """Return the labels (H, W) of logits (1, K, h, w) that are resized bilinearly."""
        logits = outputs['logits'][0]
        columns, rows = places(logits, size, self.metadata['align_corners'])
        labels = []
        # All of them may take gigabytes.
        for part in np.array_split(rows, 1 + len(logits) * len(rows) * len(columns) // BLOCK):
            resized = bilinear(logits, part, columns)
            if len(resized) > 1:
                labels.append(resized.argmax(0))
            else:  # a foreground alone
                labels.append((1 / (1 + np.exp(-resized[0])) > self.metadata['threshold']) + 0)
        return np.concatenate(labels)


def read_image(path: Path) -> np.ndarray:
    """Return an image file as RGB (H, W, 3) uint8, in its EXIF orientation."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
        if image.mode[0] in 'IF':
            # Some versions of Pillow open PNG files of 16 bits in the mode I. It would clip them.
            if not (image.mode.startswith('I;16') or (image.mode, file.format) == ('I', 'PNG')):
                raise ValueError(f'{file.format} with values of 32 bits: save it as PNG')
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.array(image.convert('RGB'))


def size_for(size: tuple[int, int], resizing: dict[str, Any] | None) -> tuple[int, int]:
    """Return the width and height at which the model expects an image of a width and height."""
    if resizing is None:
        return size
    scale = resizing['scale']
    if not resizing['keep_ratio']:
        return tuple(scale)
    factor = min(max(scale) / max(size), min(scale) / min(size))
    return tuple(int(side * factor + 0.5) for side in size)


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image (H, W, 3) of uint8 bilinearly, bit for bit as OpenCV does."""
    old_size = image.shape[1::-1]
    if size == old_size:
        return image
    if old_size == (2 * size[0], 2 * size[1]):  # the mean of four pixels
        sums = image.reshape(size[1], 2, size[0], 2, 3).sum((1, 3), dtype=np.int32)
        return (sums + 2 >> 2).astype(np.uint8)
    indices, weights = [], []
    for old, new in zip(old_size, size, strict=True):
        place = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
        lower = np.floor(place).astype(np.int64)
        part = place - lower.astype(np.float32)
        if not indices:  # OpenCV does not interpolate beyond the columns, but beyond the rows
            part = np.where((lower < 0) | (lower >= old - 1), np.float32(0), part)
        indices.append([i.clip(0, old - 1) for i in (lower, lower + 1)])
        weights.append([np.rint(w * WEIGHT).astype(np.int32) for w in (1 - part, part)])
    values = image.astype(np.int32)
    pairs = zip(indices[0], weights[0], strict=True)
    values = sum(values[:, i] * weight[:, None] for i, weight in pairs) >> 4
    pairs = zip(indices[1], weights[1], strict=True)
    values = sum(values[i] * weight[:, None, None] >> 16 for i, weight in pairs)
    return (values + 2 >> 2).clip(0, 255).astype(np.uint8)


def places(
    values: np.ndarray, size: tuple[int, int], align_corners: bool = False
) -> list[np.ndarray]:
    """Return the columns and rows of values (..., h, w) where PyTorch's ``interpolate`` reads."""
    result = []
    for old, new in zip(values.shape[:-3:-1], size, strict=True):
        place = np.arange(new, dtype=np.float32)
        if align_corners:
            result.append(place * np.float32((old - 1) / max(new - 1, 1)))
        else:
            place = (place + np.float32(0.5)) * np.float32(old / new) - np.float32(0.5)
            result.append(place.clip(0, old - 1))
    return result


def bilinear(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolate values (..., h, w) at rows and columns in range, to (..., rows, columns)."""
    for axis, place in ((-2, rows[:, None]), (-1, columns)):
        lower = np.floor(place).astype(np.int64)
        part = (place - lower).astype(np.float32)
        lower = lower.ravel()
        upper = np.minimum(lower + 1, values.shape[axis] - 1)
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
    """Set the pixels (H, W) of a mask: bool (h, w) of the image, or probabilities in the box."""
    if mask.dtype == bool:
        columns, rows = places(mask, target.shape[::-1])
        target[:] = bilinear(mask.astype(np.float32), rows, columns) > 0.5
        return
    low = np.maximum(np.floor(box[:2]).astype(int) - 1, 0)
    high = np.minimum(np.ceil(box[2:]).astype(int) + 1, target.shape[::-1])
    if (low >= high).any() or not (box[2:] > box[:2]).all():
        return
    columns, rows = (  # of the mask with a border of 0, as mmdet has it
        ((np.arange(start, end, dtype=np.float32) + 0.5 - first) / (last - first) * length + 0.5)
        .astype(np.float32)
        .clip(0, length + 1)
        for start, end, first, last, length in zip(
            low, high, box[:2], box[2:], mask.shape[::-1], strict=True
        )
    )
    inside = bilinear(np.pad(mask, 1), rows, columns) >= threshold
    target[low[1] : high[1], low[0] : high[0]] = inside


def save(result: Result, classes: list[str], path: Path) -> None:
    """Write PATH.json, and the labels of pixels to PATH_labels.png.

    Panoptic values are in COCO's format: red + 256 * green + 65536 * blue.
    """
    if 'scores' in result:
        names = ('labels', 'scores', 'boxes')
        rows = zip(*(result[name].tolist() for name in names), strict=True)
        objects = [
            {'class': classes[label], 'label': label, 'score': score, 'box': box}
            for label, score, box in rows
        ]
        for entry, mask in zip(objects, result.get('masks', ()), strict=False):
            entry['mask'] = run_lengths(mask)
        content = {'objects': objects}
    else:
        pixels = result.get('panoptic', result.get('labels'))
        counts = np.bincount((pixels % INSTANCES).ravel(), minlength=len(classes))
        pairs = zip(classes, counts.tolist(), strict=False)  # the last may be for no class
        content = {'shares': {name: count / pixels.size for name, count in pairs if count}}
        if 'panoptic' in result:
            pixels = np.stack([pixels >> shift & 255 for shift in (0, 8, 16)], -1)
        dtype = np.uint8 if pixels.max() < 256 else np.uint16
        Image.fromarray(pixels.astype(dtype)).save(path.with_name(f'{path.name}_labels.png'))
    path.with_name(f'{path.name}.json').write_text(json.dumps(content) + '\n', encoding='utf-8')


def draw(
    image: np.ndarray, result: Result, classes: list[str], palette: list[list[int]]
) -> Image.Image:
    """Return a picture of a result over its image, with the names of the classes.

    Objects have boxes, masks and scores. A legend names the classes of pixels with their shares.
    """
    painted, counts = image.copy(), Counter()
    if 'scores' in result:
        pairs = [*zip(result.get('masks', ()), result['labels'].tolist(), strict=False)]
    else:
        labels = result.get('panoptic', result.get('labels')) % INSTANCES
        pairs = [(labels == i, i) for i in range(len(classes))]
        counts.update({label: int(mask.sum()) for mask, label in pairs})
    for mask, label in reversed(pairs):
        painted[mask] = palette[label]
    picture = Image.blend(Image.fromarray(image), Image.fromarray(painted), 0.5)
    if 'scores' not in result:  # outlines in the full colors
        values = np.pad(result.get('panoptic', result.get('labels')), 1, 'edge')
        is_edge = (values[1:-1, :-2] != values[1:-1, 2:]) | (values[:-2, 1:-1] != values[2:, 1:-1])
        picture.paste(Image.fromarray(painted), mask=Image.fromarray(is_edge))
    factor = max(1, -(-MIN_SIDE // min(picture.size)))
    picture = picture.resize([side * factor for side in picture.size])
    shorter = min(picture.size)
    size = max(SMALLEST_TEXT, round(TEXT_SIZE * shorter))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size)
    names = ('boxes', 'scores', 'labels')
    objects = zip(*(result[k].tolist() for k in names), strict=True) if 'scores' in result else ()
    for box, score, label in reversed([*objects]):
        left, top, right, bottom = (round(factor * value) for value in box)
        color = tuple(palette[label])
        right, bottom = max(left, right), max(top, bottom)
        draw.rectangle((left, top, right, bottom), outline=color, width=max(2, shorter // 240))
        write(draw, (left, top), f'{classes[label]} {score:.2f}', color, font)
    place = 0
    for label, count in counts.most_common():
        if count:
            text = f'{classes[label]} {count / labels.size:.1%}'
            place = write(draw, (0, place), text, tuple(palette[label]), font, is_below=True)
    return picture


def write(
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    color: tuple[int, ...],
    font: ImageFont.FreeTypeFont,
    is_below: bool = False,
) -> int:
    """Write a text on its color above a place, or below it, within the picture.

    Returns:
        Where the next text below it starts.
    """
    gap, height = font.size // 3, round(1.4 * font.size)
    width = round(font.getlength(text)) + 2 * gap
    left = max(0, min(place[0], draw.im.size[0] - width))
    top = place[1] if is_below else place[1] - height
    top = max(0, min(top, draw.im.size[1] - height))
    draw.rectangle((left, top, left + width - 1, top + height - 1), fill=color)
    fill = 'black' if np.dot((0.299, 0.587, 0.114), color) > 140 else 'white'  # by luminance
    draw.text((left + gap, top + height // 2), text, fill, font, 'lm')
    return top + height


def names_for(images: list[Path]) -> list[str]:
    """Return the names of the results: the stems of images, or their names if stems are equal.

    An image with the stem ``..._labels`` is named in full, too, if its picture would otherwise have
    the name of another image's labels.
    """
    stems = Counter(image.stem.casefold() for image in images)
    taken = {f'{stem}_labels' for stem in stems}
    return [
        image.name if stems[stem := image.stem.casefold()] > 1 or stem in taken else image.stem
        for image in images
    ]


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """Return a mask as COCO's uncompressed run lengths, which start with those of 0."""
    flat = mask.ravel(order='F')
    changes = np.flatnonzero(np.diff(flat, prepend=False))
    return {'size': [*mask.shape], 'counts': np.diff([0, *changes, flat.size]).tolist()}


def difference(result: Result, expected: Result) -> str:
    """Say how a result differs from the expected one by more than that allows, or return ''."""
    for name in ('panoptic', 'labels'):
        if name in expected and expected[name].ndim == 2:
            share = (result[name] != expected[name]).mean()
            return f'{share:.2%} of the pixels differ' if share > expected['different'] else ''
    number = lost = 0
    for objects, others in ((result, expected), (expected, result)):
        for i in np.flatnonzero(objects['scores'] > expected['score']):
            number += 1
            lost += not has_counterpart(objects, i, others, expected['overlap'])
    too_many = lost > expected['lost'] * number
    return f'{lost} of {number} objects have no counterpart' if too_many else ''


def has_counterpart(objects: Result, i: int, others: Result, least: float) -> bool:
    """Return whether an object of others has the label, and enough of the box and the mask."""
    box, boxes = objects['boxes'][i], others['boxes']
    common = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = common.clip(0).prod(-1)
    areas = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(-1) - common
    alike = (others['labels'] == objects['labels'][i]) & (common >= least * areas.clip(1e-9))
    if 'masks' not in objects:
        return bool(alike.any())
    mask, masks = objects['masks'][i], others['masks'][alike]
    return any((mask & other).sum() >= least * (mask | other).sum() for other in masks)


def check(model: Model, folder: Path) -> str:
    """Compare the result for the test picture of a folder with the expected one."""
    expected = dict(np.load(folder / EXPECTED))
    return difference(model.predict(read_image(folder / TEST)), expected)


def images_of(path: Path) -> list[Path]:
    """Return the path of an image, or the paths of the images in a folder."""
    if not path.is_dir():
        return [path]
    suffixes = {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    return sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('images', nargs='*', type=Path, help='image files, or folders of them')
    parser.add_argument('--out', type=Path, default=Path('predictions'), metavar='DIR')
    parser.add_argument('--score-thr', type=float, default=0.3, help='default: %(default)s')
    parser.add_argument('--check', action='store_true', help=f'try the model on {TEST}')
    args = parser.parse_args()
    if bool(args.images) == args.check:
        parser.error('name images, or only --check')
    folder = Path(__file__).resolve().parent
    model = Model(folder / MODEL)
    if args.check:
        problem = check(model, folder)
        print(f'{TEST}: {problem or "as expected"}')
        return 1 if problem else 0
    images = [image for path in args.images for image in images_of(path)]
    if len({path.name for path in images}) < len(images):
        parser.error('two images have the same name, but their results go into one folder')
    names, inputs = names_for(images), {path.resolve() for path in images}
    ends = ('.png', '_labels.png')
    if any((args.out / f'{name}{end}').resolve() in inputs for name in names for end in ends):
        parser.error(f'pictures in {args.out} would replace images: name another folder with --out')
    args.out.mkdir(parents=True, exist_ok=True)
    classes, palette = model.metadata['classes'], model.metadata['palette']
    code = 0
    for path, name in zip(images, names, strict=True):
        try:
            image = read_image(path)
            result = model.predict(image, args.score_thr)
        except Exception as error:  # of Pillow, or of the model for a size that it does not take
            print(f'{path}: {error}', file=sys.stderr)
            code = 2
            continue
        save(result, classes, args.out / name)
        draw(image, result, classes, palette).save(args.out / f'{name}.png')
        print(f'{path}: {args.out / name}.png, {name}.json')
    return code


if __name__ == '__main__':
    sys.exit(main())
