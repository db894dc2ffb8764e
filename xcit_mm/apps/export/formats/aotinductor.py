"""Native code in .pt2 files: AOTInductor compiles it for the processor of this machine."""

import shutil
from pathlib import Path
from zipfile import ZipFile

import torch

from ....base.environment import quiet, require
from ....base.errors import DependencyError
from ..graphs.capture import capture
from .format import Contents, Format, Runtime


def write(contents: Contents, path: Path) -> None:
    """Write a graph that AOTInductor compiles."""
    if not any(map(shutil.which, ('c++', 'g++', 'clang++'))):
        raise DependencyError(
            'AOTInductor needs a C++ compiler, but none is installed: apt-get install g++, or use '
            '--format torch'
        )
    options = {
        'aot_inductor.metadata': dict(contents.metadata),
        # Off for detectors: with it, convolutions over a number of objects that depends on the
        # image read their input in the wrong memory format. Segmentors are faster with it.
        'layout_optimization': contents.graph.batched,
    }
    with quiet():
        torch._inductor.aoti_compile_and_package(
            capture(contents.graph), package_path=str(path), inductor_configs=options
        )


def read(path: Path) -> Runtime:
    """Load the native code of a file."""
    require('torchvision')  # registers operators of detectors
    model = torch._inductor.aoti_load_package(path)
    return Runtime(model, model.get_metadata())


def is_compiled(path: Path) -> bool:
    """Return whether native code is in a .pt2 file."""
    with ZipFile(path) as archive:
        return any('/aotinductor/' in name for name in archive.namelist())


FORMAT = Format(
    suffix='.pt2',
    precisions=('float32', 'float16'),
    write=write,
    read=read,
    runs_code=True,
    holds=is_compiled,
)
