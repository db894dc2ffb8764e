"""Programs of ``torch.export`` in .pt2 files."""

import json
from pathlib import Path

import torch

from ....base.environment import quiet, require
from ..graphs.capture import capture, module_of
from .aotinductor import is_compiled
from .format import Contents, Format, Runtime

METADATA = 'metadata.json'  # in the archive


def write(contents: Contents, path: Path) -> None:
    """Write the ``torch.export.ExportedProgram`` of a graph."""
    files = {METADATA: json.dumps(contents.metadata)}
    with quiet():
        torch.export.save(capture(contents.graph), path, extra_files=files)


def read(path: Path) -> Runtime:
    """Read a program. PyTorch unpickles parts of it, and evaluates expressions in it."""
    require('torchvision')
    files = {METADATA: ''}
    model = module_of(torch.export.load(path, extra_files=files))
    return Runtime(model, json.loads(files[METADATA]))


FORMAT = Format(
    suffix='.pt2',
    precisions=('float32', 'float16'),
    write=write,
    read=read,
    runs_code=True,
    holds=lambda path: not is_compiled(path),
)
