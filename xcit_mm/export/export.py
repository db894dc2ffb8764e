"""Export a config and a checkpoint to a file that computes what PyTorch does."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config.config_errors import config_errors
from ..config.load import load_config
from ..engine.build_model import build_model
from ..environment import quiet, require
from ..errors import ArgumentError, DependencyError, UserError, reason
from ..files import require_writable_file
from ..inference import load_model
from .comparison import TOLERANCES, Difference, compare, drawn_images
from .detr import DetrGraph
from .dynamic_sizes import for_any_size
from .float16 import to_float16
from .graphs import BackboneGraph, Graph, SegmentorGraph, ThresholdGraph
from .images import find_images
from .mask2former import Mask2FormerGraph, Mask2FormerSegmentorGraph
from .one_stage import OneStageGraph
from .onnx_file import write_onnx
from .openvino_file import write_openvino
from .runtime import TRUSTED_LOADERS
from .torch_file import write_aotinductor, write_torch
from .two_stage import TwoStageGraph

PARTS = ('model', 'backbone')
FORMATS = ('onnx', 'openvino', 'torch', 'aotinductor')
PRECISIONS = tuple(TOLERANCES)
SUFFIXES = dict(zip(FORMATS, ('.onnx', '.xml', '.pt2', '.pt2'), strict=True))
PACKAGES = {
    'onnx': ('onnx', 'onnxscript', 'onnxruntime'),
    'openvino': ('onnx', 'onnxscript', 'openvino'),
}
DETECTORS = (TwoStageGraph, OneStageGraph, DetrGraph, Mask2FormerGraph)
CANDIDATES = 300  # boxes to compare of a detector that finds no object


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
) -> Exported:
    """Write a model as a file for images of any size, and compare it with PyTorch.

    The file is written only if it computes the same as PyTorch: for drawn images of three sizes, or
    in int8 for the images of ``calibrate``; and for those of ``verify``.

    Args:
        config: Path of a config file.
        checkpoint: See :func:`xcit_mm.load_model`. None: random weights.
        path: File to write: .onnx, .xml (OpenVINO, with a .bin file beside it), or .pt2 (PyTorch).
        format: One of ``FORMATS``.
        precision: 'float32', 'float16' or 'int8'.
        part: 'model', or 'backbone' for its maps alone.
        calibrate: Images and folders that calibrate int8, of which up to 100 images are used.
        verify: Images and folders to compare on, of which up to 100 images are used.
        options: See :func:`xcit_mm.config.load.load_config`.
        trust_checkpoint: See :func:`xcit_mm.load_model`.

    Raises:
        UserError: If an input is invalid, the model cannot be exported, or the results differ.
        DependencyError: If a package is missing or too old.
    """
    path = Path(path)
    _check_arguments(path, format, precision, part, checkpoint, calibrate, verify)
    require_writable_file(path)
    _require_packages(format, precision)
    cfg = load_config(config, options)
    metadata = {'config': Path(config).name, 'precision': precision}
    if checkpoint is None:
        module = build_model(cfg, 'cpu', options)
    else:
        model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
        module, metadata['classes'] = model.module, json.dumps(model.classes)
    with config_errors(cfg, options):
        graph = build_graph(module, part)
    converts = (cfg.model.get('data_preprocessor') or {}).get('bgr_to_rgb')
    metadata['channels'] = 'bands' if graph.channels != 3 else 'RGB' if converts else 'BGR'
    metadata['outputs'] = json.dumps(graph.outputs)
    calibration = find_images(model, calibrate) if calibrate else {}
    images = calibration or drawn_images(graph)
    if verify:
        images = {**images, **find_images(model, verify)}
    tolerance = TOLERANCES[precision]

    drafts = TemporaryDirectory(dir=path.parent, prefix=f'.{path.name}.')
    with config_errors(cfg, options), drafts as folder, quiet():

        def compared(draft: Path) -> dict[str, Difference]:
            try:
                _write(graph, draft, format, precision, metadata, list(calibration.values()))
                run = TRUSTED_LOADERS[draft.suffix](draft)
            except (OSError, UserError):
                raise
            except Exception as error:  # each package has its own
                with torch.no_grad():  # which raises the error if a value of the config is wrong
                    graph.reference(next(iter(images.values()))())
                raise UserError(
                    f'{type(graph.model).__name__} cannot be exported to {format} in {precision} '
                    f'({reason(error)}): use another --format or --precision'
                ) from error
            return compare(graph, run, images, tolerance)

        draft = Path(folder, path.name)
        differences = compared(draft)
        finds_nothing = all(difference.objects == 0 for difference in differences.values())
        if finds_nothing and precision == 'float32' and isinstance(graph, ThresholdGraph):
            graph.lower_threshold(next(iter(images.values()))(), CANDIDATES)
            lowered = Path(folder, 'lowered', path.name)
            lowered.parent.mkdir()
            differences = compared(lowered)
        elif finds_nothing and checkpoint is not None:
            raise UserError(
                f'nothing is written: PyTorch finds no object with a score above {tolerance.score} '
                f'in {len(images)} images, so that there is nothing to compare: name images with '
                'objects by --verify'
            )
        files = sorted(f for f in Path(folder).iterdir() if f.is_file())  # .bin before .xml
        size = sum(file.stat().st_size for file in files)
        for file in files:
            file.chmod(0o644)
            file.replace(path.parent / file.name)
    return Exported(path, size, graph.outputs, differences)


def build_graph(model: nn.Module, part: str) -> Graph:
    """Return the graph of a model, or of its backbone.

    Raises:
        UserError: If the model cannot be exported as a whole.
    """
    if part == 'backbone':
        return BackboneGraph(model)
    if hasattr(model, 'encode_decode'):
        has_queries = type(model.decode_head).__name__ == 'Mask2FormerHead'
        return (Mask2FormerSegmentorGraph if has_queries else SegmentorGraph)(model)
    heads = {}
    for graph in DETECTORS:
        names = {name: type(getattr(model, name, None)).__name__ for name in graph.HEADS}
        if all(name in graph.HEADS[head] for head, name in names.items()):
            return graph(model)
        heads |= graph.HEADS
    known = sorted({name for names in heads.values() for name in names})
    raise UserError(
        f'{type(model).__name__} cannot be exported as a whole: only detectors with '
        f'{", ".join(known)} can; --part backbone exports its maps'
    )


def _check_arguments(
    path: Path,
    format: str,
    precision: str,
    part: str,
    checkpoint: str | Path | None,
    calibrate: Sequence[str],
    verify: Sequence[str],
) -> None:
    choices = (format, FORMATS), (precision, PRECISIONS), (part, PARTS)
    for value, known in choices:
        if value not in known:
            raise ArgumentError(f'{value!r} is not one of {", ".join(known)}')
    if path.suffix != SUFFIXES[format]:
        raise UserError(
            f'--out {path}: a file of the format {format} has the suffix {SUFFIXES[format]}'
        )
    if precision == 'int8' and format not in PACKAGES:
        raise UserError(
            f'the format {format} has no int8: use --format {" or ".join(PACKAGES)}, or '
            '--precision float16'
        )
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


def _require_packages(format: str, precision: str) -> None:
    for package in PACKAGES.get(format, ()):
        require(package)
    if (format, precision) == ('openvino', 'int8'):
        require('nncf')
    if torch.__version__ < (2, 7):
        raise DependencyError(
            f'PyTorch {torch.__version__} is too old to export: install 2.7 or later'
        )


def _write(
    graph: Graph,
    path: Path,
    format: str,
    precision: str,
    metadata: Mapping[str, str],
    calibration: Sequence[Callable[[], Tensor]],
) -> None:
    copied = for_any_size(graph)
    if precision == 'float16' and format != 'openvino':  # which converts the weights itself
        to_float16(copied)
    if format == 'onnx':
        write_onnx(copied, path, metadata, calibration)
    elif format == 'openvino':
        write_openvino(copied, path, metadata, calibration, precision)
    elif format == 'torch':
        write_torch(copied, path, metadata)
    else:
        write_aotinductor(copied, path, metadata)
