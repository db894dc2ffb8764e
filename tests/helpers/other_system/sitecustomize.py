"""A system without what only POSIX has, for every Python process that has this folder in its path.

Modules and functions that Windows lacks are gone, and those that it has fail where they fail there:
a file that is open cannot be renamed or removed, a folder cannot be opened, there are no links, and
text has the encoding cp1252 and ends its lines with CR and LF where the code does not say otherwise.
``os.name`` and ``sys.platform`` stay, because Python's own library follows them.
"""

import builtins
import errno
import fcntl
import io
import mmap
import multiprocessing.context
import multiprocessing.popen_fork
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

# They keep what they need, as they have other ways on Windows.
import filelock  # noqa: F401
import filelock._native._unix  # noqa: F401  imported lazily
import psutil  # noqa: F401

MODULES = ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'tty', 'pty', 'multiprocessing.forkserver')
OF_OS = (
    *('fork', 'forkpty', 'posix_fallocate', 'posix_spawn', 'sched_getaffinity', 'statvfs'),
    *('fstatvfs', 'sysconf', 'sync', 'fdatasync', 'mkfifo', 'killpg', 'setsid', 'getuid'),
    *('geteuid', 'O_NOFOLLOW', 'O_DIRECTORY', 'O_NONBLOCK', 'pidfd_open'),
)
OF_SIGNAL = (
    *('pthread_sigmask', 'pthread_kill', 'sigtimedwait', 'sigwait', 'sigwaitinfo', 'sigpending'),
    *('alarm', 'setitimer', 'pause', 'siginterrupt', 'SIGKILL', 'SIGHUP', 'SIGUSR1', 'SIGUSR2'),
    *('SIGALRM', 'SIGCHLD', 'SIGCONT', 'SIGSTOP', 'SIGQUIT', 'SIGPIPE'),
)
CATCHABLE = [signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE]
READ_ONLY = os.O_RDONLY
SIGKILL, ACCESS_MODE = signal.SIGKILL, 3
disk_status, flags_of = os.statvfs, fcntl.fcntl


def in_use(path: object) -> bool:
    """Whether this process has a file, or a file in a folder, open or in its memory."""
    path = os.path.realpath(os.fspath(path))
    if isinstance(path, bytes) or path.startswith(('/dev/', '/proc/')):
        return False
    used = []
    for name in os.listdir('/proc/self/fd'):
        try:
            used.append(os.readlink(f'/proc/self/fd/{name}'))
        except OSError:  # of the listing itself
            continue
    with opened('/proc/self/maps') as maps:
        used += [line.split(maxsplit=5)[5].rstrip('\n') for line in maps if '/' in line]
    return any(name == path or name.startswith(path + os.sep) for name in used)


def refusing(function: Callable, number_of_paths: int, fails_if_there: bool = False) -> Callable:
    @wraps(function)
    def changed(*args: object, **kwargs: object) -> object:
        for path in args[:number_of_paths]:
            if not kwargs and in_use(path):
                raise PermissionError(errno.EACCES, 'in use by a process (WinError 32)', str(path))
        if number_of_paths == 2 and os.path.lexists(args[1]):
            if fails_if_there:
                raise FileExistsError(errno.EEXIST, 'is there (WinError 183)', str(args[1]))
            if os.path.isdir(args[1]):
                raise PermissionError(errno.EACCES, 'a folder (WinError 5)', str(args[1]))
        return function(*args, **kwargs)

    return changed


def without_links(source: object, target: object, *args: object, **kwargs: object) -> None:
    raise OSError(errno.EPERM, 'a privilege is not held (WinError 1314)', str(target))


def open_descriptor(path: object, flags: int, *args: object, **kwargs: object) -> int:
    is_temporary = flags & os.O_TMPFILE == os.O_TMPFILE  # a file, as Windows has it, too
    if os.path.isdir(path) and not is_temporary:
        raise PermissionError(errno.EACCES, 'Permission denied', str(path))
    return descriptor_of(path, flags, *args, **kwargs)


def fsync(file: object) -> None:
    number = file if isinstance(file, int) else file.fileno()
    if flags_of(number, fcntl.F_GETFL) & ACCESS_MODE == READ_ONLY:
        raise OSError(errno.EBADF, 'Bad file descriptor')
    synchronize(file)


def open_text(file, mode='r', buffering=-1, encoding=None, errors=None, newline=None, *args, **more):
    if 'b' not in mode:
        encoding = 'cp1252' if encoding in (None, 'locale') else encoding
        newline = '\r\n' if newline is None and set(mode) & set('wax+') else newline
    return opened(file, mode, buffering, encoding, errors, newline, *args, **more)


def handle(number: int, handler: object) -> object:
    if number not in CATCHABLE:
        raise ValueError('signal number out of range')
    return set_handler(number, handler)


opened, descriptor_of, synchronize, set_handler = io.open, os.open, os.fsync, signal.signal
os.supports_dir_fd, shutil._use_fd_functions = set(), False
for name in ('replace', 'rename'):
    setattr(os, name, refusing(getattr(os, name), 2, name == 'rename'))
for name in ('unlink', 'remove', 'rmdir'):
    setattr(os, name, refusing(getattr(os, name), 1))
os.symlink = os.link = without_links
os.open, os.fsync, signal.signal = open_descriptor, fsync, handle
builtins.open = io.open = open_text
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(
    *(
        n * disk_status(path).f_frsize
        for n in (disk_status(path).f_blocks, 0, disk_status(path).f_bavail)
    )
)
for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (mmap, ('MADV_DONTNEED',))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules.update(dict.fromkeys(MODULES))  # which makes their import fail
context = multiprocessing.context
context._concrete_contexts = {'spawn': context._concrete_contexts['spawn']}
context._default_context._default_context = context._concrete_contexts['spawn']
context.DefaultContext.get_all_start_methods = lambda self: ['spawn']
multiprocessing.popen_fork.Popen.kill = lambda self: self._send_signal(SIGKILL)
