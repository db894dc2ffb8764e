"""Memory available to this process: of the machine or its container, and of a GPU."""

from pathlib import Path

import psutil
import torch

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


def free_device_memory(device: torch.device) -> int | None:
    """Return the free bytes of a GPU, or None for a device that computes in the CPU's memory."""
    if device.type != 'cuda':
        return None
    free, _ = torch.cuda.mem_get_info(device)
    # PyTorch keeps freed memory for later tensors.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def device_memory(device: torch.device) -> int | None:
    """Return the bytes that a GPU has, or None for a device that computes in the CPU's memory."""
    if device.type != 'cuda':
        return None
    return torch.cuda.get_device_properties(device).total_memory


def _reclaimable(cgroup: Path) -> int:
    """Return the bytes of cached files, which a container frees when memory is needed."""
    counts = dict(line.split() for line in _text(cgroup / 'memory.stat').splitlines())
    return int(counts.get('total_inactive_file', counts.get('inactive_file', 0)))


def _text(path: Path | str) -> str:
    return Path(path).read_text(encoding='utf-8')
