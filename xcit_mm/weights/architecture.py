"""The architecture of an XCiT, from the shapes of its weights."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from ..errors import UserError
from ..models.archs import ARCHS, PATCH_SIZES
from .states import describe_xcit, xcit_dimensions


class Architecture(NamedTuple):
    """The hyper-parameters that the shapes of the weights depend on."""

    embed_dim: int
    depth: int
    num_heads: int
    patch_size: int

    @property
    def arch(self) -> str | None:
        """Its name among the published ones, such as 's12'; None if it is not one of them."""
        return next((name for name, arch in ARCHS.items() if arch[:3] == self[:3]), None)

    def __str__(self) -> str:
        if self.arch is not None:
            return f'XCiT-{self.arch.upper()}/{self.patch_size}'
        return describe_xcit(*self)


def architecture(state: Mapping[str, Tensor], path: str) -> Architecture:
    """Return the architecture of the XCiT in a state dict.

    Args:
        state: The weights (see :func:`xcit_mm.weights.states.model_state`).
        path: The file, for the error message.

    Raises:
        UserError: If they hold no XCiT.
    """
    embed_dim, depth, num_heads, patch_size = xcit_dimensions(state) or (0, 0, 0, 0)
    if not num_heads or embed_dim % 8 or embed_dim % num_heads or patch_size not in PATCH_SIZES:
        raise UserError(f'{path} holds no XCiT of patch size {PATCH_SIZES[0]} or {PATCH_SIZES[1]}')
    return Architecture(embed_dim, depth, num_heads, patch_size)
