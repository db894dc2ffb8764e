"""Tools in processes of their own, without the seconds that Python takes to import PyTorch.

A server imports PyTorch, the frameworks and xcit_mm once and forks a process for each tool. All
processes of pytest-xdist share it. A forked process is like a real one in its arguments,
environment, output, signals and exit code.
"""

import atexit
import faulthandler
import fcntl
import functools
import gc
import json
import multiprocessing
import os
import random
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
FOLDER = 'XCIT_MM_TOOL_SERVER'  # variable with the folder of the socket
SOCKET, PYTHON = 'socket', 'python'
MAX_FILES = 64  # that a process inherits


class Process:
    """A process forked by the server, with the interface of ``subprocess.Popen``.

    It is killed when the process that asked for it ends. ``argv`` is a script and its arguments, or
    ['-c', program], or ['-m', module, ...]; ``more_files`` are the numbers of further open files
    that it inherits. With ``only_parse`` it exits once the arguments are read and the config is
    loaded with its options.
    """

    def __init__(
        self,
        argv: list[str],
        stdout: IO,
        stderr: IO,
        more_files: Sequence[int] = (),
        cwd: Path = ROOT,
        env: dict[str, str] | None = None,
        only_parse: bool = False,
    ) -> None:
        self.args = argv
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(server_folder() / SOCKET))
        request = dict(
            argv=argv,
            files={1: stdout.fileno(), 2: stderr.fileno(), **{n: n for n in more_files}},
            blocked=list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            cwd=str(cwd),
            env=dict(os.environ if env is None else env),
            only_parse=only_parse,
        )
        socket.send_fds(self._connection, [b' '], list(request['files'].values()))
        self._connection.sendall(f'{json.dumps(request)}\n'.encode())
        answer = self._connection.recv(16)
        assert answer, 'the server has ended'
        self.pid = int(answer)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._connection.recv(16))
            self._connection.close()
        return self.returncode


