"""From a config and a checkpoint to an ONNX file that computes what PyTorch does."""

import copy
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..engine.config.load import load_config
from ..engine.model import build_model
from ..environment import quiet, require
from ..errors import DependencyError, UserError, reason
from ..files import require_writable_file, write_whole
from ..inference import load_model
from .comparison import Size, compare
from .detector import DetectorGraph
from .graphs import BackboneGraph, Graph, SegmentorGraph
from .replacements import replace_modules

PARTS = ('model', 'backbone')
OPSET = 20  # the first with GELU
INPUT = 'image'
AXES = {0: 'batch', 2: 'height', 3: 'width'}
EXAMPLE = (2, 3, 224, 288)
LARGEST = 2**31 - 2**24  # bytes of weights in one file; its format ends at 2 GiB


@dataclass(frozen=True)
class Exported:
    """An ONNX file that was written.

    Attributes:
        path: Where.
        shapes: Of its input and outputs by their names: numbers, and names of what is any size.
        errors: The largest relative error of an output, against PyTorch, by (batch, height, width).
        objects: How many of a detector's were compared.
    """

    path: Path
    shapes: dict[str, tuple[str, ...]]
    errors: dict[Size, float]
    objects: int | None


def export_onnx(
    config: str | Path,
    checkpoint: str | Path | None,
    path: str | Path,
    part: str = 'model',
    options: Mapping[str, Any] | None = None,
    trust_checkpoint: bool = False,
) -> Exported:
    """Write a model as an ONNX file for images of any size, and compare it with PyTorch.

    The file takes its name once onnxruntime has computed the same as PyTorch at three sizes.

    Args:
        config: Path of a config file.
        checkpoint: As of :func:`xcit_mm.load_model`; None: random weights.
        path: The file, which is replaced.
        part: 'model', or 'backbone' for its maps alone.
        options: As of :func:`xcit_mm.engine.config.load.load_config`.
        trust_checkpoint: As of :func:`xcit_mm.load_model`.

    Raises:
        UserError: If an input is wrong, the model cannot be a graph, or computes something else.
        DependencyError: If a package is missing or too old.
    """
    path = Path(path)
    require_writable_file(path)
    for package in ('onnx', 'onnxscript', 'onnxruntime'):
        require(package)
    if 'dynamo' not in inspect.signature(torch.onnx.export).parameters:
        raise DependencyError(
            f'PyTorch {torch.__version__} is too old to export: 2.6 or later does'
        )
    cfg = load_config(config, options)
    metadata: dict[str, str] = {}
    if checkpoint is None:
        model = build_model(cfg, 'cpu')
    else:
        loaded = load_model(config, checkpoint, 'cpu', options, trust_checkpoint)
        model, metadata['classes'] = loaded.module, json.dumps(loaded.classes)
    converts = (cfg.model.get('data_preprocessor') or {}).get('bgr_to_rgb')
    metadata |= {'config': Path(config).name, 'channels': 'RGB' if converts else 'BGR'}
    graph = _graph(model, part)
    _require_one_file(graph)
    proto = _proto(graph, metadata)
    with write_whole(path) as file:
        file.write(proto.SerializeToString())
        file.flush()
        errors, objects = compare(graph, file.name)
    return Exported(path, _shapes(proto), errors, objects)


def _graph(model: nn.Module, part: str) -> Graph:
    if part == 'backbone':
        return BackboneGraph(model)
    if hasattr(model, 'encode_decode'):
        return SegmentorGraph(model)
    return DetectorGraph(model)


def _require_one_file(graph: Graph) -> None:
    num_bytes = sum(p.numel() * p.element_size() for p in graph.parameters())
    if num_bytes > LARGEST:
        raise UserError(
            f'the model has {num_bytes / 2**30:.1f} GiB of weights, but an ONNX file ends at '
            '2 GiB: export --part backbone'
        )


def _proto(graph: Graph, metadata: Mapping[str, str]) -> Any:
    exported = copy.deepcopy(graph)
    replace_modules(exported, exported.replacements)
    example = torch.zeros(EXAMPLE if graph.batched else (1, *EXAMPLE[1:]))
    axes = {i: torch.export.Dim.DYNAMIC for i in AXES if i > 0 or graph.batched}
    try:
        with torch.no_grad(), quiet():
            program = torch.onnx.export(
                exported,
                (example,),
                dynamo=True,
                dynamic_shapes=(axes,),
                input_names=[INPUT],
                output_names=list(graph.outputs),
                opset_version=OPSET,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(
            f'{type(graph.model).__name__} cannot be exported ({reason(error.__cause__ or error)})'
        ) from error
    proto = program.model_proto
    _name_axes(proto)
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=value)
    return proto


def _name_axes(proto: Any) -> None:
    """Call the sides of the image what they are; PyTorch numbers them."""
    sides = proto.graph.input[0].type.tensor_type.shape.dim
    names = {sides[i].dim_param: name for i, name in AXES.items() if sides[i].dim_param}
    first = proto.graph.output[0].type.tensor_type.shape.dim[0]
    if first.dim_param:
        names.setdefault(first.dim_param, 'objects')
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r'\w+', lambda m: names.get(m[0], m[0]), dim.dim_param)


def _shapes(proto: Any) -> dict[str, tuple[str, ...]]:
    return {
        value.name: tuple(
            dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim
        )
        for value in (*proto.graph.input, *proto.graph.output)
    }
