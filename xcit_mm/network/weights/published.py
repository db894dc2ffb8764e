"""The published figures of the released models, by the names of their files."""

import re
from pathlib import Path
from typing import NamedTuple

from ..archs import released_name

# Percent of ImageNet's validation images (paper, tables 1 and D.1, the same in the release), by
# patch size and training: at 224 pixels, distilled at 224, distilled and fine-tuned at 384.
COLUMNS = [(patch, training) for patch in (16, 8) for training in ('224', '224_dist', '384_dist')]
ROWS = {
    'n12': (69.9, 72.2, 75.4, 73.8, 76.3, 77.8),
    't12': (77.1, 78.6, 80.9, 79.7, 81.2, 82.4),
    't24': (79.4, 80.4, 82.6, 81.9, 82.6, 83.7),
    's12': (82.0, 83.3, 84.7, 83.4, 84.2, 85.1),
    's24': (82.6, 83.9, 85.1, 83.9, 84.9, 85.6),
    'm24': (82.7, 84.3, 85.4, 83.7, 85.1, 85.8),
    'l24': (82.9, 84.9, 85.8, 84.4, 85.4, 86.0),
}
TOP1 = {
    released_name(arch, *column): top1
    for arch, row in ROWS.items()
    for column, top1 in zip(COLUMNS, row, strict=True)
}


class DinoAccuracy(NamedTuple):
    """Top-1 of a linear classifier and of k-NN (k = 20) on ImageNet, in percent."""

    linear: float
    knn: float


DINO = {  # paper, table 3
    'xcit_small_12_p16_dino': DinoAccuracy(77.8, 76.0),
    'xcit_small_12_p8_dino': DinoAccuracy(79.2, 77.1),
    'xcit_medium_24_p16_dino': DinoAccuracy(78.8, 76.4),
    'xcit_medium_24_p8_dino': DinoAccuracy(80.3, 77.9),
}
BENCHMARKS = ('roxford5k', 'medium'), ('roxford5k', 'hard'), ('holidays', 'all')
S12_16, S12_8 = 'xcit_small_12_p16_384_dist', 'xcit_small_12_p8_384_dist'
# Mean average precision in percent (paper, table D.4), by the file, the descriptor, its number of
# centers, and the pixels of the longer side.
RETRIEVAL: dict[tuple[str, str, int | None, int], tuple[float, float, float]] = {
    (S12_16, 'token', None, 224): (12.7, 2.4, 71.5),
    (S12_16, 'token', None, 384): (20.1, 4.6, 83.4),
    (S12_16, 'token', None, 512): (26.6, 5.8, 84.6),
    (S12_16, 'token', None, 768): (30.1, 8.7, 86.0),
    (S12_16, 'token', None, 1024): (30.3, 11.2, 86.3),
    (S12_8, 'token', None, 768): (33.2, 12.1, 86.4),
    ('xcit_small_12_p16_dino', 'token', None, 768): (35.1, 11.9, 87.3),
    ('xcit_small_12_p8_dino', 'token', None, 768): (30.9, 7.9, 88.3),
    (S12_16, 'vlad', 256, 768): (36.6, 11.6, 89.9),
    (S12_16, 'vlad', 1024, 768): (40.0, 13.0, 90.7),
    (S12_8, 'asmk', 1024, 768): (36.5, 9.4, 90.4),
    (S12_8, 'asmk', 65536, 768): (42.0, 12.9, 92.3),
    (S12_16, 'asmk', 1024, 768): (35.2, 11.5, 90.4),
    (S12_16, 'asmk', 65536, 768): (40.0, 15.0, 92.0),
}
# In the authors' form and in timm's. Small DINO models are named cp16, and DINO's release says
# pretrain.
RELEASED = re.compile(
    r'xcit_(nano|tiny|small|medium|large)_(\d\d)_c?p(\d+)_'
    r'(?:(dino|pretrain)|(\d{3})(_dist|\.fb_dist)?(?!\d))'
)


def name_in_release(path: str, model: str) -> str | None:
    """Return the key of :data:`TOP1` or :data:`DINO` that a file is named after, or None.

    Args:
        path: A path, a URL or ``timm://NAME``.
        model: The architecture in the file, such as XCiT-S12/16. Another one counts as no name.
    """
    match = RELEASED.search(Path(path).name)
    if match is None:
        return None
    size, depth, patch, is_dino, side, is_distilled = match.groups()
    if model != f'XCiT-{size[0].upper()}{depth}/{patch}':
        return None
    # All models of 384 pixels are distilled, which timm's short names leave out.
    training = 'dino' if is_dino else side + '_dist' * (bool(is_distilled) or side == '384')
    name = f'xcit_{size}_{depth}_p{patch}_{training}'
    return name if name in TOP1 or name in DINO else None


def training_size(name: str | None) -> int:
    """Return the pixels of the images at which a released classifier was trained, or 224."""
    return int(name.split('_')[4]) if name in TOP1 else 224
