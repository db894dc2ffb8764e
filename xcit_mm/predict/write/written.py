"""The folder of predictions: pictures, and COCO's JSON, label images or heights."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...base.errors import UserError
from ...base.files import (
    EARLIER,
    remove_unfinished,
    require_writable,
    set_aside,
    write_whole,
)
from ...base.http import is_url
from ...base.locks import only_holder
from ..errors.error_tables import COUNTS, write_counts
from ..large.large_predictions import LargeDetections, LargeHeights, LargePrediction
from ..large.output_options import DEFAULT_OUTPUT, OutputOptions
from ..model import Model, Prediction
from ..results import Detections, Heights, Segmentation
from ..results.class_names import category_ids
from ..results.drawing import BLACK
from ..sources import Frame
from ..video import write_video

PICTURES, LABELS = 'pictures', 'labels'
PREDICTIONS, CLASSES = 'predictions.json', 'classes.json'
HEIGHTS, LIMITS = 'heights', 'heights.json'
OF_LARGE_IMAGES = 'scores', 'objects', 'polygons', 'probabilities'
LOCK = '.predictions.lock'
STORE = 'unfinished'  # the folder of the tokens of large images
WRITTEN = (PICTURES, PREDICTIONS, LABELS, CLASSES, COUNTS, HEIGHTS, LIMITS, *OF_LARGE_IMAGES)
GDAL_NODATA = 42113  # the tag of GDAL's no-data value in a TIFF file
# How Pillow writes an image, by the end of the name.
FORMATS = {
    '.jpg': dict(format='JPEG', quality=92),
    '.png': dict(format='PNG'),
    '.tif': dict(format='TIFF', compression='tiff_adobe_deflate', tiffinfo={GDAL_NODATA: 'nan'}),
}
MAX_JPEG_SIDE = 65500  # pixels; a longer picture becomes a PNG
LEGEND_ROWS = 3  # in a video, whose pictures have one size


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other runs from writing predictions to a folder within a ``with`` block.

    What killed runs have left unfinished is removed.

    Raises:
        UserError: If the folder cannot be written to, or another run writes there.
    """
    require_writable(folder)
    path = folder / LOCK
    refusal = (
        f'another run writes its predictions to {folder}: wait for its end, or name another --out'
    )
    with only_holder(path, refusal) as is_locked:
        if is_locked:
            _remove_unfinished(folder)
        try:
            yield
        finally:
            with suppress(OSError):  # Windows keeps a file that is open
                path.unlink()


def _remove_unfinished(folder: Path) -> None:
    for part in WRITTEN:
        with suppress(OSError):  # of another user
            remove_unfinished(folder, f'{part}.')
            for below, _, _ in os.walk(folder / part):
                remove_unfinished(Path(below))


def is_output(path: Path, folder: Path) -> bool:
    """Return whether a path is the folder of predictions, or holds predictions in it."""
    name = _part_of(folder, path)
    return name in ('.', *WRITTEN, STORE) or name.startswith(EARLIER)


def require_kept(sources: Iterable[str], folder: Path) -> None:
    """Refuse inputs that are earlier predictions in a folder, because new ones replace them."""
    for source in sources:
        if not is_url(source) and _part_of(folder, Path(source)) in WRITTEN:
            raise UserError(
                f'{source} is an earlier prediction in {folder}, which would be moved before it is '
                'read: name another --out'
            )


def _part_of(folder: Path, path: Path) -> str:
    """Return the name in a folder under which a path lies, '.' for the folder itself, or ''."""
    path, folder = path.resolve(), folder.resolve()
    if not path.is_relative_to(folder):
        return ''
    return (*path.relative_to(folder).parts, '.')[0]


