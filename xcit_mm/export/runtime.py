"""Run an exported file."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..environment import quiet, require
from ..errors import UserError, looked_in
from .capture import module_of
from .openvino_file import SECTION

# Images (B, channels, H, W), float32 with values from 0 to 255, to the outputs by name.
Runtime = Callable[[Tensor], dict[str, Tensor]]


def load_runtime(path: str | Path) -> Runtime:
    """Load an exported file, and return a function that computes its outputs.

    It computes on the CPU, with as many threads as PyTorch has (``torch.get_num_threads``).

    Args:
        path: A file that :func:`xcit_mm.export.export` has written.

    Raises:
        UserError: If the file does not exist, or has another suffix than .onnx, .xml or .pt2.
        DependencyError: If the package that runs it is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f'{path} does not exist{looked_in(path)}')
    if path.suffix not in LOADERS:
        raise UserError(f'{path}: the suffix of an exported file is one of {", ".join(LOADERS)}')
    return LOADERS[path.suffix](path)


def _load_onnx(path: Path) -> Runtime:
    require('onnxruntime')
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(path, options, providers=['CPUExecutionProvider'])
    names = [output.name for output in session.get_outputs()]

    def run(image: Tensor) -> dict[str, Tensor]:
        outputs = session.run(names, {'image': image.numpy()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return run


def _load_openvino(path: Path) -> Runtime:
    require('openvino')
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    settings = {'INFERENCE_NUM_THREADS': torch.get_num_threads()}
    if model.get_rt_info([SECTION, 'precision']).astype(str) == 'float32':
        settings['INFERENCE_PRECISION_HINT'] = 'f32'  # the default is bfloat16 on CPUs with AMX
    compiled = core.compile_model(model, 'CPU', settings)

    def run(image: Tensor) -> dict[str, Tensor]:
        outputs = compiled(image.numpy())
        return {k.any_name: torch.from_numpy(v.copy()) for k, v in outputs.items()}

    return run


def _load_torch(path: Path) -> Runtime:
    require('torchvision')  # registers operators of detectors
    with zipfile.ZipFile(path) as archive:
        is_compiled = any('/aotinductor/' in name for name in archive.namelist())
    if is_compiled:
        model = torch._inductor.aoti_load_package(path)
        names = json.loads(model.get_metadata()['outputs'])
    else:
        files = {'metadata.json': ''}
        with quiet():
            model = module_of(torch.export.load(path, extra_files=files))
        names = json.loads(json.loads(files['metadata.json'])['outputs'])

    def run(image: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(zip(names, model(image), strict=True))

    return run


LOADERS = {'.onnx': _load_onnx, '.xml': _load_openvino, '.pt2': _load_torch}
