"""The export of a config and a checkpoint to a file that computes what PyTorch does."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.environment import quiet
from ...base.errors import UserError, reason
from ...base.files import require_writable_file
from ...config.build_model import build_model
from ...config.load import load_config
from ...predict.model import Model, load_model
from .comparison import TOLERANCES, Difference, Images, compare, drawn_images, find_images
from .description import describe
from .formats import BY_NAME
from .formats.format import Contents
from .graphs import build_graph
from .graphs.deepness import DeepnessGraph
from .graphs.dynamic_sizes import for_any_size
from .graphs.float16 import to_float16
from .graphs.graph import Graph
from .settings import ExportSettings

DEFAULT = ExportSettings()


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
    settings: ExportSettings = DEFAULT,
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
) -> Exported:
    """Write a model as a file for images of any size, and compare it with PyTorch.

    The file is written only if it computes the same as PyTorch: for drawn images of three sizes, or
    in int8 for the images of ``calibrate``; and for the images of ``verify``.

    Args:
        config: Path of a config file.
        checkpoint: See :func:`xcit_mm.load_model`. None: random weights.
        path: File to write: .onnx, .xml (OpenVINO, with a .bin file of the same name), or .pt2
            (PyTorch).
        settings: What to write.
        options: See :func:`xcit_mm.config.load.load_config`.
        trust_checkpoint: See :func:`xcit_mm.load_model`.

    Raises:
        UserError: If an input is invalid, the model cannot be exported, or the results differ.
        DependencyError: If a package is missing or too old.
    """
    path = Path(path)
    settings.require_fitting(path, checkpoint)
    require_writable_file(path)
    chosen = BY_NAME[settings.format]
    chosen.require_packages(settings.precision)
    cfg = load_config(config, options)
    model = None
    if checkpoint is None:
        module = build_model(cfg, 'cpu')
    else:
        model = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
        module = model.module
    graph = build_graph(module, settings.part)
    converts = (cfg.model.get('data_preprocessor') or {}).get('bgr_to_rgb')
    channels = 'bands' if graph.channels != 3 else 'RGB' if converts else 'BGR'
    metadata = dict(config=Path(config).name, precision=settings.precision, channels=channels)
    graph, metadata = _described(graph, metadata, model, settings)
    calibration = find_images(model, settings.calibrate) if settings.calibrate else {}
    images = calibration or drawn_images(graph)
    if settings.verify:
        images = {**images, **find_images(model, settings.verify)}
    inputs = [partial(_input, graph, load) for load in calibration.values()]
    contents = Contents(graph, metadata, inputs, settings.gather)
    with quiet():
        differences = _write(contents, path, settings.format, images, model is None)
    return Exported(path, chosen.size(path), graph.outputs, differences)


def _described(
    graph: Graph, metadata: dict[str, str], model: Model | None, settings: ExportSettings
) -> tuple[Graph, dict[str, str]]:
    """Return the graph that is written, and its metadata."""
    if model is not None:
        metadata['classes'] = json.dumps(model.classes)
    if settings.deepness:
        is_bgr = metadata['channels'] == 'BGR'
        graph = DeepnessGraph(graph, settings.deepness, len(model.classes), is_bgr)
        metadata |= graph.metadata(model.classes, settings.resolution)
        metadata['channels'] = metadata['channels'].replace('BGR', 'RGB')
    elif model is not None:
        metadata |= describe(model)
    metadata['outputs'] = json.dumps(graph.outputs)
    return graph, metadata


def _input(graph: Graph, load: Callable[[], Tensor]) -> Tensor:
    return graph.prepare(load())


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
            image = contents.graph.prepare(first())
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
        run = chosen.read(path)
    except (OSError, UserError):
        raise
    except Exception as error:  # each package has its own
        with torch.no_grad():  # raises the error if a value of the config is wrong
            graph.reference(graph.prepare(next(iter(images.values()))()))
        raise UserError(
            f'{type(graph.model).__name__} cannot be exported to {format} in {precision} '
            f'({reason(error)}): use another --format or --precision'
        ) from error
    return compare(graph, run, images, TOLERANCES[precision])
