"""Memory available to this process, including the limits of its container."""

from pathlib import Path

import psutil

CGROUPS = (  # limit and usage of a container, in version 2 and in version 1
    ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'),
    (
        '/sys/fs/cgroup/memory/memory.limit_in_bytes',
        '/sys/fs/cgroup/memory/memory.usage_in_bytes',
    ),
)


def free_memory() -> int:
    """Return the bytes of memory that are free, both in the machine and in its container."""
    free = psutil.virtual_memory().available
    for limit, use in CGROUPS:
        try:
            used = int(_text(use)) - _reclaimable(Path(use).parent)
            free = min(free, int(_text(limit)) - used)
        except (OSError, ValueError):  # no container, or the limit is 'max'
            continue
    return max(0, free)


def _reclaimable(cgroup: Path) -> int:
    """Return the bytes of cached files, which a container frees when memory is needed."""
    counts = dict(line.split() for line in _text(cgroup / 'memory.stat').splitlines())
    return int(counts.get('total_inactive_file', counts.get('inactive_file', 0)))


def _text(path: Path | str) -> str:
    return Path(path).read_text(encoding='utf-8')
