"""Run an exported file."""

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..environment import quiet, require
from ..errors import UserError, looked_in, one_line, reason
from ..weights.pickles import UnreadableError
from .capture import module_of
from .onnx_file import read_onnx
from .openvino_file import SECTION, read_openvino
from .program import COMPILED, read_program
from .torch_file import METADATA

Compute = Callable[[Tensor], Iterable[Tensor]]


class Runtime:
    """An exported file, which is called as a function.

    Attributes:
        outputs: The names of the outputs.
        metadata: What the file says about itself.
    """

    def __init__(self, compute: Compute, metadata: Mapping[str, str]) -> None:
        outputs = json.loads(metadata['outputs'])
        if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
            raise ValueError('its metadata does not name its outputs')
        self.outputs = tuple(outputs)
        self.metadata = metadata
        self._compute = compute

    def __call__(self, image: Tensor) -> dict[str, Tensor]:
        """Compute the outputs by name.

        Args:
            image: (B, channels, H, W), float32 with values from 0 to 255.

        Raises:
            UserError: If the file does not take this image, or has other outputs than it says.
                AOTInductor does not check the shape.
        """
        try:
            with torch.no_grad():
                values = list(self._compute(image.contiguous()))
        except Exception as error:  # each runtime has its own
            raise UserError(
                f'the exported file does not take this image, {tuple(image.shape)} {image.dtype} '
                f'({reason(error)}): docs/export.md says which images it takes'
            ) from error
        if len(values) != len(self.outputs):
            raise UserError(
                f'the exported file names the outputs {one_line(", ".join(self.outputs))}, but '
                f'computes {len(values)}: export it again'
            )
        return dict(zip(self.outputs, values, strict=True))


def load_runtime(path: str | Path, trusted: bool = False) -> Runtime:
    """Load an exported file.

    It computes on the CPU, with as many threads as PyTorch has (``torch.get_num_threads``).

    Args:
        path: A file that :func:`xcit_mm.export.export` has written.
        trusted: Run the code in a .pt2 file. AOTInductor's files, which are native code, and files
            of PyTorch before 2.9 need it.

    Raises:
        UserError: If the file does not exist, has another suffix than .onnx, .xml or .pt2, cannot
            be read, or could run code.
        DependencyError: If the package that runs it is missing.
    """
    path = Path(path)
    if not path.is_file():
        why = 'is not a file' if path.exists() else f'does not exist{looked_in(path)}'
        raise UserError(f'{path} {why}: name a file of tools/export.py')
    if path.suffix not in LOADERS:
        raise UserError(f'{path}: the suffix of an exported file is one of {", ".join(LOADERS)}')
    loader = (TRUSTED_LOADERS if trusted else LOADERS)[path.suffix]
    try:
        with quiet():
            return loader(path)
    except UserError:
        raise
    except UnreadableError as error:
        raise UserError(f'{path} cannot be read: {error}') from None
    except Exception as error:  # each runtime has its own
        raise UserError(f'{path} cannot be read ({reason(error)}): export it again') from error


def _load_onnx(path: Path) -> Runtime:
    require('onnxruntime')
    require('onnx')
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its log repeats names from the file as they are
    options.add_session_config_entry('session.load_model_format', 'ONNX')  # as it was checked
    session = InferenceSession(read_onnx(path), options, providers=['CPUExecutionProvider'])
    return Runtime(
        lambda image: map(torch.from_numpy, session.run(None, {'image': image.numpy()})),
        session.get_modelmeta().custom_metadata_map,
    )


def _load_openvino(path: Path) -> Runtime:
    require('openvino')
    import openvino

    model = read_openvino(path)
    metadata = model.get_rt_info([SECTION]).value
    settings = {'INFERENCE_NUM_THREADS': torch.get_num_threads()}
    if metadata['precision'] == 'float32':
        settings['INFERENCE_PRECISION_HINT'] = 'f32'  # bfloat16 where the CPU has it
    compiled = openvino.compile_model(model, 'CPU', settings)
    return Runtime(
        lambda image: [torch.from_numpy(v.copy()) for v in compiled(image.numpy()).values()],
        metadata,
    )


def _load_program(path: Path) -> Runtime:
    require('torchvision')  # registers operators of detectors
    return Runtime(*read_program(path))


def _load_trusted_torch(path: Path) -> Runtime:
    require('torchvision')
    with zipfile.ZipFile(path) as archive:
        is_compiled = any(COMPILED in name for name in archive.namelist())
    if is_compiled:
        model = torch._inductor.aoti_load_package(path)
        return Runtime(model, model.get_metadata())
    files = {METADATA: ''}
    model = module_of(torch.export.load(path, extra_files=files))
    return Runtime(model, json.loads(files[METADATA]))


LOADERS = {'.onnx': _load_onnx, '.xml': _load_openvino, '.pt2': _load_program}
TRUSTED_LOADERS = {**LOADERS, '.pt2': _load_trusted_torch}
