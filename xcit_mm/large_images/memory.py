"""How much memory a process may still take."""

import os
from pathlib import Path

CGROUPS = (  # limit and use of a container: version 2 and version 1
    ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'),
    (
        '/sys/fs/cgroup/memory/memory.limit_in_bytes',
        '/sys/fs/cgroup/memory/memory.usage_in_bytes',
    ),
)


def free_memory() -> int:
    """Return the bytes of memory that are free, in the machine and in its container."""
    try:
        lines = Path('/proc/meminfo').read_text().splitlines()
        available = next(line for line in lines if line.startswith('MemAvailable'))
        free = int(available.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        free = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2
    for limit, use in CGROUPS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(use).read_text()))
        except (OSError, ValueError):  # none, or 'max'
            continue
    return max(0, free)
