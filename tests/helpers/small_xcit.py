"""A backbone that is small enough for any test, and a comparison of its maps."""

from collections.abc import Sequence

from torch import Tensor

from helpers import relative_error
from xcit_mm import XCiT

SMALL = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)


def small_xcit(patch_size: int = 16, **kwargs) -> XCiT:
    return XCiT(SMALL, patch_size, out_indices=(0, 1, 2, 3), **kwargs)


def assert_same_maps(
    maps: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-5
) -> None:
    for value, reference in zip(maps, expected, strict=True):
        assert relative_error(value.float(), reference.float()) <= tolerance
