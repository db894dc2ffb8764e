"""Write a graph as a program of torch.export, or compiled by AOTInductor."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from ..environment import quiet
from ..errors import DependencyError
from .capture import capture
from .graphs import Graph

METADATA = 'metadata.json'  # in the archive


def write_torch(graph: Graph, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the ``torch.export.ExportedProgram`` of a graph."""
    with quiet():
        torch.export.save(capture(graph), path, extra_files={METADATA: json.dumps(metadata)})


def write_aotinductor(graph: Graph, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a graph that AOTInductor compiles for the processor of this machine."""
    if not any(map(shutil.which, ('c++', 'g++', 'clang++'))):
        raise DependencyError(
            'AOTInductor needs a C++ compiler, but none is installed: apt-get install g++, or use '
            '--format torch'
        )
    options = {
        'aot_inductor.metadata': dict(metadata),
        # Off for detectors: with it, convolutions over a number of objects that depends on the
        # image read their input in the wrong memory format. Segmentors are faster with it.
        'layout_optimization': graph.batched,
    }
    with quiet():
        torch._inductor.aoti_compile_and_package(
            capture(graph), package_path=str(path), inductor_configs=options
        )
