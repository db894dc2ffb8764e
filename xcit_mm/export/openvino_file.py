"""Write a graph as OpenVINO's two files, .xml and .bin, and read them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from torch import Tensor

from ..environment import quiet
from ..errors import UserError, looked_in, one_line
from ..files import parse_xml, read_regular
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


def read_openvino(path: Path) -> Any:
    """Return the ``openvino.Model`` of a file and of the .bin file beside it.

    OpenVINO gets copies in memory: from a path, it reads whatever format the content has, some of
    which name other files, and it maps the .bin file, which may change.

    Raises:
        UserError: If there is no .bin file, or it belongs to another file.
    """
    import openvino

    net = parse_xml(read_regular(path))
    if net.tag != 'net':
        raise ValueError(f'it has the root {net.tag} instead of net')
    needed = 0
    for data in net.iter('data'):
        if {'offset', 'size'} <= data.attrib.keys():
            offset, size = int(data.attrib['offset']), int(data.attrib['size'])
            shape = [int(length) for length in re.findall(r'-?\d+', data.get('shape', ''))]
            # Numbers have at least a bit. The product of many integers would take hours.
            if min(offset, size, *shape) < 0 or not math.prod(map(float, shape)) <= 8 * size:
                place = one_line(data.get('shape', ''))
                raise ValueError(f'a constant of the shape {place} has {size} bytes')
            data.attrib.update(offset=str(offset), size=str(size))  # as OpenVINO reads them
            needed = max(needed, offset + size)
    binary = path.with_suffix('.bin')
    if not binary.is_file():
        raise UserError(f'{binary} does not exist{looked_in(binary)}: copy it beside {path.name}')
    weights = read_regular(binary)
    if len(weights) != needed:
        raise UserError(
            f'{binary} has {len(weights)} bytes, but {path.name} needs {needed}: copy both files '
            'of one export'
        )
    text = ElementTree.tostring(net, encoding='unicode')  # what was checked is what is read
    return openvino.Core().read_model(text, openvino.Tensor(np.frombuffer(weights, np.uint8)))
