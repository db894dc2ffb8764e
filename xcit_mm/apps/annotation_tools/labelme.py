"""Objects as files of LabelMe."""

import base64
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from ...base.errors import UserError
from ...data.importers.base import Shape
from .objects import AnnotatedImage, smallest_window

VERSION = '5.5.0'  # of LabelMe, since when its files have all fields that are written


def files(folder: Path, images: Iterable[AnnotatedImage], kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files for LabelMe: one for each image.

    The files in ``folder`` name the images by their relative paths.

    Raises:
        UserError: If the names of two images differ in their suffixes only.
    """
    named: dict[PurePosixPath, Path] = {}
    for image in images:
        shapes = []
        for group, item in enumerate(image.objects, 1):
            parts = item.shapes(kind)
            score = {} if item.score is None else dict(score=item.score)
            common = dict(flags={}, description='', **score)
            common |= dict(label=item.name, group_id=group if len(parts) > 1 else None)
            shapes += [common | _described(part) for part in parts]
        path = PurePosixPath(image.name).with_suffix('.json')
        if named.setdefault(path, image.path) != image.path:
            raise UserError(
                f'{named[path]} and {image.path} would share the file {path} of LabelMe: rename '
                'one of them, and predict them again'
            )
        content = dict(
            version=VERSION,
            flags={},
            shapes=shapes,
            imagePath=path_from((folder / path).parent, image.path),
            imageData=None,
            imageHeight=image.size[1],
            imageWidth=image.size[0],
        )
        yield str(path), json.dumps(content, indent=2).encode()


def path_from(folder: PurePath, path: PurePath) -> str:
    """Return the relative path of a file, or its full path if it is on another Windows drive."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(path)


def _described(shape: Shape) -> dict[str, Any]:
    if not isinstance(shape, np.ndarray):
        points = [list(point) for point in zip(shape[::2], shape[1::2], strict=True)]
        return dict(shape_type='rectangle' if len(points) == 2 else 'polygon', points=points)
    rows, columns = smallest_window(shape)
    stored = io.BytesIO()
    Image.fromarray(shape[rows, columns].astype(np.uint8)).save(stored, 'PNG')
    corners = [[columns.start, rows.start], [columns.stop - 1, rows.stop - 1]]  # both are inside
    mask = base64.b64encode(stored.getvalue()).decode()
    return dict(shape_type='mask', points=corners, mask=mask)
