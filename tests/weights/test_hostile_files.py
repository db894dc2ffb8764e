"""Damaged and hostile checkpoints: each is an error or a correct load, and nothing in it is run.

The files are read in a process of their own, so that a crash, a hang or a lack of memory is seen.
"""

import functools
import json
import multiprocessing
import pickle
import random
import resource
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pickles import BEGIN, END, call, name, records, saved, text, with_pickle, zipped
from mmengine.logging import HistoryBuffer

from xcit_mm import UserError
from xcit_mm.weights.read import read_checkpoint

TUPLE, CALL = b't', b'R'
HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
RECONSTRUCT = 'numpy._core.multiarray._reconstruct'
SECONDS = 60  # for a file; they take a hundredth
MEMORY = 2**26  # bytes beyond what was taken before; the bombs ask for a quarter of a GB and more
SIZE = 2**15  # of a value that a file uses again and again


def run_state() -> dict[str, Any]:
    """What mmengine's runner writes."""
    torch.manual_seed(2)
    return {
        'meta': {'iter': 7, 'palette': np.array([[1, 2, 3]])},
        'state_dict': {f'layer{i}.weight': torch.randn(9, 5) for i in range(20)},
        'message_hub': {'log_scalars': {'loss': HistoryBuffer([1.0] * 50, [1] * 50)}},
        'optimizer': {'state': {i: {'step': 3, 'exp_avg': torch.randn(9)} for i in range(3)}},
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return [*a] == [*b] and all(same(a[k], b[k]) for k in a)
    write = saved if isinstance(a, torch.Tensor) else pickle.dumps
    return write(a) == write(b)


@pytest.fixture
def read_all(tmp_path) -> Callable[[dict[str, bytes], Any], dict[str, str | None]]:
    """Read files, by name: the error of each, or None. What is read must equal the content."""

    def read(files: dict[str, bytes], content: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        statistics = dict(HistoryBuffer([1.0], [1])._statistics_methods)
        for key, data in files.items():
            (tmp_path / 'file.pth').write_bytes(data)
            signal.alarm(SECONDS)  # ends the process, also within C
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            message = None
            try:
                loaded = read_checkpoint(tmp_path / 'file.pth')
                assert content is None or same(content, loaded), f'{key}: loaded as something else'
            except UserError as error:
                message = str(error)
                assert 'file.pth' in message and message.isprintable() and len(message) < 1000
            growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            assert growth < MEMORY, f'{key}: {growth} bytes'
            assert HistoryBuffer._statistics_methods == statistics, key
            with (tmp_path / 'outcomes').open('a') as file:
                file.write(json.dumps([key, message]) + '\n')

    def read_in_a_process(files: dict[str, bytes], content: Any = None) -> dict[str, str | None]:
        child = multiprocessing.get_context('fork').Process(target=read, args=(files, content))
        child.start()
        child.join()
        lines = (tmp_path / 'outcomes').read_text().splitlines()
        outcomes = dict(map(json.loads, lines))
        assert child.exitcode == 0, f'after {[*outcomes][-1:]}: exit code {child.exitcode}'
        assert outcomes.keys() == files.keys()
        return outcomes

    return read_in_a_process


def damaged(file: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """A file with each kind of damage so many times, at random places."""

    def flipped(*bits: int) -> bytes:
        changed = bytearray(file)
        for bit in bits:
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    rng = random.Random(0)
    directory = 8 * file.index(b'PK\1\2')
    marks = [i for i in range(len(file)) if file[i : i + 4] in (b'PK\1\2', b'PK\3\4', b'PK\5\6')]
    for i in range(count):
        length, start = rng.randrange(len(file)), rng.randrange(len(file))
        mark, size = rng.choice(marks), rng.choice([1, 64, 4096])
        yield f'cut {i} at {length}', file[:length]
        yield f'cut {i} at the mark {mark}', file[: mark + 9 * (i % 2)]
        yield f'bit {i}', flipped(rng.randrange(8 * len(file)))
        yield f'bit {i} of the directory', flipped(rng.randrange(directory, 8 * len(file)))
        yield f'bit {i} of the pickle', flipped(rng.randrange(8 * 2000))
        yield f'bit {i} of a header', flipped(8 * mark + rng.randrange(8 * 22))
        yield f'bits {i}', flipped(*rng.sample(range(8 * len(file)), 9))
        yield f'zeros {i}', file[:start] + bytes(size) + file[start + size :]
        yield f'hole {i}', file[:start] + file[start + size :]
        yield f'insertion {i}', file[:start] + rng.randbytes(size) + file[start:]


@pytest.mark.parametrize('count', [20, pytest.param(500, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_whole(read_all, count):
    outcomes = read_all(dict(damaged(saved(run_state()), count)), run_state())
    refused = [key for key, message in outcomes.items() if message]
    assert all(outcomes[key] for key in outcomes if key.startswith('cut'))
    assert 0.6 * len(outcomes) < len(refused) < len(outcomes)


def test_a_rearranged_archive_is_refused_or_whole(read_all):
    file = saved(run_state())
    torch.serialization.set_crc32_options(False)
    try:
        without_checksums = saved(run_state())
    finally:
        torch.serialization.set_crc32_options(True)
    parts = records(file)
    root = next(iter(parts)).partition('/')[0]
    storages = {key: data for key, data in parts.items() if '/data/' in key}
    refused = {
        **{f'{key} cut': zipped(parts | {key: data[:-1]}) for key, data in storages.items()},
        **{f'{key} longer': zipped(parts | {key: data + b'0'}) for key, data in storages.items()},
        'no pickle': zipped({k: v for k, v in parts.items() if k != f'{root}/data.pkl'}),
        'compressed': zipped(parts, zipfile.ZIP_DEFLATED),
        'two folders': zipped({**parts, 'x/version': b'3'}),
        'a folder': zipped({**parts, f'{root}/data/': b''}),
        'alike': zipped({**parts, f'{root}/DATA/0': b''}),
        'a program': zipped({**parts, f'{root}/constants.pkl': b'\x80\2).'}),
        'no byte order': zipped({**parts, f'{root}/byteorder': b'odd'}),
        'no checksums': without_checksums,
    }
    either = {
        **{f'without {key}': zipped({k: v for k, v in parts.items() if k != key}) for key in parts},
        'with a tail': file + bytes(1000),
        'twice': file + file,
    }
    order = {'another order': zipped(dict(reversed(parts.items())))}
    outcomes = read_all(refused | either | order, run_state())
    assert all(outcomes[key] for key in refused)
    assert outcomes['another order'] is None


def number(value: int) -> bytes:
    return b'\x8a\x0a' + value.to_bytes(10, 'little', signed=True)


def numbers(*values: int) -> bytes:
    return b'(' + b''.join(map(number, values)) + TUPLE


def storage(num: int = 10, key: bytes | None = None, kind: str = 'torch.FloatStorage') -> bytes:
    parts = text('storage'), name(kind), key or text('0'), text('cpu'), number(num)
    return b'(' + b''.join(parts) + TUPLE + b'Q'


def tensor(
    size: tuple, stride: tuple, offset: int = 0, of: bytes | None = None, hooks: bytes = b'N'
) -> bytes:
    parts = of or storage(), number(offset), numbers(*size), numbers(*stride), b'\x88', hooks
    return call('torch._utils._rebuild_tensor_v2', *parts)


def array(shape: bytes, kind: bytes, content: bytes) -> bytes:
    begin = call(RECONSTRUCT, name('numpy.ndarray'), numbers(0), text('b'))
    return begin + b'(' + number(1) + shape + kind + b'\x89' + content + TUPLE + b'b'


def dtype(code: str = 'f8', *structure: bytes) -> bytes:
    state = number(3), text('|'), *(structure or (b'N',) * 3), number(8), number(1), number(0)
    begin = call('numpy.dtype', text(code), b'\x89', b'\x88')
    return begin + b'(' + b''.join(state) + TUPLE + b'b'


def latin(size: int) -> bytes:
    return call('_codecs.encode', text('A' * size), text('latin1'))


def payloads(trace: str) -> Iterator[tuple[str, bytes]]:
    """Pickles that make the folder ``trace``, or begin to."""
    folder, command = text(trace), text(f'mkdir {trace}')
    calls = {
        'os.mkdir': folder,
        'posix.system': command,
        '__builtin__.eval': text(f"__import__('os').mkdir({trace!r})"),
        'builtins.__import__': text('antigravity'),
        'torch.load': folder,
        'numpy.load': folder,
        'functools.partial': name('os.mkdir') + folder,
        'pathlib.PosixPath': folder,
        'torch._utils._rebuild_wrapper_subclass': folder,
        'torch.storage._load_from_bytes': latin(9),
        'numpy.ndarray': numbers(1) + text('O') + latin(8),
    }
    for path, args in calls.items():
        module, _, attribute = path.rpartition('.')
        yield f'reduce {path}', BEGIN + call(path, args) + END
        stack_global = text(module) + text(attribute) + b'\x93('
        yield f'stack global {path}', b'\x80\4' + stack_global + args + TUPLE + CALL + END
        yield f'under our alias {path}', BEGIN + call(f'xcit_mm.{path}', args) + END
    yield 'an escaped name', BEGIN + b'cnumpy\n\\x64type\n(' + text('f8') + TUPLE + CALL + END
    yield 'obj', BEGIN + b'(' + name('os.mkdir') + folder + b'o' + END
    yield 'inst', BEGIN + b'(' + folder + b'ios\nmkdir\n' + END
    new = name('subprocess.Popen') + b'(' + command + TUPLE
    yield 'newobj', BEGIN + new + b'\x81' + END
    yield 'newobj_ex', b'\x80\4' + new + b'}\x92' + END
    yield 'extension', BEGIN + b'\x82\1' + END
    yield 'persistent text', BEGIN + b'P' + trace.encode() + b'\n' + END
    method = call('builtins.getattr', name(HISTORY), text('register_statistics'))
    yield 'a method called', BEGIN + method + b'(' + name(HISTORY) + TUPLE + CALL + END
    for what in (HISTORY, 'builtins.getattr', 'numpy.dtype', 'argparse.Namespace'):
        yield f'a state for {what}', BEGIN + name(what) + b'}' + text('a') + b'Nsb' + END
    yield 'a state for a tensor', BEGIN + tensor((1,), (1,)) + b'(' + storage() + TUPLE + b'b' + END
    for what in (b'N', text('0'), b')', numbers(1), b'(' + text('module') + folder * 2 + TUPLE):
        yield f'persistent {what[:20]!r}', BEGIN + what + b'Q' + END


def test_nothing_in_a_file_is_run(read_all, tmp_path):
    trace = tmp_path / 'trace'
    outcomes = read_all({key: with_pickle(data) for key, data in payloads(str(trace))})
    assert not trace.exists()
    assert [key for key, message in outcomes.items() if not message] == ['an escaped name']


def doubled(begin: bytes, pair: bytes) -> bytes:
    """50 pairs, each of which is twice the one before it."""
    memo = [bytes([i]) for i in range(51)]
    steps = (pair % {b'i': b'h' + memo[i]} + b'q' + memo[i + 1] for i in range(50))
    return begin + b'q\0' + b''.join(steps)


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small pickles that take memory or time without end, or end the process."""
    scalar = functools.partial(call, 'numpy._core.multiarray.scalar')
    yield 'bytearray', call('builtins.bytearray', number(2**28))
    yield 'torch.Tensor', call('torch.Tensor', number(10**12))
    yield 'hex of hex', call('_codecs.encode', latin(100), text('hex'))
    yield 'memo', b'r' + struct.pack('<I', 2**31)
    yield 'bytes', b'\x8e' + struct.pack('<Q', 2**33) + b'a'
    yield 'frame', b'\x95' + struct.pack('<Q', 2**33) + b'a'
    yield 'integer', b'\x8b' + struct.pack('<i', 2**31 - 1)
    for size in ((10**12,), (10**6, 10**6), (2**62, 4)):
        yield f'tensor {size} of the same number', tensor(size, (0,) * len(size))
    for size, stride in ((11, 1), (2, 2**62), (-1, 1), (10, -1)):
        yield f'tensor {size} {stride}', tensor((size,), (stride,))
    yield 'tensor of two negative sizes', tensor((-1, -8), (1, 1))
    yield 'tensor with a stride too many', tensor((10,), (1, 1))
    yield 'tensor far in its storage', tensor((1,), (1,), offset=2**61)
    yield 'tensor before its storage', tensor((1,), (1,), offset=-1)
    yield 'tensor without storage', tensor((1,), (1,), of=b'N')
    for num in (11, 2**61, 2**64, -1):
        yield f'storage of {num}', tensor((1,), (1,), of=storage(num))
    for key in (number(0), text('../0'), text('9'), call('builtins.bytes')):
        yield f'storage {key[:9]}', tensor((1,), (1,), of=storage(key=key))
    yield 'storage of another size', tensor((2,), (1,), of=storage(kind='torch.DoubleStorage'))
    for shape in ((10**9,), (-1,), (-1, -8), (2**62, 4), (1,) * 1000):
        yield f'array {shape[:5]}', array(numbers(*shape), dtype('i1'), latin(8))
    yield 'array of objects', array(numbers(1), dtype('O'), b']Na')
    yield 'array of empty strings', array(numbers(2**20), dtype('U0'), latin(0))
    yield 'string', scalar(dtype(f'S{10**9}'), latin(1))
    yield 'short number', scalar(dtype(), latin(4))
    yield 'deep keys', b'})' + b'\x85' * 10**5 + b'Ns'
    yield 'keys of the same keys', b'}' + doubled(b')', b'%(i)s%(i)s\x86') + b'Ns'
    yield 'lists of the same lists', doubled(b']', b'](%(i)s%(i)se')
    long = [b'\x8a\x0a' + (i * (2**61 - 1)).to_bytes(10, 'little') for i in range(4000)]
    yield 'keys of one hash', b'}(' + b'N'.join(long) + b'Nu'
    for path in ('builtins.set', 'collections.Counter', 'collections.OrderedDict'):
        yield f'{path} of one hash', call(path, b'](' + b''.join(long) + b'e')
    yield 'nothing', b''
    yield 'an empty stack', b'sssss'


def copies() -> Iterator[tuple[str, bytes]]:
    """Pickles of some 100 KB that have a value copied 4,000 times, until it takes 130 MB."""
    encode = name('_codecs.encode') + b'(h\0' + text('latin1') + b'tR'
    yield 'bytes', text('A' * SIZE), encode
    begin = call(RECONSTRUCT, name('numpy.ndarray'), numbers(0), b'N')
    state = b'(' + number(1) + numbers(SIZE) + dtype('i1') + b'\x89h\0' + TUPLE + b'b'
    yield 'arrays', latin(SIZE), begin + state
    scalar = call('numpy._core.multiarray.scalar', dtype(f'S{SIZE}'), b'h\0')
    yield 'strings', latin(SIZE), scalar
    keys = b''.join(text(key) + b'h\0' for key in ('_log_history', '_count_history'))
    history = name(HISTORY) + b')\x81}(' + keys + text('max_length') + number(9) + b'ub'
    yield 'histories', array(numbers(SIZE), dtype('i1'), latin(SIZE)), history
    integers = [b'J' + struct.pack('<i', i) for i in range(SIZE // 8)]
    counts = b'}(' + b'N'.join(integers) + b'Nu'
    yield 'counters', counts, call('collections.Counter', b'h\0')
    yield 'states', counts, call('collections.OrderedDict') + b'h\0b'
    yield 'sizes', b'(' + b'K\1' * SIZE + TUPLE, call('torch.Size', b'h\0')


def test_bombs_are_refused(read_all):
    files = {key: with_pickle(BEGIN + data + END) for key, data in bombs()}
    for key, value, use in copies():
        repeated = BEGIN + value + b'q\0' + b'](' + use * 4000 + b'e' + END
        files[f'copies: {key}'] = with_pickle(repeated)
    zeros = {'file/data.pkl': BEGIN + b'}' + END, 'file/data/0': bytes(2**27)}
    files['deflated'] = zipped(zeros, zipfile.ZIP_DEFLATED)
    outcomes = read_all(files)
    assert all(outcomes.values()), [key for key, message in outcomes.items() if not message]


def test_what_a_file_hides_in_a_value_is_left_out(read_all, tmp_path):
    """Methods, fields of a dtype, hooks of a tensor, and values that contain themselves."""
    values = array(numbers(1), dtype(), latin(8))
    state = b'}(' + text('_log_history') + values + text('_count_history') + values
    state += text('max_length') + number(9) + text('statistics_methods')
    state += b'}' + text('mean') + name('torch.Size') + b'su'
    fields = b'(' + text('a') + TUPLE, b'}' + text('a') + b'(' + dtype() + number(0) + TUPLE + b's'
    hooks = call('collections.OrderedDict') + number(0) + name('torch.Size') + b's'
    parameter = call('torch._utils._rebuild_parameter', tensor((2,), (1,)), b'\x88', hooks)
    deep = 10**5
    files = {
        'methods': name(HISTORY) + b')\x81' + state + b'b',
        'a method': call('builtins.getattr', name(HISTORY), text('__globals__')),
        'fields': array(numbers(1), dtype('f8', b'N', *fields), latin(8)),
        'deep lists': b']' * deep + b'a' * (deep - 1),
        'deep tuples': b')' + b'\x85' * deep,
        'a list of itself': b']q\0h\0a',
        'hooks of a parameter': parameter,
        'hooks': tensor((2,), (1,), hooks=hooks),
    }
    files = {key: with_pickle(BEGIN + data + END) for key, data in files.items()}
    assert not any(read_all(files).values())
    for key in ('hooks', 'hooks of a parameter'):
        (tmp_path / 'file.pth').write_bytes(files[key])
        assert not read_checkpoint(tmp_path / 'file.pth')._backward_hooks