@functools.cache
def server_folder() -> Path:
    """Start the server of this process, or find that of its parents; return its folder."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    folder = Path(tempfile.mkdtemp(prefix='tool_server'))
    variables = {
        'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tests"}',
        'OMP_NUM_THREADS': '1',  # a forked process has none of the threads that OpenMP keeps
        'HF_HUB_OFFLINE': '1',
        'KINETO_LOG_LEVEL': '99',
    }
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        cwd=ROOT,
        env=os.environ | variables,
        stdin=subprocess.PIPE,  # it ends when this process does
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout.readline(), 'the server has ended'
    server_folder.process = server  # whose standard input then stays open
    os.environ[FOLDER] = str(folder)
    return folder


def forked_python() -> str:
    """Return a stand-in for the interpreter, for code that starts processes itself (torchrun)."""
    return str(server_folder() / PYTHON)


def stand_in() -> None:
    """Have the server run the arguments of this process, and end as the forked process does."""
    open_files = [path for path in Path('/proc/self/fd').iterdir() if path.exists()]
    files = [int(path.name) for path in open_files if int(path.name) > 2]
    argv = sys.argv[1:]
    while argv[0].startswith('-') and argv[0] not in ('-c', '-m'):  # options of Python
        del argv[: 2 if argv[0] in ('-X', '-W') else 1]
    process = Process(argv, sys.stdout, sys.stderr, files, Path.cwd())
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)
    for number in passed_on:
        signal.signal(number, lambda number, frame: os.kill(process.pid, number))
    code = process.wait()
    if code < 0:
        for number in passed_on:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def import_everything() -> None:
    """Import what the tools import at some time."""
    import timm  # noqa: F401
    from PIL import Image
    from yapf.yapflib import yapf_api

    # Unformatted, the text of a config means the same and is there a second earlier.
    yapf_api.FormatCode = lambda text, **options: (text, True)

    from xcit_mm.base.environment import require

    for package in ('mmdet', 'mmseg'):
        for part in ('models', 'datasets', 'evaluation', 'visualization', 'engine'):
            require(f'{package}.{part}')
    require('xcit_mm.train.report')
    for module in ('torch.distributed.run', 'torch.utils.cpp_extension'):
        require(module)
    require('matplotlib.backends.backend_svg')
    Image.init()


def listen(folder: Path) -> socket.socket:
    """Let processes connect, which wait until the server answers them."""
    os.environ[FOLDER] = str(folder)
    program = f'import sys\nsys.path[0] = {str(Path(__file__).parent)!r}\n'
    python = Path(forked_python())
    python.write_text(f'#!{sys.executable}\n{program}import tool_server\ntool_server.stand_in()')
    python.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / SOCKET))
    listening.listen()
    print('ready', flush=True)
    return listening


def serve(folder: Path, listening: socket.socket) -> NoReturn:
    """Fork a process for every request, until the process that started the server ends."""
    gc.collect()
    gc.freeze()  # the memory of what is imported stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keeps no zombies
    while select.select([listening, sys.stdin], [], [])[0] == [listening]:
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(connection)
        connection.close()
    shutil.rmtree(folder)
    os._exit(0)


def answer(connection: socket.socket) -> NoReturn:
    """Fork the process of a request, and tell the client its number and its exit code."""
    _, received, _, _ = socket.recv_fds(connection, 1, MAX_FILES)
    with connection.makefile() as file:
        request = json.loads(file.readline())
    child = os.fork()
    if not child:
        connection.close()
        request['files'] = dict(zip(map(int, request['files']), received, strict=True))
        exit_after(run, **request)
    for file in received:
        os.close(file)
    connection.sendall(str(child).encode())
    if connection in select.select([connection, os.pidfd_open(child)], [], [])[0]:
        os.kill(child, signal.SIGKILL)  # the client has ended
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(str(code).encode())
    os._exit(0)


def exit_after(function: Callable[..., None], **arguments: Any) -> NoReturn:
    """Call a function and exit as Python does, but without freeing a gigabyte of modules."""
    code = 0
    try:
        function(**arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # closed
            stream.flush()
    os._exit(code)


def run(
    argv: list[str],
    files: dict[int, int],
    blocked: list[int],
    cwd: str,
    env: dict[str, str],
    only_parse: bool,
) -> None:
    """Run a script as if this process had been started with it.

    ``files`` are numbers of open files by the numbers that they are to have, and ``blocked`` the
    signals that the process which asked for this one blocks. See :class:`Process` for the rest.
    """
    import numpy as np
    import torch

    os.setsid()
    files = {0: os.open(os.devnull, os.O_RDONLY), **files}
    free = 1 + max(*files, *files.values())
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, free) for number, file in files.items()}
    os.closerange(3, free)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_executable(forked_python())
    os.chdir(cwd)
    folder = os.environ[FOLDER]
    os.environ.clear()
    os.environ.update(env, **{FOLDER: folder})
    if 'PYTHONFAULTHANDLER' in env:
        faulthandler.enable()
    for seed in (random.seed, np.random.seed, torch.seed):
        seed()
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    sys.path[1:1] = filter(None, env.get('PYTHONPATH', '').split(os.pathsep))
    if only_parse:
        ArgumentParser.parse_args = stop_after_parsing
    sys.argv = argv
    if argv[0] == '-c':
        sys.argv = ['-c', *argv[2:]]
        exec(compile(argv[1], '<string>', 'exec'), {'__name__': '__main__'})
    elif argv[0] == '-m':
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name='__main__', alter_sys=True)
    else:
        runpy.run_path(argv[0], run_name='__main__')


parse_args = ArgumentParser.parse_args


def stop_after_parsing(parser: ArgumentParser, *args: object) -> NoReturn:
    from xcit_mm.config.load import load_config

    parsed = vars(parse_args(parser, *args))
    if parsed.get('config') and 'cfg_options' in parsed:
        load_config(parsed['config'], parsed['cfg_options'])
    sys.exit()


if __name__ == '__main__':
    folder = Path(sys.argv[1])
    listening = listen(folder)
    import_everything()
    serve(folder, listening)
