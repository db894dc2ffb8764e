"""Run an exported file."""

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..environment import quiet, require
from ..errors import DependencyError, UserError, looked_in, reason
from .capture import module_of
from .openvino_file import SECTION
from .torch_file import METADATA

Compute = Callable[[Tensor], Iterable[Tensor]]


class Runtime:
    """An exported file, which is called as a function.

    Attributes:
        outputs: The names of the outputs.
        metadata: What the file says about itself.
    """

    def __init__(self, compute: Compute, metadata: Mapping[str, str]) -> None:
        self.outputs = tuple(json.loads(metadata['outputs']))
        self.metadata = metadata
        self._compute = compute

    def __call__(self, image: Tensor) -> dict[str, Tensor]:
        """Compute the outputs by name.

        Args:
            image: (B, channels, H, W), float32 with values from 0 to 255.

        Raises:
            UserError: If the file does not take this image. AOTInductor does not check the shape.
        """
        try:
            with torch.no_grad():
                values = list(self._compute(image.contiguous()))
        except Exception as error:  # each runtime has its own
            raise UserError(
                f'the exported file does not take this image, {tuple(image.shape)} {image.dtype} '
                f'({reason(error)}): docs/export.md says which images it takes'
            ) from error
        return dict(zip(self.outputs, values, strict=True))


def load_runtime(path: str | Path) -> Runtime:
    """Load an exported file.

    It computes on the CPU, with as many threads as PyTorch has (``torch.get_num_threads``).

    Args:
        path: A file that :func:`xcit_mm.export.export` has written.

    Raises:
        UserError: If the file does not exist, has another suffix than .onnx, .xml or .pt2, or
            cannot be read.
        DependencyError: If the package that runs it is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f'{path} does not exist{looked_in(path)}')
    if path.suffix not in LOADERS:
        raise UserError(f'{path}: the suffix of an exported file is one of {", ".join(LOADERS)}')
    try:
        with quiet():
            return LOADERS[path.suffix](path)
    except DependencyError:
        raise
    except Exception as error:  # each runtime has its own
        raise UserError(f'{path} cannot be read ({reason(error)}): export it again') from error


def _load_onnx(path: Path) -> Runtime:
    require('onnxruntime')
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(path, options, providers=['CPUExecutionProvider'])
    return Runtime(
        lambda image: map(torch.from_numpy, session.run(None, {'image': image.numpy()})),
        session.get_modelmeta().custom_metadata_map,
    )


def _load_openvino(path: Path) -> Runtime:
    require('openvino')
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    metadata = model.get_rt_info([SECTION]).value
    settings = {'INFERENCE_NUM_THREADS': torch.get_num_threads()}
    if metadata['precision'] == 'float32':
        settings['INFERENCE_PRECISION_HINT'] = 'f32'  # the default is bfloat16 on CPUs with AMX
    compiled = core.compile_model(model, 'CPU', settings)
    return Runtime(
        lambda image: [torch.from_numpy(v.copy()) for v in compiled(image.numpy()).values()],
        metadata,
    )


def _load_torch(path: Path) -> Runtime:
    require('torchvision')  # registers operators of detectors
    with zipfile.ZipFile(path) as archive:
        is_compiled = any('/aotinductor/' in name for name in archive.namelist())
    if is_compiled:
        model = torch._inductor.aoti_load_package(path)
        return Runtime(model, model.get_metadata())
    files = {METADATA: ''}
    model = module_of(torch.export.load(path, extra_files=files))
    return Runtime(model, json.loads(files[METADATA]))


LOADERS = {'.onnx': _load_onnx, '.xml': _load_openvino, '.pt2': _load_torch}
