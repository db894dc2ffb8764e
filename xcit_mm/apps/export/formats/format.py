"""A file format of exports: how a file is written and read, and what that needs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....base.environment import require
from ....base.errors import DependencyError, UserError, reason
from ..graphs.graph import Graph


class Runtime:
    """An exported file that is called as a function.

    Attributes:
        outputs: The names of the outputs.
        metadata: What the file says about itself.
    """

    def __init__(
        self, compute: Callable[[Tensor], Iterable[Tensor]], metadata: Mapping[str, str]
    ) -> None:
        self.outputs = tuple(json.loads(metadata['outputs']))
        self.metadata = metadata
        self._compute = compute

    def __call__(self, image: Tensor | np.ndarray) -> dict[str, Tensor]:
        """Compute the outputs by name.

        Args:
            image: (B, channels, H, W), float32 with values from 0 to 255; a tensor or an array.

        Raises:
            UserError: If the file does not take this image. AOTInductor does not check the shape.
        """
        image = torch.as_tensor(image)
        try:
            with torch.no_grad():
                values = list(self._compute(image.contiguous()))
        except Exception as error:  # each runtime has its own
            raise UserError(
                f'the exported file does not take this image, {tuple(image.shape)} {image.dtype} '
                f'({reason(error)}): docs/export.md#models says which images it takes'
            ) from error
        return dict(zip(self.outputs, values, strict=True))


class Contents(NamedTuple):
    """What a file is written from."""

    graph: Graph  # for images of any size
    metadata: Mapping[str, str]  # including the precision
    calibration: Sequence[Callable[[], Tensor]] = ()  # functions that load inputs, for int8
    gather: bool = False  # whether deformable attention samples by gathers


@dataclass(frozen=True)
class Format:
    """A file format. Its name, as in ``--format``, is the name of the file that defines it."""

    suffix: str  # if formats share one, ``holds`` tells their files apart
    precisions: tuple[str, ...]
    write: Callable[[Contents, Path], None]
    read: Callable[[Path], Runtime]
    runs_code: bool = False  # whether ``read`` may run any code that is in the file
    packages: tuple[str, ...] = ()  # to install for ``write``
    int8_packages: tuple[str, ...] = ()  # further ones, for int8
    further_suffixes: tuple[str, ...] = ()  # of further files of the same name
    converts_to_float16: bool = False  # whether ``write`` does so with a float32 graph
    holds: Callable[[Path], bool] = lambda path: True  # if it is the format of a file

    def require_packages(self, precision: str) -> None:
        """Require the packages that write a file."""
        for package in self.packages + (self.int8_packages if precision == 'int8' else ()):
            require(package)
        if torch.__version__ < (2, 7):
            raise DependencyError(
                f'PyTorch {torch.__version__} is too old to export: install 2.7 or later'
            )

    def files(self, path: Path) -> list[Path]:
        """Return the paths of all files of an export, with the file that needs the others last."""
        return [path.with_suffix(suffix) for suffix in (*self.further_suffixes, self.suffix)]

    def size(self, path: Path) -> int:
        """Return the bytes of all files of an export."""
        return sum(file.stat().st_size for file in self.files(path))
