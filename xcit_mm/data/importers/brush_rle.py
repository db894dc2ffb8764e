"""Masks as Label Studio stores what its brush paints.

The values of an RGBA image, row by row, are packed by rle-pack of the library umbrella: a header of
57 bits, and records that repeat a value or list several
(https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack). The code of label-studio-sdk
does the same, but the package brings dozens of others, and allocates what a file asks for.
"""

import numpy as np

VALUE_BITS = 8
CHANNELS = 4  # of which the last one, alpha, says what is painted
COUNT_BITS = 16  # of all records that are written
MAX_COUNT = 2**COUNT_BITS


def encode(mask: np.ndarray) -> list[int]:
    """Return the bytes for a mask (H, W) of bool."""
    pixels = np.concatenate([mask.ravel(), [False]])
    ends = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    ends = np.unique([*ends[ends < mask.size], mask.size])
    lengths = np.diff(ends, prepend=0) * CHANNELS
    values = np.where(mask.ravel()[ends - 1], 255, 0)
    pieces = -(-lengths // MAX_COUNT)
    last = np.cumsum(pieces) - 1
    counts = np.full(pieces.sum(), MAX_COUNT)
    counts[last] = lengths - (pieces - 1) * MAX_COUNT
    # A record: 1 for a repeated value, 3 for the last of the four sizes of counts, count, value.
    records = (0b111 << 24) | ((counts - 1) << VALUE_BITS) | np.repeat(values, pieces)
    header = f'{mask.size * CHANNELS:032b}{VALUE_BITS - 1:05b}' + f'{COUNT_BITS - 1:04b}' * 4
    bits = (records[:, None] >> np.arange(26, -1, -1)) & 1
    return np.packbits([*map(int, header), *bits.ravel()]).tolist()


def decode(data: list[int], shape: tuple[int, int]) -> np.ndarray:
    """Return the mask (H, W) of bool in bytes.

    Raises:
        ValueError: If they do not hold an RGBA image of this size.
    """
    bits = ''.join(f'{byte:08b}' for byte in bytes(data))
    position = 0

    def read(length: int) -> int:
        nonlocal position
        position += length
        if position > len(bits):
            raise ValueError('the brush is cut off')
        return int(bits[position - length : position], 2)

    size, value_bits = read(32), read(5) + 1
    if (size, value_bits) != (shape[0] * shape[1] * CHANNELS, VALUE_BITS):
        raise ValueError(f'{size} values of {value_bits} bits are not the image')
    count_bits = [read(4) + 1 for _ in range(4)]
    values = np.empty(size, np.uint8)
    done = 0
    while done < size:
        is_repeated, kind = read(1), read(2)
        count = read(count_bits[kind]) + 1
        listed = read(VALUE_BITS * (1 if is_repeated else count))
        listed = listed.to_bytes(1 if is_repeated else count, 'big')
        values[done : done + count] = np.frombuffer(listed, np.uint8)
        done += count
    return values.reshape(*shape, CHANNELS)[..., -1] > 0
