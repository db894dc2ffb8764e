"""OpenVINO's pairs of files, .xml and .bin."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from ....base.environment import quiet, require
from ....base.errors import UserError, looked_in, one_line
from ....base.files import parse_xml, read_regular
from .format import Contents, Format, Runtime
from .onnx import float_nodes, onnx_model

SECTION = 'xcit_mm'  # of the metadata
# What int8 leaves alone. With depthwise convolutions in int8, a file that has found no object in an
# image may return the objects of the image before from then on.
DEPTHWISE = 'GroupConvolution'


def write(contents: Contents, path: Path) -> None:
    """Write a graph in OpenVINO's format, in int8 with images to load for the calibration.

    Except in float32, weights that are not int8 are stored in float16, and the device chooses the
    dtype that it computes in.
    """
    import onnx
    import openvino

    source, images = path.with_suffix('.onnx'), contents.calibration
    proto = onnx_model(contents.graph, contents.metadata)
    onnx.save(proto, source)
    model = openvino.convert_model(source)
    source.unlink()
    if images:
        import nncf

        kept = [f'{re.escape(name)}(/.*)?$' for name in float_nodes(proto)]  # and their parts
        with quiet():
            model = nncf.quantize(
                model,
                nncf.Dataset(images, lambda load: load().numpy()),
                subset_size=len(images),
                model_type=nncf.ModelType.TRANSFORMER,
                ignored_scope=nncf.IgnoredScope(types=[DEPTHWISE], patterns=kept, validate=False),
                # Without VNNI, sums of two products of 8 bits overflow unless weights have 7.
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    overflow_fix=nncf.OverflowFix.ENABLE
                ),
            )
    for name, value in contents.metadata.items():
        model.set_rt_info(value, [SECTION, name])
    is_wide = contents.metadata['precision'] == 'float32'
    openvino.save_model(model, path, compress_to_fp16=not is_wide)


def read(path: Path) -> Runtime:
    """Read a file and its .bin file."""
    require('openvino')
    import openvino

    model = _model(path)
    metadata = model.get_rt_info([SECTION]).value
    settings = {'INFERENCE_NUM_THREADS': torch.get_num_threads()}
    if metadata['precision'] == 'float32':
        settings['INFERENCE_PRECISION_HINT'] = 'f32'  # bfloat16 where the CPU has it
    compiled = openvino.compile_model(model, 'CPU', settings)
    return Runtime(
        lambda image: [torch.from_numpy(v.copy()) for v in compiled(image.numpy()).values()],
        metadata,
    )


def _model(path: Path) -> Any:
    """Return the ``openvino.Model`` of a file and its .bin file.

    OpenVINO gets copies in memory: from a path, it reads any format that the content has, even one
    that names other files, and it maps the .bin file into memory, although the file may change.

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
        raise UserError(f'{binary} does not exist{looked_in(binary)}: copy it next to {path.name}')
    weights = read_regular(binary)
    if len(weights) != needed:
        raise UserError(
            f'{binary} has {len(weights)} bytes, but {path.name} needs {needed}: copy both files '
            'of the same export'
        )
    text = ElementTree.tostring(net, encoding='unicode')  # what was checked is what is read
    return openvino.Core().read_model(text, openvino.Tensor(np.frombuffer(weights, np.uint8)))


FORMAT = Format(
    suffix='.xml',
    precisions=('float32', 'float16', 'int8'),
    write=write,
    read=read,
    packages=('onnx', 'onnxscript', 'openvino'),
    int8_packages=('nncf',),
    further_suffixes=('.bin',),
    converts_to_float16=True,
)
