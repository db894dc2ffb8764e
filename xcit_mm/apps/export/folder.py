"""A folder with an exported model and what predicts with it where xcit_mm is not installed."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...base.environment import installed, require
from ...base.errors import UserError
from ...base.files import move_folder, require_writable, unfinished_folder, writing_to
from ...data.drawings.shapes import draw_image
from ...predict.model import Model, load_model
from ...predict.results import SCORE_THR, Detections
from .comparison import TOLERANCES, WORST, find_images
from .description import resizing
from .export import DEFAULT, Exported, export
from .settings import ExportSettings

DRAWN = (207, 301)  # height and width of the test picture, if no image is named
LOOKED_AT = 20  # images of the user, for one with objects
# Of files whose masks are whole images: PyTorch resizes the scores of their pixels to the image,
# and predict.py can only resize masks.
OF_RESIZED_MASKS = dict(overlap=0.8, different=0.05, lost=0.1)
PACKAGES = ('onnxruntime', 'numpy', 'pillow')  # that predict.py needs
README = """\
# {config} in {precision}

    pip install {packages}
    python predict.py --check             # compares the result for test.png with the expected one
    python predict.py IMAGE... --out DIR  # writes {written}

- model.onnx takes {channels} pixels (1, 3, height, width), float32 from 0 to 255, of images
  {size}.
- Outputs: {outputs}. All that predict.py reads is in the metadata of the file.
- Classes: {classes}
- The expected result was computed with PyTorch: {summary}.
"""


def export_folder(
    config: str | Path,
    checkpoint: str | Path | None,
    folder: str | Path,
    settings: ExportSettings = DEFAULT,
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
) -> Exported:
    """Write a new folder with an ONNX file, ``predict.py``, ``README.md`` and a test picture.

    ``predict.py`` needs only onnxruntime, NumPy and Pillow. The folder is written only if the file
    computes the same as PyTorch (see :func:`.export`), and if ``predict.py`` finds the expected
    result in the test picture: the first image of ``verify`` or ``calibrate`` with an object, or a
    drawn one.

    ``folder`` must be missing or empty. For the other arguments, see :func:`.export`; the
    format is 'onnx'.

    Raises:
        UserError: Also if the test pipeline changes images in a way that ``predict.py`` does not
            know.
    """
    folder = Path(folder).absolute()  # '.' has no name
    if checkpoint is None:
        raise UserError('--folder needs a trained model: name its checkpoint after the config')
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f'--folder {folder} is not empty: remove it, or name a new folder')
    require_writable(folder.parent)
    require('onnxruntime')
    from . import predict  # which imports onnxruntime

    model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
    resizing(model)
    with unfinished_folder(folder.parent, folder.name) as parent:
        draft = parent / folder.name
        draft.mkdir(0o755)
        path = draft / predict.MODEL
        exported = export(config, checkpoint, path, settings, options, trust_checkpoint)
        shutil.copyfile(predict.__file__, draft / 'predict.py')
        image, result = _test(model, [*settings.verify, *settings.calibrate])
        Image.fromarray(image).save(draft / predict.TEST)
        tolerance = _tolerance(model, settings.precision, image)
        with (draft / predict.EXPECTED).open('wb') as file:
            np.savez_compressed(file, **result, **tolerance)
        runner = predict.Model(path)
        problem = predict.check(runner, draft)
        if problem:
            raise UserError(
                'nothing is written: predict.py does not find what PyTorch does in the test '
                f'picture ({problem}): use --precision float32, or name another image with --verify'
            )
        (draft / 'README.md').write_text(_readme(runner.metadata, result), encoding='utf-8')
        with writing_to(folder):
            move_folder(draft, folder)
    return exported._replace(path=folder / exported.path.name)


def _test(model: Model, arguments: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the test picture and the prediction for it: an image with an object, if there is."""
    first = None
    for source in [*find_images(model, arguments)][:LOOKED_AT] if arguments else ():
        image = model.read(source)
        result = _result(model, image)
        first = first or (image, result)
        if 'scores' not in result or (result['scores'] > SCORE_THR).any():
            return image, result
    if first is None:
        image = draw_image(np.random.default_rng(0), max(DRAWN))[0][: DRAWN[0], : DRAWN[1]]
        first = image, _result(model, image)
    return first


def _result(model: Model, image: np.ndarray) -> dict[str, np.ndarray]:
    """Return a prediction as predict.py does."""
    prediction = model.predict(image)
    if not isinstance(prediction, Detections):
        is_panoptic = prediction.segments is not None
        return {'panoptic': prediction.segments} if is_panoptic else {'labels': prediction.labels}
    names = ('boxes', 'scores', 'labels', 'masks')
    values = {name: getattr(prediction, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _tolerance(model: Model, precision: str, image: np.ndarray) -> dict[str, float]:
    """Return how much the result for the test picture may differ, as predict.py reads it."""
    allowed = TOLERANCES[precision]
    score, different = max(allowed.score, SCORE_THR), WORST * allowed.labels
    tolerance = dict(overlap=allowed.overlap, score=score, lost=allowed.lost, different=different)
    from .predict import size_for

    size = image.shape[1::-1]
    is_resized = size_for(size, resizing(model)) != size
    if is_resized and hasattr(model.module, 'panoptic_fusion_head'):
        tolerance |= OF_RESIZED_MASKS
    return tolerance


def _required(package: str) -> str:
    """Return what pip installs in the version that is installed here, maybe for another device."""
    version = installed(package) or installed(f'{package}-gpu')
    return f'{package}=={version.partition("+")[0]}' if version else package


def _readme(metadata: Mapping[str, Any], result: Mapping[str, np.ndarray]) -> str:
    size, rule = 'of any size', metadata['resizing']
    if rule is not None:
        width, height = rule['scale']
        size = f'resized {"to fit into" if rule["keep_ratio"] else "to"} {width}x{height}'
    summary, written = 'a class for each pixel', 'pictures, JSON files, and the labels of pixels'
    if 'scores' in result:
        written = 'pictures, and JSON files with the objects'
        summary = f'{(result["scores"] > SCORE_THR).sum()} objects with a score above {SCORE_THR}'
    return README.format(
        config=Path(metadata['config']).stem,
        precision=metadata['precision'],
        packages=' '.join(map(_required, PACKAGES)),
        channels=metadata['channels'],
        size=size,
        outputs=', '.join(metadata['outputs']),
        classes=', '.join(metadata['classes']),
        summary=summary,
        written=written,
    )
