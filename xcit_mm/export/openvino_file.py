"""Write a graph as OpenVINO's two files, .xml and .bin."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ..environment import quiet
from .graphs import Graph
from .onnx_file import onnx_model

SECTION = 'xcit_mm'  # of the metadata


def write_openvino(
    graph: Graph,
    path: Path,
    metadata: Mapping[str, str],
    images: Sequence[Tensor] | None,
    in_float32: bool,
) -> None:
    """Write a graph in OpenVINO's format, in int8 if there are images to calibrate with.

    Unless ``in_float32``, weights that are not int8 are stored in float16, and the device chooses
    the dtype that it computes in.
    """
    import onnx
    import openvino

    source = path.with_suffix('.onnx')
    onnx.save(onnx_model(graph, metadata), source)
    model = openvino.convert_model(source)
    source.unlink()
    if images is not None:
        import nncf

        with quiet():
            model = nncf.quantize(
                model,
                nncf.Dataset(images, lambda image: image.numpy()),
                subset_size=len(images),
                model_type=nncf.ModelType.TRANSFORMER,
            )
    for name, value in metadata.items():
        model.set_rt_info(value, [SECTION, name])
    openvino.save_model(model, path, compress_to_fp16=not in_float32)
