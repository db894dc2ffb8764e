"""The export of a config and a checkpoint to a file that computes what PyTorch does."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.environment import quiet
from ...base.errors import ArgumentError, UserError, reason
from ...base.files import require_writable_file
from ...config.build_model import build_model
from ...config.config_errors import config_errors
from ...config.load import load_config
from ...predict import load_model
from .choices import FORMATS, PARTS, PRECISIONS
from .comparison import TOLERANCES, Difference, Images, compare, drawn_images, find_images
from .description import describe
from .formats import BY_NAME
from .formats.format import Contents
from .graphs import build_graph
from .graphs.deepness import DeepnessGraph
from .graphs.dynamic_sizes import DEFORMABLE, for_any_size
from .graphs.float16 import to_float16
from .graphs.graph import Graph

SMALLEST_TILE = 32  # pixels


class Exported(NamedTuple):
    """A file that was written."""

    path: Path
    size: int  # bytes, including OpenVINO's .bin file
    outputs: tuple[str, ...]  # names
    differences: dict[str, Difference]  # from PyTorch, for each image that was compared


def export(
    config: str | Path,
    checkpoint: str | Path | None,
    path: str | Path,
    format: str = 'onnx',
    precision: str = 'float32',
    part: str = 'model',
    calibrate: Sequence[str] = (),
    verify: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
    gather: bool = False,
    deepness: int | None = None,
    resolution: float | None = None,
) -> Exported:
    """Write a model as a file for images of any size, and compare it with PyTorch.

    The file is written only if it computes the same as PyTorch: for drawn images of three sizes, or
    in int8 for the images of ``calibrate``; and for the images of ``verify``.

    Args:
        config: Path of a config file.
        checkpoint: See :func:`xcit_mm.load_model`. None: random weights.
        path: File to write: .onnx, .xml (OpenVINO, with a .bin file of the same name), or .pt2
            (PyTorch).
        format: One of ``FORMATS``.
        precision: 'float32', 'float16' or 'int8'.
        part: 'model', or 'backbone' for its maps alone.
        calibrate: Images and folders that calibrate int8, of which up to 100 images are used.
        verify: Images and folders to compare on, of which up to 100 images are used.
        options: See :func:`xcit_mm.config.load.load_config`.
        trust_checkpoint: See :func:`xcit_mm.load_model`.
        gather: Sample by gathers in the deformable attention of DINO, Deformable DETR and
            Mask2Former, because some runtimes lack ``grid_sample``.
        deepness: Side of the tiles, in pixels, of a file for Deepness, a plugin of QGIS.
        resolution: With ``deepness``, the resolution at which maps are predicted, in meters per
            pixel. None: Deepness asks.

    Raises:
        UserError: If an input is invalid, the model cannot be exported, or the results differ.
        DependencyError: If a package is missing or too old.
    """
    path = Path(path)
    _check_choices(path, format, precision, part)
    _check_images(precision, checkpoint, calibrate, verify)
    _check_deepness(deepness, resolution, format, part, checkpoint)
    require_writable_file(path)
    BY_NAME[format].require_packages(precision)
    cfg = load_config(config, options)
    metadata = {'config': Path(config).name, 'precision': precision}
    if checkpoint is None:
        module = build_model(cfg, 'cpu', options)
    else:
        model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
        module, metadata['classes'] = model.module, json.dumps(model.classes)
    with config_errors(cfg, options):
        graph = build_graph(module, part)
    if gather:
        _require_deformable(graph)
    converts = (cfg.model.get('data_preprocessor') or {}).get('bgr_to_rgb')
    metadata['channels'] = 'bands' if graph.channels != 3 else 'RGB' if converts else 'BGR'
    if deepness:
        is_bgr = metadata['channels'] == 'BGR'
        graph = DeepnessGraph(graph, deepness, len(model.classes), is_bgr)
        metadata |= graph.metadata(model.classes, resolution)
        if is_bgr:
            metadata['channels'] = 'RGB'
    elif checkpoint is not None:
        metadata |= describe(model)
    metadata['outputs'] = json.dumps(graph.outputs)
    calibration = find_images(model, calibrate) if calibrate else {}
    images = calibration or drawn_images(graph)
    if verify:
        images = {**images, **find_images(model, verify)}
    inputs = [partial(_input, graph, load) for load in calibration.values()]
    contents = Contents(graph, metadata, inputs, gather)
    with config_errors(cfg, options), quiet():
        differences = _write(contents, path, format, images, may_find_nothing=checkpoint is None)
    return Exported(path, BY_NAME[format].size(path), graph.outputs, differences)


def _check_choices(path: Path, format: str, precision: str, part: str) -> None:
    for value, known in ((format, FORMATS), (precision, PRECISIONS), (part, PARTS)):
        if value not in known:
            raise ArgumentError(f'{value!r} is not one of {", ".join(known)}')
    chosen = BY_NAME[format]
    if path.suffix != chosen.suffix:
        raise UserError(
            f'--out {path}: a file of the format {format} has the suffix {chosen.suffix}'
        )
    if precision not in chosen.precisions:
        others = [name for name in FORMATS if precision in BY_NAME[name].precisions]
        raise UserError(
            f'the format {format} has no {precision}: use --format {" or ".join(others)}, or '
            f'--precision {chosen.precisions[-1]}'
        )


def _check_images(
    precision: str,
    checkpoint: str | Path | None,
    calibrate: Sequence[str],
    verify: Sequence[str],
) -> None:
    if precision == 'int8' and not calibrate:
        raise UserError(
            'int8 needs some of your images to find the ranges of values: --calibrate FOLDER'
        )
    if calibrate and precision != 'int8':
        raise UserError(f'--calibrate is for --precision int8, not {precision}: leave it out')
    if checkpoint is None and (calibrate or verify):
        raise UserError(
            '--calibrate and --verify need a trained model: name its checkpoint after the config'
        )


def _check_deepness(
    side: int | None,
    resolution: float | None,
    format: str,
    part: str,
    checkpoint: str | Path | None,
) -> None:
    if side is None:
        if resolution is not None:
            raise UserError('--resolution is for --deepness: leave it out, or add --deepness TILE')
        return
    if side < SMALLEST_TILE:
        raise UserError(
            f'--deepness {side}: a tile has at least {SMALLEST_TILE} pixels on a side, and should '
            'have as many as the images of the training, such as 512'
        )
    if resolution is not None and not resolution > 0:
        raise UserError(f'--resolution {resolution}: name meters per pixel, such as 0.5')
    if (format, part) != ('onnx', 'model'):
        raise UserError('Deepness reads whole models in ONNX files: leave out --format and --part')
    if checkpoint is None:
        raise UserError('--deepness needs a trained model: name its checkpoint after the config')


def _require_deformable(graph: Graph) -> None:
    if not any(type(module).__name__ == DEFORMABLE for module in graph.modules()):
        raise UserError(
            f'{type(graph.model).__name__} has no deformable attention, which --gather is for: '
            'leave it out'
        )


def _input(graph: Graph, load: Callable[[], Tensor]) -> Tensor:
    return graph.given(load())


def _write(
    contents: Contents, path: Path, format: str, images: Images, may_find_nothing: bool
) -> dict[str, Difference]:
    """Write a file if it computes what PyTorch does for images, and finds objects in them."""
    precision = contents.metadata['precision']
    with TemporaryDirectory(dir=path.parent, prefix=f'.{path.name}.') as folder:
        draft = Path(folder, path.name)
        differences = _write_compared(contents, draft, format, images)
        if all(difference.objects == 0 for difference in differences.values()):
            first = next(iter(images.values()))
            image = contents.graph.given(first())
            graph = contents.graph.with_more_objects(image) if precision == 'float32' else None
            if graph is not None:  # compare its file, but keep the first one
                other = Path(folder, 'other', path.name)
                other.parent.mkdir()
                differences = _write_compared(contents._replace(graph=graph), other, format, images)
            elif not may_find_nothing:
                raise UserError(
                    'nothing is written: PyTorch finds no object with a score above '
                    f'{TOLERANCES[precision].score} in {len(images)} images, so that there is '
                    'nothing to compare: pass images with objects to --verify'
                )
        for file in BY_NAME[format].files(draft):
            file.chmod(0o644)
            file.replace(path.parent / file.name)
    return differences


def _write_compared(
    contents: Contents, path: Path, format: str, images: Images
) -> dict[str, Difference]:
    graph, precision = contents.graph, contents.metadata['precision']
    chosen = BY_NAME[format]
    try:
        copied = for_any_size(graph, contents.gather)
        if precision == 'float16' and not chosen.converts_to_float16:
            to_float16(copied)
        chosen.write(contents._replace(graph=copied), path)
        run = chosen.load(path, trusted=True)
    except (OSError, UserError):
        raise
    except Exception as error:  # each package has its own
        with torch.no_grad():  # raises the error if a value of the config is wrong
            graph.reference(graph.given(next(iter(images.values()))()))
        raise UserError(
            f'{type(graph.model).__name__} cannot be exported to {format} in {precision} '
            f'({reason(error)}): use another --format or --precision'
        ) from error
    return compare(graph, run, images, TOLERANCES[precision])
