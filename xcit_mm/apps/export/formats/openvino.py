"""OpenVINO's pairs of files, .xml and .bin."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from ....base.environment import quiet, require
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

        wide = [f'{re.escape(name)}(/.*)?$' for name in float_nodes(proto)]  # and their parts
        with quiet():
            model = nncf.quantize(
                model,
                nncf.Dataset(images, lambda load: load().numpy()),
                subset_size=len(images),
                model_type=nncf.ModelType.TRANSFORMER,
                ignored_scope=nncf.IgnoredScope(types=[DEPTHWISE], patterns=wide, validate=False),
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
    that names other files.
    """
    import openvino

    net = parse_xml(read_regular(path))
    if net.tag != 'net':
        raise ValueError(f'it has the root {net.tag} instead of net')
    text = ElementTree.tostring(net, encoding='unicode')
    weights = np.frombuffer(read_regular(path.with_suffix('.bin')), np.uint8)
    return openvino.Core().read_model(text, openvino.Tensor(weights))


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
