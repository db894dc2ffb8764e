"""Hostile checkpoints: nothing in them is run."""

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.pickles import zipped
from mmengine.logging import HistoryBuffer

from xcit_mm import UserError
from xcit_mm.network.weights.read import read_checkpoint

BEGIN, END, TUPLE, CALL = b'\x80\2', b'.', b't', b'R'
HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
RECONSTRUCT = 'numpy._core.multiarray._reconstruct'


# Steps of pickles.
def text(value: str) -> bytes:
    return b'X' + struct.pack('<I', len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b'\x8a\x0a' + value.to_bytes(10, 'little', signed=True)


def sequence(*parts: bytes) -> bytes:
    return b'(' + b''.join(parts) + TUPLE


def numbers(*values: int) -> bytes:
    return sequence(*map(number, values))


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition('.')
    return f'c{module}\n{attribute}\n'.encode()


def call(path: str, *args: bytes) -> bytes:
    return name(path) + sequence(*args) + CALL


def latin(size: int) -> bytes:
    return call('_codecs.encode', text('A' * size), text('latin1'))


def array(shape: bytes, kind: bytes, content: bytes) -> bytes:
    begin = call(RECONSTRUCT, name('numpy.ndarray'), numbers(0), text('b'))
    return begin + sequence(number(1), shape, kind, b'\x89', content) + b'b'


def dtype(code: str = 'f8', *structure: bytes) -> bytes:
    state = number(3), text('|'), *(structure or (b'N',) * 3), number(8), number(1), number(0)
    return call('numpy.dtype', text(code), b'\x89', b'\x88') + sequence(*state) + b'b'


def with_pickle(content: bytes) -> bytes:
    """A file with this pickle and one storage of 10 floats."""
    files = {'data.pkl': content, 'version': b'3\n', 'byteorder': b'little', 'data/0': bytes(40)}
    return zipped({f'file/{path}': data for path, data in files.items()})


def payloads(trace: str) -> Iterator[tuple[str, bytes]]:
    """Pickles that make the folder ``trace``, begin to, or use numbers as addresses."""
    folder, command = text(trace), text(f'mkdir {trace}')
    calls = {
        'os.mkdir': folder,
        'posix.system': command,
        '__builtin__.eval': text(f"__import__('os').mkdir({trace!r})"),
        'torch.load': folder,
        'numpy.load': folder,
        'functools.partial': name('os.mkdir') + folder,
        'pathlib.PosixPath': folder,
        'mmengine.utils.mkdir_or_exist': folder,
        'torch._utils._rebuild_wrapper_subclass': folder,
        'torch.storage._load_from_bytes': latin(9),
        'torch.nn.Linear': number(2) + number(2),
        'numpy.ndarray': numbers(1) + text('O') + latin(8),
    }
    for path, args in calls.items():
        module, _, attribute = path.rpartition('.')
        yield f'reduce {path}', BEGIN + call(path, args) + END
        stack_global = text(module) + text(attribute) + b'\x93'
        yield f'stack global {path}', b'\x80\4' + stack_global + sequence(args) + CALL + END
    yield 'obj', BEGIN + b'(' + name('os.mkdir') + folder + b'o' + END
    yield 'inst', BEGIN + b'(' + folder + b'ios\nmkdir\n' + END
    new = name('subprocess.Popen') + sequence(command)
    yield 'newobj', BEGIN + new + b'\x81' + END
    yield 'newobj_ex', b'\x80\4' + new + b'}\x92' + END
    yield 'extension', BEGIN + b'\x82\1' + END
    yield 'persistent text', BEGIN + b'P' + trace.encode() + b'\n' + END
    method = call('builtins.getattr', name(HISTORY), text('register_statistics'))
    yield 'a method called', BEGIN + method + sequence(name('builtins.set')) + CALL + END
    for what in (HISTORY, 'builtins.getattr', 'numpy.dtype'):
        yield f'a state for {what}', BEGIN + name(what) + b'}' + text('a') + b'Nsb' + END
    yield 'array of objects', BEGIN + array(numbers(1), dtype('O'), b']Na') + END
    field = sequence(text('a')), b'}' + text('a') + sequence(dtype('O'), number(0)) + b's'
    yield 'a structure', BEGIN + array(numbers(1), dtype('V8', b'N', *field), latin(8)) + END
    for shape in ((10**9,), (-1,), (-1, -8), (2**62, 4)):
        yield f'array {shape}', BEGIN + array(numbers(*shape), dtype('i1'), latin(8)) + END


def test_nothing_in_a_file_is_run(tmp_path):
    trace, path = tmp_path / 'trace', tmp_path / 'file.pth'
    for key, data in payloads(str(trace)):
        path.write_bytes(with_pickle(data))
        with pytest.raises(UserError, match=r'file\.pth cannot be read: it is') as error:
            pytest.fail(f'{key}: {read_checkpoint(path)}')
        assert str(error.value).isprintable() and len(str(error.value)) < 1000, key
    assert not trace.exists()


def test_fields_of_a_dtype_are_left_out(tmp_path):
    """They could say that the numbers of an array are addresses of objects."""
    field = sequence(text('a')), b'}' + text('a') + sequence(number(1), number(0)) + b's'
    data = array(numbers(1), dtype('f8', b'N', *field), latin(8))
    (tmp_path / 'file.pth').write_bytes(with_pickle(BEGIN + data + END))
    assert read_checkpoint(tmp_path / 'file.pth').dtype == np.float64


def test_methods_in_a_file_are_left_out(tmp_path):
    """Those of mmengine's histories hold for all histories of the process."""
    methods = dict(HistoryBuffer([1.0], [1])._statistics_methods)
    values = array(numbers(1), dtype(), latin(8))
    state = b'}(' + text('_log_history') + values + text('_count_history') + values
    state += text('max_length') + number(9) + text('statistics_methods')
    state += b'}' + text('mean') + name('builtins.set') + b'su'
    (tmp_path / 'file.pth').write_bytes(
        with_pickle(BEGIN + name(HISTORY) + b')\x81' + state + b'b' + END)
    )
    assert type(read_checkpoint(tmp_path / 'file.pth')) is HistoryBuffer
    assert HistoryBuffer._statistics_methods == methods
