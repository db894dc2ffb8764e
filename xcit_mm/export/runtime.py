"""An exported file as a function."""

import json
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ..errors import UserError, one_line, reason

Compute = Callable[[Tensor], Iterable[Tensor]]


class Runtime:
    """An exported file that is called as a function.

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
