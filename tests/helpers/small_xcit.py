"""A backbone that is small enough for any test."""

from xcit_mm import XCiT

SMALL = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)


def small_xcit(patch_size: int = 16, **kwargs) -> XCiT:
    return XCiT(SMALL, patch_size, out_indices=(0, 1, 2, 3), **kwargs)
