"""Which XCiT a state dict is of, told by the shapes of its tensors."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from ..errors import UserError
from ..models.archs import ARCHS, PATCH_SIZES
from .checkpoint import backbone_state


class Architecture(NamedTuple):
    """The hyper-parameters that the shapes of the weights depend on."""

    embed_dim: int
    depth: int
    num_heads: int
    patch_size: int

    @property
    def arch(self) -> str | None:
        """Its name ('s12') among the published ones; None for another one."""
        return next((name for name, arch in ARCHS.items() if arch[:3] == self[:3]), None)

    def __str__(self) -> str:
        if self.arch is not None:
            return f'XCiT-{self.arch.upper()}/{self.patch_size}'
        return (
            f'an XCiT of {self.depth} layers, {self.embed_dim} channels, {self.num_heads} heads '
            f'and patch size {self.patch_size}'
        )


def architecture(state: Mapping[str, Tensor], path: str) -> Architecture:
    """Tell the architecture of a state dict.

    Args:
        state: As of :func:`xcit_mm.weights.checkpoint.model_state`.
        path: Of the file, for the error.

    Raises:
        UserError: If it is not that of an XCiT.
    """
    trunk = backbone_state(state)
    embed_dim, num_heads = (
        len(tensor) if tensor is not None and tensor.ndim else 0
        for tensor in (trunk.get(f'blocks.0.{n}') for n in ('norm1.weight', 'attn.temperature'))
    )
    convs = [n for n in trunk if re.fullmatch(r'patch_embed\.proj\.\d\.0\.weight', n)]
    patch_size = 2 ** len(convs)
    if not num_heads or embed_dim % 8 or embed_dim % num_heads or patch_size not in PATCH_SIZES:
        raise UserError(f'{path} holds no XCiT of patch size {PATCH_SIZES[0]} or {PATCH_SIZES[1]}')
    depth = len({name.split('.')[1] for name in trunk if name.startswith('blocks.')})
    return Architecture(embed_dim, depth, num_heads, patch_size)
