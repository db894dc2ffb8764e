"""ONNX files, for ONNX Runtime and others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....base.environment import quiet, require
from ....base.errors import UserError, one_line, reason
from ....base.files import read_regular
from ..graphs.capture import axes_of, capture
from ..graphs.deepness import DETECTIONS
from ..graphs.graph import Graph
from .format import Contents, Format, Runtime

OPSET = 20  # the first with GELU
# Layers that ONNX Runtime computes in int8. For others, conversion takes longer than int8 saves.
QUANTIZED = ('Conv', 'Gemm', 'MatMul')
# Parts of the names of the weights of last layers. They stay in float: in int8, they cost
# Mask R-CNN 0.01 AP and save little time. They must be weights of convolutions or of linear layers
# on matrices: others have no names in the file.
LAST_LAYERS = (
    'rpn_cls',
    'rpn_reg',
    'fc_cls',
    'fc_reg',
    'conv_logits',
    'conv_seg',
    'retina_',
    'rtm_',
)
# The first part of Mask2Former's head. In int8, the head costs 0.01 AP of the boxes in ONNX
# Runtime, and OpenVINO cannot load it.
MASK2FORMER = 'pixel_decoder'


def onnx_model(graph: Graph, metadata: Mapping[str, str]) -> Any:
    """Return the ``onnx.ModelProto`` of a graph, with metadata."""
    import onnxscript.optimizer

    captured = capture(graph)
    with quiet():
        try:
            program = torch.onnx.export(
                captured,
                dynamic_shapes=(axes_of(graph),),
                input_names=['image'],
                output_names=list(graph.outputs),
                opset_version=OPSET,
                optimize=False,  # its rule for clamp gives two constants one name
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UserError(
                f'{type(graph.model).__name__} has an operator that ONNX lacks '
                f'({reason(error.__cause__ or error)}): use --format torch'
            ) from error
        onnxscript.optimizer.fold_constants(program.model)
        onnxscript.optimizer.remove_unused_nodes(program.model)
    proto = program.model_proto
    if not graph.batched:
        for output in proto.graph.output:
            if not output.name.startswith('panoptic'):
                axis = 2 if output.name == DETECTIONS else 0
                output.type.tensor_type.shape.dim[axis].dim_param = 'objects'
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=value)
    return proto


def write(contents: Contents, path: Path) -> None:
    """Write a graph as an ONNX file, in int8 if there are images to load for the calibration."""
    import onnx

    onnx.save(onnx_model(contents.graph, contents.metadata), path)
    if contents.calibration:
        _quantize(path, contents.calibration)


def _quantize(path: Path, images: Sequence[Callable[[], Tensor]]) -> None:
    """Replace a file with its int8 form, calibrated on images (1, C, H, W)."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.images = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            load = next(self.images, None)
            return None if load is None else {'image': load().numpy()}

    with quiet():
        quantize_static(
            path,
            path,
            Reader(),
            per_channel=True,
            reduce_range=True,  # 7-bit weights: without VNNI, the sum of two products can overflow
            op_types_to_quantize=list(QUANTIZED),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=float_nodes(onnx.load(path)),
        )


def float_nodes(proto: Any) -> list[str]:
    """Return the names of nodes that int8 leaves alone: last layers, and Mask2Former's head."""
    names, in_head = [], False
    for node in proto.graph.node:
        in_head |= any(MASK2FORMER in name for name in node.input)
        if in_head or any(part in name for name in node.input for part in LAST_LAYERS):
            names.append(node.name)
    return names


def read(path: Path) -> Runtime:
    """Read a file for ONNX Runtime, if all of its tensors are in it."""
    require('onnxruntime')
    require('onnx')
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its log repeats names from the file as they are
    options.add_session_config_entry('session.load_model_format', 'ONNX')  # the checked format
    session = InferenceSession(_checked(path), options, providers=['CPUExecutionProvider'])
    return Runtime(
        lambda image: map(torch.from_numpy, session.run(None, {'image': image.numpy()})),
        session.get_modelmeta().custom_metadata_map,
    )


def _checked(path: Path) -> bytes:
    """Return the content of an ONNX file for ONNX Runtime.

    Raises:
        UserError: If a tensor is in another file: that could be any file of this machine.
    """
    import onnx

    proto = onnx.load_model_from_string(read_regular(path))
    proto.DiscardUnknownFields()  # which ONNX Runtime may know
    for tensor in _messages(proto, onnx.TensorProto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            places = [entry.value for entry in tensor.external_data if entry.key == 'location']
            raise UserError(
                f'{path} takes the tensor {one_line(tensor.name)} from another file '
                f'({one_line(", ".join(places))}), as no file of tools/export.py does: store all '
                'tensors in the file itself'
            )
    return proto.SerializeToString()


def _messages(message: Any, kind: type) -> Iterator[Any]:
    """Yield the messages of a kind within a message of protobuf, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                if isinstance(part, kind):
                    yield part
                else:
                    yield from _messages(part, kind)


FORMAT = Format(
    suffix='.onnx',
    precisions=('float32', 'float16', 'int8'),
    write=write,
    read=read,
    packages=('onnx', 'onnxscript', 'onnxruntime'),
)
