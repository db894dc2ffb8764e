"""Export a config and a checkpoint to an ONNX file that computes what PyTorch does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..engine.config.load import load_config
from ..engine.model import build_model
from ..environment import quiet, require
from ..errors import DependencyError, UserError, reason
from ..files import require_writable_file, write_whole
from ..inference import load_model
from .comparison import Size, compare
from .detector import DetectorGraph
from .graphs import BackboneGraph, Graph, SegmentorGraph

PARTS = ('model', 'backbone')
OPSET = 20  # the first with GELU
AXES = {0: 'batch', 2: 'height', 3: 'width'}


class Exported(NamedTuple):
    """An ONNX file that was written."""

    path: Path
    shapes: dict[str, tuple[str, ...]]  # of the input and outputs: numbers and names of axes
    errors: dict[Size, float]  # largest relative error of an output against PyTorch
    objects: int | None  # number of objects of a detector that were compared


def export_onnx(
    config: str | Path,
    checkpoint: str | Path | None,
    path: str | Path,
    part: str = 'model',
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
) -> Exported:
    """Write a model as an ONNX file for images of any size, and compare it with PyTorch.

    The file is written only if onnxruntime computes the same as PyTorch at three sizes.

    Args:
        config: Path of a config file.
        checkpoint: See :func:`xcit_mm.load_model`. None: random weights.
        path: File to write.
        part: 'model', or 'backbone' for its maps alone.
        options: See :func:`xcit_mm.engine.config.load.load_config`.
        trust_checkpoint: See :func:`xcit_mm.load_model`.

    Raises:
        UserError: If an input is invalid, the model cannot be exported, or the results differ.
        DependencyError: If a package is missing or too old.
    """
    path = Path(path)
    require_writable_file(path)
    for package in ('onnx', 'onnxscript', 'onnxruntime'):
        require(package)
    if torch.__version__ < (2, 7):
        raise DependencyError(
            f'PyTorch {torch.__version__} is too old to export: install 2.7 or later'
        )
    cfg = load_config(config, options)
    metadata = {'config': Path(config).name}
    if checkpoint is None:
        model = build_model(cfg, 'cpu')
    else:
        loaded = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
        model, metadata['classes'] = loaded.module, json.dumps(loaded.classes)
    if part == 'backbone':
        graph = BackboneGraph(model)
    else:
        graph = (SegmentorGraph if hasattr(model, 'encode_decode') else DetectorGraph)(model)
    converts = (cfg.model.get('data_preprocessor') or {}).get('bgr_to_rgb')
    metadata['channels'] = 'bands' if graph.channels != 3 else 'RGB' if converts else 'BGR'
    proto = _export(graph)
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=value)
    content = proto.SerializeToString()
    errors, objects = compare(graph, content)
    with write_whole(path) as file:
        file.write(content)
    shapes = {
        value.name: tuple(
            dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim
        )
        for value in (*proto.graph.input, *proto.graph.output)
    }
    return Exported(path, shapes, errors, objects)


def _export(graph: Graph) -> Any:
    example = torch.zeros(2 if graph.batched else 1, graph.channels, 224, 288)
    axes = {i: name for i, name in AXES.items() if i > 0 or graph.batched}
    try:
        with torch.no_grad(), quiet():
            program = torch.onnx.export(
                graph.for_any_size(),
                (example,),
                dynamo=True,
                dynamic_shapes=(axes,),
                input_names=['image'],
                output_names=list(graph.outputs),
                opset_version=OPSET,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(
            f'{type(graph.model).__name__} cannot be exported ({reason(error.__cause__ or error)})'
        ) from error
    proto = program.model_proto
    if not graph.batched:
        for output in proto.graph.output:
            output.type.tensor_type.shape.dim[0].dim_param = 'objects'
    return proto
