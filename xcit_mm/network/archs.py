"""The published architectures of XCiT and their names.

They are those of the paper (table 1 and appendix), and M12 and L12 of "A Light Recipe to Train
Robust Vision Transformers" (Debenedetti et al., arXiv 2209.07399), which also has patches of 4
pixels for small images.
"""

from typing import Any, NamedTuple

from ..base.errors import ArgumentError


class Arch(NamedTuple):
    """Hyper-parameters of a model."""

    embed_dim: int  # channels C of the tokens
    depth: int  # blocks
    num_heads: int
    eta: float  # initial value of LayerScale
    drop_path_rate: dict[int, float]  # by patch size

    def published_drop_path_rate(self, patch_size: int) -> float:
        """Return the rate for a patch size. Models for patches of 4 start from those for 16."""
        return self.drop_path_rate[16 if patch_size == 4 else patch_size]


ARCHS = {
    'n12': Arch(128, 12, 4, 1.0, {16: 0.0, 8: 0.0}),
    't12': Arch(192, 12, 4, 1.0, {16: 0.0, 8: 0.0}),
    't24': Arch(192, 24, 4, 1e-5, {16: 0.05, 8: 0.05}),
    's12': Arch(384, 12, 8, 1.0, {16: 0.05, 8: 0.05}),
    's24': Arch(384, 24, 8, 1e-5, {16: 0.1, 8: 0.1}),
    'm12': Arch(512, 12, 8, 1.0, {16: 0.05, 8: 0.05}),
    'm24': Arch(512, 24, 8, 1e-5, {16: 0.15, 8: 0.15}),
    'l12': Arch(768, 12, 16, 1.0, {16: 0.05, 8: 0.05}),
    'l24': Arch(768, 24, 16, 1e-5, {16: 0.25, 8: 0.3}),
}
# The strides of the convolutions that embed a patch, by its size. With 4, they have the weights of
# 16, so that a model for large images can be adapted to small ones.
STEM_STRIDES = {4: (1, 1, 2, 2), 8: (2, 2, 2), 16: (2, 2, 2, 2)}
PATCH_SIZES = tuple(STEM_STRIDES)
SIZE_NAMES = {'n': 'nano', 't': 'tiny', 's': 'small', 'm': 'medium', 'l': 'large'}


def released_name(arch: str, patch_size: int, training: str = '224') -> str:
    """Return the name that the authors and timm use, such as 'xcit_small_12_p8_224'.

    Only the models of the paper are released under such names.
    """
    return f'xcit_{SIZE_NAMES[arch[0]]}_{arch[1:]}_p{patch_size}_{training}'


def resolve_arch(arch: str | dict[str, Any]) -> Arch:
    """Return the hyper-parameters of a key of ``ARCHS``, or of a dict with custom ones."""
    if isinstance(arch, str) and arch in ARCHS:
        return ARCHS[arch]
    if isinstance(arch, dict) and arch.keys() == {'embed_dim', 'depth', 'num_heads', 'eta'}:
        counts = arch['embed_dim'], arch['depth'], arch['num_heads']
        if all(isinstance(n, int) and n > 0 for n in counts) and arch['embed_dim'] % 8 == 0:
            return Arch(**arch, drop_path_rate=dict.fromkeys(PATCH_SIZES, 0.0))
    raise ArgumentError(
        f'arch={arch!r} is not one of {tuple(ARCHS)} or a dict of embed_dim (a multiple of 8), '
        'depth and num_heads (integers > 0) and eta'
    )