class Output:
    """The folder of a model's predictions, within a ``with`` block.

    The JSON file, with ``info``, and the counts of each class are written at the end of the block,
    also after an error or Ctrl-C. What an earlier call left is moved into ``earlier_*`` when the
    first prediction is written, so a call that predicts nothing changes nothing. ``large`` says how
    predictions of large images are written.

    Attributes:
        has_written: Whether a file has been written.
    """

    def __init__(
        self,
        folder: Path,
        model: Model,
        info: dict[str, str],
        large: OutputOptions = DEFAULT_OUTPUT,
    ) -> None:
        self._large, self._classes = large, model.classes
        self._folder, self._palette, self.has_written = folder, model.palette, False
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._counts: list[tuple[str, list[dict[str, float]]]] = []
        self._video = ExitStack()  # closes the video that is written
        self._video_path: Path | None = None
        if model.task == 'detection':
            ids_and_names = zip(category_ids(model.classes), model.classes, strict=True)
            self._json = folder / PREDICTIONS
            categories = [dict(id=i, name=name) for i, name in ids_and_names]
            content = dict(categories=categories, annotations=self._annotations)
        elif model.task == 'heights':
            self._json, content = folder / LIMITS, {}
        else:
            self._json = folder / CLASSES
            labels = enumerate(zip(model.classes, model.palette, strict=True))
            content = dict(classes=[dict(label=i, name=n, colour=c) for i, (n, c) in labels])
        self._content = dict(info=info, images=self._images, **content)

    @property
    def objects(self) -> Counter | None:
        """The number of objects of each class so far, or None for a model without objects."""
        if 'annotations' not in self._content:
            return None
        return Counter(annotation['category_name'] for annotation in self._annotations)

    def __enter__(self) -> 'Output':
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._video.__exit__(*error)
        finally:
            for image in self._images:
                if not (self._folder / image['picture']).exists():  # of a video that was discarded
                    del image['picture']
            if self._images:
                with write_whole(self._json, 'w') as file:
                    file.write(json.dumps(self._content))  # json.dump takes ten times as long
            if self._counts:
                self._write_counts()

    def add(self, frame: Frame, prediction: Detections | Heights | Segmentation) -> None:
        """Write the prediction for an image, or for the next frame of a video."""
        image = self._described(frame.source, frame.image.shape[:2])
        name = frame.name
        if frame.index is None:
            self._write_picture(image, name, prediction.draw())
        else:
            image['frame'], image['picture'] = frame.index, f'{PICTURES}/{name}.mp4'
            rows = {'legend_rows': LEGEND_ROWS} if isinstance(prediction, Segmentation) else {}
            self._append_picture(image['picture'], frame.rate, prediction.draw(**rows))
            name = f'{name}/{frame.index:06d}'
        if isinstance(prediction, Segmentation):
            image['labels'] = f'{LABELS}/{name}.png'
            if prediction.labels.dtype == np.uint8:
                labels = Image.fromarray(prediction.labels)
                # Pillow cuts labels beyond the palette, whose last color is for pixels of no class.
                colors = [*self._palette, BLACK][:256]
                labels.putpalette(np.array(colors, np.uint8).tobytes())
            else:  # PNG has no palette of more than 256 colors
                labels = Image.fromarray(prediction.labels.astype(np.uint16))
            self._write_image(image['labels'], labels)
        elif isinstance(prediction, Heights):
            image |= _limits(prediction) | {'heights': f'{HEIGHTS}/{name}.tif'}
            self._write_image(image['heights'], Image.fromarray(prediction.values))
        else:
            self._add_objects(image, prediction)
        self._add(image, prediction)

    def add_large(self, source: str, name: str, prediction: LargePrediction) -> None:
        """Write the prediction for an image that does not fit into memory."""
        image = self._described(source, prediction.size)
        self._set_earlier_aside()
        if prediction.window is not None:  # in the full image
            rows, columns = prediction.window
            image['window'] = [columns.start, rows.start, columns.stop, rows.stop]
        image |= prediction.save(self._folder, name, self._large)
        self._write_picture(image, name, prediction.draw())
        if isinstance(prediction, LargeDetections):
            self._add_objects(image, prediction)
        elif isinstance(prediction, LargeHeights):
            image |= _limits(prediction)
        self._add(image, prediction)

    def _add(self, image: dict[str, Any], prediction: Prediction | LargePrediction) -> None:
        self._images.append(image)
        if not isinstance(prediction, Heights):
            frame = f', frame {image["frame"]}' if 'frame' in image else ''
            self._counts.append((image['file_name'] + frame, prediction.counts()))

    def _write_counts(self) -> None:
        columns = dict.fromkeys(name for _, counts in self._counts for name in counts[0])
        images = [
            (
                name,
                {i: [c.get(column, math.nan) for column in columns] for i, c in enumerate(counts)},
            )
            for name, counts in self._counts
        ]
        write_counts(self._folder / COUNTS, self._classes, list(columns), images)

    def _set_earlier_aside(self) -> None:
        """Move what an earlier call left, before the first file is written."""
        if not self.has_written:
            earlier = [path for name in WRITTEN if (path := self._folder / name).exists()]
            set_aside(self._folder, earlier)
            self.has_written = True

    def _described(self, source: str, size: tuple[int, int]) -> dict[str, Any]:
        return dict(id=len(self._images) + 1, file_name=source, width=size[1], height=size[0])

    def _add_objects(self, image: dict, prediction: Detections) -> None:
        for annotation in prediction.to_coco(image['id']):
            self._annotations.append({'id': len(self._annotations) + 1, **annotation})

    def _write_picture(self, image: dict, name: str, pixels: np.ndarray) -> None:
        picture = Image.fromarray(pixels)
        suffix = 'jpg' if max(picture.size) <= MAX_JPEG_SIDE else 'png'
        image['picture'] = f'{PICTURES}/{name}.{suffix}'
        self._write_image(image['picture'], picture)

    def _write_image(self, name: str, image: Image.Image) -> None:
        self._set_earlier_aside()
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as file:
            image.save(file, **FORMATS[path.suffix])

    def _append_picture(self, name: str, rate: float, picture: np.ndarray) -> None:
        path = self._folder / name
        if path != self._video_path:
            self._set_earlier_aside()
            self._video.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            video = write_video(path, rate, picture.shape[1::-1])
            self._add_to_video = self._video.enter_context(video)
            self._video_path = path
        self._add_to_video(picture)


def _limits(prediction: Heights) -> dict[str, float | None]:
    """Return the lowest and the highest height for a JSON file, which has no NaN."""
    names = 'minimum', 'maximum'
    return {k: None if math.isnan(v) else v for k, v in zip(names, prediction.limits, strict=True)}
