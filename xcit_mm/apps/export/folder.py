"""A folder with an exported model and what predicts with it where xcit_mm is not installed."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...base.environment import installed
from ...base.errors import UserError
from ...base.files import move_folder, require_writable, unfinished_folder, writing_to
from ...data.drawings.shapes import draw_image
from ...predict.model import Model, load_model
from ...predict.results import SCORE_THR, Detections, Segmentation
from . import predict
from .comparison import TOLERANCES, WORST, find_images
from .description import resizing
from .export import Exported, export
from .formats import BY_NAME

DRAWN = (207, 301)  # height and width of the test picture, if no image is named
LOOKED_AT = 20  # images of the user, for one with objects
# Of files whose masks are whole images: PyTorch resizes the scores of their pixels to the image,
# and predict.py can only resize masks.
OF_RESIZED_MASKS = dict(overlap=0.8, labels=0.05, lost=0.1)
PACKAGES = {  # that predict.py needs, by the suffix of the model
    '.onnx': ('onnxruntime', 'numpy', 'pillow'),
    '.xml': ('openvino', 'numpy', 'pillow'),
    '.pt2': ('torch', 'torchvision', 'numpy', 'pillow'),
}
README = """\
# {config} in {precision}

    pip install {packages}
    python predict.py --check             # compares the result for test.png with the expected one
    python predict.py IMAGE... --out DIR  # writes objects or labels, and pictures of them

- {model} takes {channels} pixels (1, 3, height, width), float32 from 0 to 255, of an image {size}.
- Outputs: {outputs}. All that predict.py reads is in the metadata of the file.
- Classes: {classes}
- The expected result was computed with PyTorch: {found}.
"""


def export_folder(
    config: str | Path,
    checkpoint: str | Path | None,
    folder: str | Path,
    format: str = 'onnx',
    precision: str = 'float32',
    calibrate: Sequence[str] = (),
    verify: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
    gather: bool = False,
) -> Exported:
    """Write a new folder with a model, ``predict.py``, ``README.md`` and a test picture.

    ``predict.py`` needs only the runtime of the format, NumPy and Pillow. The folder is written
    only if the file computes the same as PyTorch (see :func:`.export`), and if ``predict.py``
    finds the expected result in the test picture: the first image of ``verify`` or ``calibrate``
    with an object, or a drawn one.

    Args:
        config: Path of a config file.
        checkpoint: See :func:`xcit_mm.load_model`.
        folder: The folder, which must be missing or empty.
        format: See :func:`.export`, as for all further arguments.
        precision: As above.
        calibrate: As above.
        verify: As above.
        options: As above.
        trust_checkpoint: As above.
        gather: As above.

    Raises:
        UserError: If an input is invalid, the model cannot be exported, the results differ, or the
            test pipeline changes images in a way that ``predict.py`` does not know.
        DependencyError: If a package is missing or too old.
    """
    folder = Path(folder).absolute()  # '.' has no name
    if checkpoint is None:
        raise UserError('--folder needs a trained model: name its checkpoint after the config')
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f'--folder {folder} is not empty: remove it, or name a new folder')
    require_writable(folder.parent)
    model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
    resizing(model)
    with unfinished_folder(folder.parent, folder.name) as parent:
        draft = parent / folder.name
        draft.mkdir(0o755)
        suffix = BY_NAME[format].suffix if format in BY_NAME else ''
        exported = export(
            config,
            checkpoint,
            draft / f'{predict.MODEL}{suffix}',
            format,
            precision,
            calibrate=calibrate,
            verify=verify,
            options=options,
            trust_checkpoint=trust_checkpoint,
            gather=gather,
        )
        shutil.copyfile(predict.__file__, draft / 'predict.py')
        result = _write_test(model, draft, precision, [*verify, *calibrate])
        (draft / 'README.md').write_text(
            _readme(_checked(draft, exported.path), result, suffix), encoding='utf-8'
        )
        with writing_to(folder):
            move_folder(draft, folder)
    return exported._replace(path=folder / exported.path.name)


def _write_test(
    model: Model, folder: Path, precision: str, arguments: Sequence[str]
) -> predict.Result:
    """Write the test picture, and the result and the tolerance that are expected for it."""
    image, result = _test(model, arguments)
    Image.fromarray(image).save(folder / predict.TEST)
    path = folder / predict.EXPECTED
    predict.save(result, model.classes, path)
    allowed = TOLERANCES[precision]
    tolerance = dict(
        overlap=allowed.overlap,
        score=max(allowed.score, SCORE_THR),
        lost=allowed.lost,
        labels=WORST * allowed.labels,
    )
    size = image.shape[1::-1]
    is_resized = predict.size_for(size, resizing(model)) != size
    if is_resized and hasattr(model.module, 'panoptic_fusion_head'):
        tolerance |= OF_RESIZED_MASKS
    file = path.with_suffix('.json')
    content = dict(tolerance=tolerance, **json.loads(file.read_text(encoding='utf-8')))
    file.write_text(json.dumps(content) + '\n', encoding='utf-8')
    return result


def _test(model: Model, arguments: Sequence[str]) -> tuple[np.ndarray, predict.Result]:
    """Return the test picture and the prediction for it: an image with an object, if there is."""
    first = None
    for source in [*find_images(model, arguments)][:LOOKED_AT] if arguments else ():
        image = model.read(source)
        result = _result(model, image)
        first = first or (image, result)
        if isinstance(result, predict.Regions) or (result.scores > SCORE_THR).any():
            return image, result
    if first is None:
        image = draw_image(np.random.default_rng(0), max(DRAWN))[0][: DRAWN[0], : DRAWN[1]]
        first = image, _result(model, image)
    return first


def _result(model: Model, image: np.ndarray) -> predict.Result:
    prediction = model.predict(image)
    if isinstance(prediction, Detections):
        return predict.Objects(
            prediction.boxes, prediction.scores, prediction.labels, prediction.masks
        )
    assert isinstance(prediction, Segmentation)
    if prediction.segments is not None:
        return predict.Regions(prediction.segments.astype(np.int64), is_panoptic=True)
    return predict.Regions(prediction.labels.astype(np.int64))


def _checked(folder: Path, path: Path) -> predict.Model:
    """Return the model of a file that finds the expected result in the test picture."""
    model = predict.Model(path)
    problem = predict.check(folder, model)
    if problem:
        raise UserError(
            'nothing is written: predict.py does not find what PyTorch does in the test picture '
            f'({problem}): use --precision float32, or name another image with --verify'
        )
    return model


def _required(package: str) -> str:
    """Return what pip installs in the version that is installed here, maybe for another device."""
    version = installed(package) or installed(f'{package}-gpu')
    return f'{package}=={version.partition("+")[0]}' if version else package


def _readme(model: predict.Model, result: predict.Result, suffix: str) -> str:
    metadata = model.metadata
    rule = json.loads(metadata['resizing'])
    if rule is None:
        size = 'of any size'
    else:
        width, height = rule['scale']
        size = f'resized {"to fit into" if rule["keep_ratio"] else "to"} {width}x{height}'
    found = 'a class for each pixel'
    if isinstance(result, predict.Objects):
        found = f'{(result.scores > SCORE_THR).sum()} objects with a score above {SCORE_THR}'
    return README.format(
        config=Path(metadata['config']).stem,
        precision=metadata['precision'],
        packages=' '.join(map(_required, PACKAGES[suffix])),
        model=f'{predict.MODEL}{suffix}',
        channels=metadata['channels'],
        size=size,
        outputs=', '.join(json.loads(metadata['outputs'])),
        classes=', '.join(model.classes),
        found=found,
    )
