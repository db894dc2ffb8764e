"""Programs of ``torch.export`` in .pt2 files."""

import json
from pathlib import Path

import torch

from ....base.environment import quiet, require
from ..graphs.capture import capture, module_of
from .format import Contents, Format, Runtime
from .program import METADATA, is_compiled, read_program


def write(contents: Contents, path: Path) -> None:
    """Write the ``torch.export.ExportedProgram`` of a graph."""
    files = {METADATA: json.dumps(contents.metadata)}
    with quiet():
        torch.export.save(capture(contents.graph), path, extra_files=files)


def read(path: Path) -> Runtime:
    """Read a program without running code that is in the file."""
    require('torchvision')  # registers operators of detectors
    return Runtime(*read_program(path))


def read_trusted(path: Path) -> Runtime:
    """Read a program as PyTorch does, also of a version before 2.9."""
    require('torchvision')
    files = {METADATA: ''}
    model = module_of(torch.export.load(path, extra_files=files))
    return Runtime(model, json.loads(files[METADATA]))


FORMAT = Format(
    suffix='.pt2',
    precisions=('float32', 'float16'),
    write=write,
    read=read,
    read_trusted=read_trusted,
    holds=lambda path: not is_compiled(path),
)
