"""Write a graph as OpenVINO's two files, .xml and .bin."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ..environment import quiet
from .graphs import Graph
from .onnx_file import float_nodes, onnx_model

SECTION = 'xcit_mm'  # of the metadata
# What int8 leaves alone. With depthwise convolutions in int8, a file that has found no object in an
# image goes on to return those of the image before.
DEPTHWISE = 'GroupConvolution'


def write_openvino(
    graph: Graph,
    path: Path,
    metadata: Mapping[str, str],
    images: Sequence[Callable[[], Tensor]],
    precision: str,
) -> None:
    """Write a graph in OpenVINO's format, in int8 with images to load for the calibration.

    Except in float32, weights that are not int8 are stored in float16, and the device chooses the
    dtype that it computes in.
    """
    import onnx
    import openvino

    source = path.with_suffix('.onnx')
    proto = onnx_model(graph, metadata)
    onnx.save(proto, source)
    model = openvino.convert_model(source)
    source.unlink()
    if precision == 'int8':
        import nncf

        kept = [f'{re.escape(name)}(/.*)?$' for name in float_nodes(proto)]  # and their parts
        with quiet():
            model = nncf.quantize(
                model,
                nncf.Dataset(images, lambda load: load().numpy()),
                subset_size=len(images),
                model_type=nncf.ModelType.TRANSFORMER,
                ignored_scope=nncf.IgnoredScope(types=[DEPTHWISE], patterns=kept, validate=False),
            )
    for name, value in metadata.items():
        model.set_rt_info(value, [SECTION, name])
    openvino.save_model(model, path, compress_to_fp16=precision != 'float32')
