"""Mean average precision of the released models (table D.4 of the paper)."""

import re
from pathlib import Path

# In percent: ROxford5k medium and hard, and Holidays.
Row = tuple[float, float, float]
# Keys: network, descriptor, number of centers, and length of the longer side in pixels.
TABLE_D4: dict[tuple[str, str, int | None, int], Row] = {
    ('S12/16', 'token', None, 224): (12.7, 2.4, 71.5),
    ('S12/16', 'token', None, 384): (20.1, 4.6, 83.4),
    ('S12/16', 'token', None, 512): (26.6, 5.8, 84.6),
    ('S12/16', 'token', None, 768): (30.1, 8.7, 86.0),
    ('S12/16', 'token', None, 1024): (30.3, 11.2, 86.3),
    ('S12/8', 'token', None, 768): (33.2, 12.1, 86.4),
    ('S12/16 DINO', 'token', None, 768): (35.1, 11.9, 87.3),
    ('S12/8 DINO', 'token', None, 768): (30.9, 7.9, 88.3),
    ('S12/16', 'vlad', 256, 768): (36.6, 11.6, 89.9),
    ('S12/16', 'vlad', 1024, 768): (40.0, 13.0, 90.7),
    ('S12/8', 'asmk', 1024, 768): (36.5, 9.4, 90.4),
    ('S12/8', 'asmk', 65536, 768): (42.0, 12.9, 92.3),
    ('S12/16', 'asmk', 1024, 768): (35.2, 11.5, 90.4),
    ('S12/16', 'asmk', 65536, 768): (40.0, 15.0, 92.0),
}
COLUMNS = [('roxford5k', 'medium'), ('roxford5k', 'hard'), ('holidays', 'all')]
# The authors' names of the files that were fine-tuned at 384 pixels, and of the DINO files.
FINE_TUNED = re.compile(r'xcit_small_12_p(16|8)_384_dist')
DINO = re.compile(r'xcit_small_12_c?p(16|8)_(?:dino|pretrain)')


def published(
    path: str, model: str, descriptor: str, k: int | None, size: int | str
) -> dict[tuple[str, str], float]:
    """Return the figures of a released file by benchmark and setting, or {} for other files.

    Args:
        path: The file, named after the model.
        model: The architecture in the file, such as XCiT-S12/16.
        descriptor: The kind of descriptor.
        k: The number of centers of its codebook, or None.
        size: Length of the longer side in pixels, or 'native'.
    """
    name = Path(path).name
    for pattern, ending in ((FINE_TUNED, ''), (DINO, ' DINO')):
        match = pattern.search(name)
        if match is not None and model == f'XCiT-S12/{match[1]}':
            row = TABLE_D4.get((f'S12/{match[1]}{ending}', descriptor, k, size))
            return {} if row is None else dict(zip(COLUMNS, row, strict=True))
    return {}
