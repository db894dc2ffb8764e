"""The files for annotation tools that ``tools/convert_predictions.py`` writes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...base.errors import printable
from ...base.files import require_writable, write_files
from . import cvat, labelme, labelstudio
from .objects import MASKS, AnnotatedImage, read_objects


def convert_predictions(
    tool: str,
    predictions: str | Path,
    out: str | Path,
    folder: str | Path = '.',
    kind: str = MASKS,
    score_thr: float = 0,
    image_url: str | None = None,
) -> None:
    """Write the objects of predictions.json, or of another file in COCO's format, for a tool.

    The arguments are the options of tools/convert_predictions.py. All files are written or none.

    Raises:
        UserError: If the predictions cannot be read or the files cannot be written.
    """
    out = Path(out)
    classes, images = read_objects(Path(predictions), Path(folder), score_thr, kind)
    require_writable(out)
    numbers: Counter[str] = Counter()
    images = _counted(images, numbers)
    if tool == 'cvat':
        files = cvat.files(classes, images, kind)
    elif tool == 'labelme':
        files = labelme.files(out.absolute(), images, kind)
    else:
        url = labelstudio.LOCAL_FILES if image_url is None else image_url
        files = labelstudio.files(classes, images, kind, url)
    sentence = write_files(out, {out / name: content for name, content in files})
    print(printable(f'{numbers["images"]} images, {numbers["objects"]} objects\n{sentence}'))


def _counted(images: Iterable[AnnotatedImage], numbers: Counter[str]) -> Iterator[AnnotatedImage]:
    for image in images:
        numbers.update(images=1, objects=len(image.objects))
        yield image
