"""Parts of the short texts that describe predictions."""

from collections.abc import Sequence

MOST_NAMES = 5


def size_text(size: tuple[int, int]) -> str:
    """Return a size (H, W) as people write it, such as 640x480."""
    return f'{size[1]}x{size[0]}'


def few_names(names: Sequence[str]) -> str:
    """Return names in a line, which ends with '...' if there are more than five."""
    return ', '.join([*names[:MOST_NAMES], *(['...'] if len(names) > MOST_NAMES else [])])
