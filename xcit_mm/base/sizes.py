"""Sizes of memory as people write them."""

import re

UNITS = '', 'K', 'M', 'G', 'T'
# Either all lowercase or in the correct case: Gb and Gib would be bits.
SIZE = re.compile(
    r'(?P<number>(\d+\.?\d*|\.\d+)(e\d{1,2})?) ?((?P<unit>[kKMGT]i?)?B?|(?P<lower>[kmgt]i?)?b?)'
)


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as 2GiB, 500MB or 1e9.

    Raises:
        ValueError: If the text is not a positive size.
    """
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text} is not a size')
    unit = match['unit'] or match['lower'] or ''
    factor = 1024 if unit.endswith('i') else 1000
    size = int(float(match['number']) * factor ** UNITS.index(unit[:1].upper()))
    if size < 1:
        raise ValueError(f'{text} is not positive')
    return size
