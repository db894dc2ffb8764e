"""Where predictions go: pictures, and COCO's JSON or label images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import UserError, reason
from ..files import DISK_FULL, require_writable, set_aside, write_whole
from .classes import category_ids
from .detections import Detections
from .frames import Frame
from .model import Model
from .places import CLASSES, LABELS, PICTURES, PREDICTIONS, WRITTEN
from .segmentation import Segmentation
from .video import VideoWriter

QUALITY = 92  # of the JPEGs
LONGEST_SIDE = 65500  # of a JPEG in pixels; a longer one becomes a PNG
LEGEND_ROWS = 3  # of a video, whose pictures are of one size


class Output:
    """The folder of the predictions, within a ``with`` block.

    Every file in it is whole. The JSON file comes at the end of the block, also if an error or
    Ctrl-C ends it. What an earlier call left in the folder is moved into ``earlier_*`` before the
    first prediction is written.

    Args:
        folder: Where to write.
        model: Whose predictions they are.
        info: What is said of them in the JSON file.

    Attributes:
        places: What was written and where, by a word.

    Raises:
        UserError: If the folder cannot be written to.
    """

    def __init__(self, folder: Path, model: Model, info: dict[str, str]) -> None:
        require_writable(folder)
        self._folder, self._model = folder, model
        self._content: dict[str, Any] = dict(info=info, images=[])
        self._is_begun = False
        self._video: VideoWriter | None = None
        self._video_name: Path | None = None
        if model.task == 'detection':
            self._json = folder / PREDICTIONS
            self._content['annotations'] = []
            self._content['categories'] = [
                dict(id=i, name=name)
                for i, name in zip(category_ids(model.classes), model.classes, strict=True)
            ]
        else:
            self._json = folder / CLASSES
            self._content['classes'] = [
                dict(label=i, name=name, colour=colour)
                for i, (name, colour) in enumerate(zip(model.classes, model.palette, strict=True))
            ]

    def __enter__(self) -> 'Output':
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self._close_video() if kind is None else self._discard_video()
        finally:
            if self._content['images']:
                with write_whole(self._json, 'w') as file:
                    json.dump(self._content, file)

    @property
    def places(self) -> dict[str, Path]:
        labels = {} if self._model.task == 'detection' else {'labels': self._folder / LABELS}
        return {'pictures': self._folder / PICTURES, **labels, self._json.stem: self._json}

    def add(self, frame: Frame, prediction: Detections | Segmentation) -> None:
        """Write the prediction of an image, or of the next frame of a video.

        Raises:
            UserError: If its video cannot be written.
        """
        images = self._content['images']
        if not self._is_begun:
            earlier = [path for name in WRITTEN if (path := self._folder / name).exists()]
            set_aside(self._folder, earlier, 'name another --out')
            self._is_begun = True
        height, width = frame.image.shape[:2]
        info = dict(id=len(images) + 1, file_name=frame.input.source, width=width, height=height)
        name = Path(frame.input.name)
        if frame.index is None:
            info['picture'] = self._write_picture(Path(PICTURES, name), prediction)
        else:
            info['frame'] = frame.index
            info['picture'] = self._append_picture(Path(PICTURES, f'{name}.mp4'), frame, prediction)
            name = name / f'{frame.index:06d}'
        if isinstance(prediction, Segmentation):
            info['labels'] = self._write_labels(Path(LABELS, f'{name}.png'), prediction.labels)
        else:
            annotations = self._content['annotations']
            for annotation in prediction.to_coco(info['id']):
                annotations.append({'id': len(annotations) + 1, **annotation})
        images.append(info)

    def _write_picture(self, name: Path, prediction: Detections | Segmentation) -> str:
        image = Image.fromarray(prediction.draw())
        suffix = '.jpg' if max(image.size) <= LONGEST_SIDE else '.png'
        name = name.with_name(name.name + suffix)
        self._write_image(name, image, quality=QUALITY)
        return str(name)

    def _write_labels(self, name: Path, labels: np.ndarray) -> str:
        if labels.dtype == np.uint8:
            image = Image.fromarray(labels)
            image.putpalette([value for colour in self._model.palette for value in colour])
        else:
            image = Image.fromarray(labels.astype(np.uint16))  # PNG has no palette of that size
        self._write_image(name, image)
        return str(name)

    def _write_image(self, name: Path, image: Image.Image, **options: int) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as file:
            image.save(file, 'JPEG' if path.suffix == '.jpg' else 'PNG', **options)

    def _append_picture(
        self, name: Path, frame: Frame, prediction: Detections | Segmentation
    ) -> str:
        rows = {} if isinstance(prediction, Detections) else {'legend_rows': LEGEND_ROWS}
        picture = prediction.draw(**rows)
        if self._video_name != name:
            self._close_video()
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._video = VideoWriter(self._folder / name, frame.rate, picture.shape[1::-1])
            self._video_name = name
        self._video.add(picture)
        return str(name)

    def _close_video(self) -> None:
        if self._video is not None:
            path = self._video.path
            try:
                self._video.close()
            except OSError as error:
                self._discard_video()
                if error.errno in DISK_FULL:
                    raise
                raise UserError(f'{path} cannot be written ({reason(error)})') from None
            self._video = self._video_name = None

    def _discard_video(self) -> None:
        """What is said of its frames stays, but for the name of the video."""
        if self._video is not None:
            self._video.discard()
            for image in self._content['images']:
                if image['picture'] == str(self._video_name):
                    del image['picture']
            self._video = self._video_name = None
