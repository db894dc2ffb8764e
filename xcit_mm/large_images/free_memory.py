"""Memory available to this process, including the limits of its container."""

import os
from pathlib import Path

CGROUPS = (  # limit and usage of a container, in version 2 and in version 1
    ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'),
    (
        '/sys/fs/cgroup/memory/memory.limit_in_bytes',
        '/sys/fs/cgroup/memory/memory.usage_in_bytes',
    ),
)


def free_memory() -> int:
    """Return the bytes of memory that are free, both in the machine and in its container."""
    try:
        lines = Path('/proc/meminfo').read_text().splitlines()
        available = next(line for line in lines if line.startswith('MemAvailable'))
        free = int(available.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        free = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2
    for limit, use in CGROUPS:
        try:
            used = int(Path(use).read_text()) - _reclaimable(Path(use).parent)
            free = min(free, int(Path(limit).read_text()) - used)
        except (OSError, ValueError):  # no container, or the limit is 'max'
            continue
    return max(0, free)


def _reclaimable(cgroup: Path) -> int:
    """Return the bytes of cached files, which a container frees when memory is needed."""
    counts = dict(line.split() for line in (cgroup / 'memory.stat').read_text().splitlines())
    return int(counts.get('total_inactive_file', counts.get('inactive_file', 0)))
