"""A system without what only POSIX has, for every Python process that has this folder in its path.

Modules and functions that Windows lacks are gone, and others fail where they fail there: a file
that this process has open cannot be renamed or removed, a folder cannot be opened, and there are no
links. Where the code does not say otherwise, text has the encoding cp1252, and lines end with CR
and LF. ``os.name`` and ``sys.platform`` stay, because Python's own library follows them.
"""

import builtins
import errno
import fcntl
import io
import mmap
import multiprocessing.context
import multiprocessing.popen_fork
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import IO, Any

# They have other ways on Windows, and keep what they need here.
import filelock._native._unix  # noqa: F401  which is loaded late
import psutil  # noqa: F401

MODULES = ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'tty', 'pty', 'multiprocessing.forkserver')
ATTRIBUTES = {
    os: (
        *('fork', 'forkpty', 'posix_fallocate', 'posix_spawn', 'sched_getaffinity', 'statvfs'),
        *('fstatvfs', 'sysconf', 'sync', 'fdatasync', 'mkfifo', 'killpg', 'setsid', 'pidfd_open'),
        *('O_NOFOLLOW', 'O_DIRECTORY'),
    ),
    signal: (
        *('pthread_sigmask', 'pthread_kill', 'sigtimedwait', 'sigwait', 'sigwaitinfo', 'alarm'),
        *('sigpending', 'setitimer', 'pause', 'siginterrupt', 'SIGKILL', 'SIGHUP', 'SIGUSR1'),
        *('SIGUSR2', 'SIGALRM', 'SIGCONT', 'SIGSTOP', 'SIGQUIT', 'SIGPIPE'),
    ),
    mmap: ('MADV_DONTNEED',),
}
CATCHABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE)
CATCHABLE += (signal.SIGCHLD,)  # by which PyTorch notices the end of a worker, but not on Windows
SIGKILL = signal.SIGKILL
open_file, open_descriptor, synchronize = io.open, os.open, os.fsync
set_handler, space_on_disk = signal.signal, shutil.disk_usage
statvfs, name_of_system = os.statvfs, platform.system


def is_used(path: Any) -> bool:
    """Return whether this process has a file, or one in a folder, open or mapped into memory."""
    name = os.path.realpath(os.fspath(path))
    used = []
    for link in Path('/proc/self/fd').iterdir():
        try:
            used.append(str(link.readlink()))
        except OSError:  # closed since
            continue
    with open_file('/proc/self/maps', errors='replace') as maps:
        used += [line.rstrip('\n').split(maxsplit=5)[-1] for line in maps]
    return any(file == name or file.startswith(name + os.sep) for file in used)


def refusing_used(function: Callable, paths: int, replaces: bool = True) -> Callable:
    """Return a function whose first ``paths`` arguments must be files that nobody uses."""

    @wraps(function)
    def changed(*args: Any, **options: Any) -> Any:
        for path in args[:paths]:
            if is_used(path):
                raise PermissionError(errno.EACCES, 'used by a process (WinError 32)', str(path))
        if paths == 2 and Path(args[1]).exists():
            if not replaces:
                raise FileExistsError(errno.EEXIST, 'it exists (WinError 183)', str(args[1]))
            if Path(args[1]).is_dir():
                raise PermissionError(errno.EACCES, 'it is a folder (WinError 5)', str(args[1]))
        return function(*args, **options)

    return changed


def refuse_link(source: Any, target: Any, *args: Any, **options: Any) -> None:
    raise OSError(errno.EPERM, 'no privilege (WinError 1314)', str(target))


def open_no_folder(path: Any, flags: int, *args: Any, **options: Any) -> int:
    is_temporary = flags & os.O_TMPFILE == os.O_TMPFILE  # a file without a name
    if Path(os.fsdecode(path)).is_dir() and not is_temporary:
        raise PermissionError(errno.EACCES, 'Permission denied', str(path))
    return open_descriptor(path, flags, *args, **options)


def synchronize_written(file: Any) -> None:
    number = file if isinstance(file, int) else file.fileno()
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, 'Bad file descriptor')
    synchronize(file)


def open_in_cp1252(
    file: Any,
    mode: str = 'r',
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *args: Any,
    **options: Any,
) -> IO:
    if 'b' not in mode:
        encoding = 'cp1252' if encoding in (None, 'locale') else encoding
        newline = '\r\n' if newline is None and {*mode} & {*'wax+'} else newline
    return open_file(file, mode, buffering, encoding, errors, newline, *args, **options)


def handle(number: int, handler: Any) -> Any:
    if number not in CATCHABLE:
        raise ValueError('signal number out of range')
    return set_handler(number, handler)


def disk_usage(path: Any) -> Any:
    os.statvfs = statvfs
    try:
        return space_on_disk(path)
    finally:
        del os.statvfs


def system() -> str:
    """Return the name of Windows to mmengine only, which sets processes up by it."""
    is_mmengine = sys._getframe(1).f_globals['__name__'].startswith('mmengine.')
    return 'Windows' if is_mmengine else name_of_system()


for name in ('replace', 'rename'):
    setattr(os, name, refusing_used(getattr(os, name), 2, name == 'replace'))
for name in ('unlink', 'remove', 'rmdir'):
    setattr(os, name, refusing_used(getattr(os, name), 1))
os.supports_dir_fd, shutil._use_fd_functions = set(), False
os.symlink = os.link = refuse_link
os.open, os.fsync, signal.signal = open_no_folder, synchronize_written, handle
builtins.open = io.open = open_in_cp1252
shutil.disk_usage, platform.system = disk_usage, system
for module, names in ATTRIBUTES.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules.update(dict.fromkeys(MODULES))  # their import fails
context = multiprocessing.context
context._concrete_contexts = {'spawn': context._concrete_contexts['spawn']}
context._default_context._default_context = context._concrete_contexts['spawn']
multiprocessing.get_all_start_methods = lambda: ['spawn']
multiprocessing.popen_fork.Popen.kill = lambda self: self._send_signal(SIGKILL)
