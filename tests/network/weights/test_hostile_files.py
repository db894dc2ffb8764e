"""Damaged and hostile checkpoints: each is an error or a correct load, and nothing in it is run."""

import functools
import json
import multiprocessing
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
from helpers.pickles import assert_same, records, saved, zipped
from mmengine.logging import HistoryBuffer

from xcit_mm import UserError
from xcit_mm.network.weights.read import read_checkpoint

SECONDS = 60  # for a file; they take a hundredth
MEMORY = 2**26  # bytes beyond what was used before; the bombs ask for a quarter of a GB and more
SIZE = 2**15  # of a value that a file uses again and again
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


def storage(num: int = 10, key: bytes | None = None, kind: str = 'torch.FloatStorage') -> bytes:
    return sequence(text('storage'), name(kind), key or text('0'), text('cpu'), number(num)) + b'Q'


def tensor(
    size: tuple, stride: tuple, offset: int = 0, of: bytes | None = None, hooks: bytes = b'N'
) -> bytes:
    parts = of or storage(), number(offset), numbers(*size), numbers(*stride), b'\x88', hooks
    return call('torch._utils._rebuild_tensor_v2', *parts)


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


def run_state() -> dict[str, Any]:
    """What mmengine's runner writes."""
    torch.manual_seed(2)
    return {
        'meta': {'iter': 7, 'palette': np.array([[1, 2, 3]])},
        'state_dict': {f'layer{i}.weight': torch.randn(9, 5) for i in range(20)},
        'message_hub': {'log_scalars': {'loss': HistoryBuffer([1.0] * 50, [1] * 50)}},
        'optimizer': {'state': {i: {'step': 3, 'exp_avg': torch.randn(9)} for i in range(3)}},
    }


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def read_all(tmp_path) -> Callable[[dict[str, bytes], Any], dict[str, str | None]]:
    """Read files, by name: the error of each, or None. What is read must equal the content.

    This is done in a process of its own, so that a crash, a hang or a lack of memory is noticed.
    """
    path, outcomes = tmp_path / 'file.pth', tmp_path / 'outcomes'

    def read(files: dict[str, bytes], content: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        statistics = dict(HistoryBuffer([1.0], [1])._statistics_methods)
        for key, data in files.items():
            path.write_bytes(data)
            signal.alarm(SECONDS)  # ends the process, also within C
            before, message = peak(), None
            try:
                loaded = read_checkpoint(path)
                if content is not None:
                    assert_same(content, loaded)
            except UserError as error:
                message = str(error)
                assert 'file.pth' in message and message.isprintable() and len(message) < 1000
            assert peak() - before < MEMORY, key
            assert HistoryBuffer._statistics_methods == statistics, key
            with outcomes.open('a') as file:
                file.write(json.dumps([key, message]) + '\n')

    def read_in_a_process(files: dict[str, bytes], content: Any = None) -> dict[str, str | None]:
        child = multiprocessing.get_context('fork').Process(target=read, args=(files, content))
        child.start()
        child.join()
        read_ones = dict(map(json.loads, outcomes.read_text().splitlines()))
        assert child.exitcode == 0, f'after {[*read_ones][-1:]}: exit code {child.exitcode}'
        assert read_ones.keys() == files.keys()
        return read_ones

    return read_in_a_process


def flipped(file: bytes, *bits: int) -> bytes:
    changed = bytearray(file)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(file: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """A file with each kind of damage so many times, at random places."""
    rng = random.Random(0)
    directory = file.index(b'PK\1\2')
    marks = [i for i in range(len(file)) if file[i : i + 4] in (b'PK\1\2', b'PK\3\4', b'PK\5\6')]
    for i in range(count):
        length, bit, start = (rng.randrange(n) for n in (len(file), 8 * len(file), len(file)))
        mark, size = rng.choice(marks), rng.choice([1, 64, 4096])
        in_directory = rng.randrange(8 * directory, 8 * len(file))
        yield f'cut {i} at {length}', file[:length]
        yield f'cut {i} at the mark {mark}', file[: mark + 9 * (i % 2)]
        yield f'bit {i}: {bit}', flipped(file, bit)
        yield f'bit {i} of the directory: {in_directory}', flipped(file, in_directory)
        yield f'bit {i} of the pickle', flipped(file, rng.randrange(8 * 2000))
        yield f'bit {i} of a header', flipped(file, 8 * mark + rng.randrange(8 * 22))
        yield f'bits {i}', flipped(file, *rng.sample(range(8 * len(file)), 9))
        yield f'zeros {i}', file[:start] + bytes(size) + file[start + size :]
        yield f'hole {i}', file[:start] + file[start + size :]
        yield f'insertion {i}', file[:start] + rng.randbytes(size) + file[start:]


@pytest.mark.parametrize('count', [20, pytest.param(500, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_whole(read_all, count):
    file = saved(run_state())
    outcomes = read_all(dict(damaged(file, count)), run_state())
    refused = [key for key, message in outcomes.items() if message]
    assert all(outcomes[key] for key in outcomes if key.startswith('cut'))
    assert 0.6 * len(outcomes) < len(refused) < len(outcomes)


def test_a_rearranged_archive_is_refused_or_whole(read_all):
    file = saved(run_state())
    torch.serialization.set_crc32_options(False)
    without_checksums = saved(run_state())
    torch.serialization.set_crc32_options(True)
    parts = records(file)
    root = next(iter(parts)).partition('/')[0]
    files = {
        **{f'without {key}': zipped({k: v for k, v in parts.items() if k != key}) for key in parts},
        **{f'{key} cut': zipped({**parts, key: parts[key][:-1]}) for key in parts},
        **{f'{key} longer': zipped({**parts, key: parts[key] + b'\0'}) for key in parts},
        'compressed': zipped(parts, zipfile.ZIP_DEFLATED),
        'two folders': zipped({**parts, 'x/version': b'3'}),
        'a folder': zipped({**parts, f'{root}/data/': b''}),
        'alike': zipped({**parts, f'{root}/DATA/0': b''}),
        'another order': zipped(dict(reversed(parts.items()))),
        'a program': zipped({**parts, f'{root}/constants.pkl': b'\x80\2).'}),
        'no byte order': zipped({**parts, f'{root}/byteorder': b'odd'}),
        'no checksums': without_checksums,
        'with a tail': file + bytes(1000),
        'twice': file + file,
    }
    outcomes = read_all(files, run_state())
    kinds = ('compressed', 'two folders', 'a folder', 'alike', 'a program', 'no byte order')
    assert all(outcomes[key] for key in (*kinds, 'no checksums', f'without {root}/data.pkl'))
    assert all(outcomes[f'{root}/data/{i} {how}'] for i in range(23) for how in ('cut', 'longer'))
    assert outcomes['another order'] is None


def payloads(trace: str) -> Iterator[tuple[str, bytes]]:
    """Pickles that make the folder ``trace``, or begin to."""
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
        yield f'under our alias {path}', BEGIN + call(f'xcit_mm.{path}', args) + END
    yield 'obj', BEGIN + b'(' + name('os.mkdir') + folder + b'o' + END
    yield 'inst', BEGIN + b'(' + folder + b'ios\nmkdir\n' + END
    new = name('subprocess.Popen') + sequence(command)
    yield 'newobj', BEGIN + new + b'\x81' + END
    yield 'newobj_ex', b'\x80\4' + new + b'}\x92' + END
    yield 'extension', BEGIN + b'\x82\1' + END
    yield 'persistent text', BEGIN + b'P' + trace.encode() + b'\n' + END
    getattr_ = 'builtins.getattr'
    for owner, attribute in ((HISTORY, '__init__'), (HISTORY, '__globals__'), (HISTORY, 3)):
        key = number(attribute) if attribute == 3 else text(attribute)
        yield f'getattr {attribute}', BEGIN + call(getattr_, name(owner), key) + END
    yield 'getattr of others', BEGIN + call(getattr_, name('numpy.ndarray'), text('tofile')) + END
    method = call(getattr_, name(HISTORY), text('register_statistics'))
    yield 'a method called', BEGIN + method + sequence(name(getattr_)) + CALL + END
    for what in (HISTORY, getattr_, 'numpy.dtype', 'argparse.Namespace'):
        yield f'a state for {what}', BEGIN + name(what) + b'}' + text('a') + b'Nsb' + END
    yield 'a state for a tensor', BEGIN + tensor((1,), (1,)) + sequence(storage()) + b'b' + END
    for what in (b'N', text('0'), b')', numbers(1), sequence(text('module'), folder, folder)):
        yield f'persistent {what[:20]!r}', BEGIN + what + b'Q' + END


def test_nothing_in_a_file_is_run(read_all, tmp_path):
    trace = tmp_path / 'trace'
    files = {key: with_pickle(data) for key, data in payloads(str(trace))}
    outcomes = read_all(files)
    assert not trace.exists()
    assert all(outcomes.values()), [key for key, message in outcomes.items() if not message]


def doubled(begin: bytes, pair: bytes) -> bytes:
    """50 pairs, each of which is twice the one before it."""
    memo = [bytes([i]) for i in range(51)]
    steps = (pair % {b'i': b'h' + memo[i]} + b'q' + memo[i + 1] for i in range(50))
    return begin + b'q\0' + b''.join(steps)


def repeated(begin: bytes, value: bytes) -> bytes:
    """A list of a value 4,000 times, which may use what was begun with."""
    return BEGIN + begin + b'q\0' + b'](' + value * 4000 + b'e' + END


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small pickles that take memory or time without end, or end the process."""
    scalar = functools.partial(call, 'numpy._core.multiarray.scalar')
    large = 2**28
    yield 'bytearray', call('builtins.bytearray', number(large))
    yield 'torch.Tensor', call('torch.Tensor', number(10**12))
    yield 'torch.Size', call('torch.Size', numbers(-1, 10**20))
    yield 'hex of hex', call('_codecs.encode', latin(100), text('hex'))
    yield 'memo', b'r' + struct.pack('<I', 2**31)
    yield 'bytes', b'\x8e' + struct.pack('<Q', 2**33) + b'a'
    yield 'frame', b'\x95' + struct.pack('<Q', 2**33) + b'a'
    yield 'integer', b'\x8b' + struct.pack('<i', 2**31 - 1)
    sizes = (10**12,), (10**6, 10**6), (2**62, 4), (11,), (2,), (-1,), (-1, -8), (10,), (10,)
    strides = (0,), (0, 0), (0, 0), (1,), (2**62,), (1,), (1, 1), (-1,), (1, 1)
    for size, stride in zip(sizes, strides, strict=True):
        yield f'tensor {size} {stride}', tensor(size, stride)
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
    field = sequence(text('a')), b'}' + text('a') + sequence(dtype('O'), number(0)) + b's'
    yield 'addresses', array(numbers(1), dtype('f8', b'N', *field), latin(8))
    yield 'string', scalar(dtype(f'S{10**9}'), latin(1))
    yield 'short number', scalar(dtype(), latin(4))
    deep = 10**5
    yield 'deep lists', b']' * deep + b'a' * (deep - 1)
    yield 'deep tuples', b')' + b'\x85' * deep
    yield 'deep names', b'})' + b'\x85' * deep + b'Ns'
    yield 'deep names of a set', call('builtins.set', b'])' + b'\x85' * deep + b'a')
    yield 'names of the same names', b'}' + doubled(b')', b'%(i)s%(i)s\x86') + b'Ns'
    yield 'lists of the same lists', doubled(b']', b'](%(i)s%(i)se')
    keys = b''.join(b'\x8a\x0a' + (i * (2**61 - 1)).to_bytes(10, 'little') for i in range(4000))
    yield 'a set of one hash', call('builtins.set', b'](' + keys + b'e')
    yield 'nothing', b''
    yield 'an empty stack', b'sssss'


def copies() -> Iterator[tuple[str, bytes]]:
    """Pickles of some 100 KB that have a value copied until it takes 130 MB."""
    encoded = call('_codecs.encode', b'h\0', text('latin1'))
    yield 'bytes', repeated(text('A' * SIZE), encoded)
    begin = call(RECONSTRUCT, name('numpy.ndarray'), numbers(0), b'N')
    state = sequence(number(1), numbers(SIZE), dtype('i1'), b'\x89h\0') + b'b'
    yield 'arrays', repeated(latin(SIZE), begin + state)
    string = call('numpy._core.multiarray.scalar', dtype(f'S{SIZE}'), b'h\0')
    yield 'strings', repeated(latin(SIZE), string)
    keys = b''.join(text(key) + b'h\0' for key in ('_log_history', '_count_history'))
    history = name(HISTORY) + b')\x81}(' + keys + text('max_length') + number(9) + b'ub'
    yield 'histories', repeated(array(numbers(SIZE), dtype('i1'), latin(SIZE)), history)
    integers = [b'J' + struct.pack('<i', i) for i in range(SIZE // 8)]
    pairs = b'](' + b''.join(i + b'N\x86' for i in integers) + b'e'
    yield 'dicts', repeated(pairs, call('collections.OrderedDict', b'h\0'))
    yield 'sets', repeated(b'](' + b''.join(integers) + b'e', call('builtins.set', b'h\0'))
    counts = b'}(' + b'N'.join(integers) + b'Nu'
    yield 'counters', repeated(counts, call('collections.Counter', b'h\0'))
    ones = sequence(b'K\1' * SIZE)
    yield 'sizes', repeated(ones, call('torch.Size', b'h\0'))


def test_bombs_are_refused(read_all):
    files = {key: with_pickle(BEGIN + data + END) for key, data in bombs()}
    files |= {f'copies: {key}': with_pickle(data) for key, data in copies()}
    zeros = {'file/data.pkl': BEGIN + b'}' + END, 'file/data/0': bytes(2**27)}
    files['deflated'] = zipped(zeros, zipfile.ZIP_DEFLATED)
    outcomes = read_all(files)
    assert all(outcomes.values()), [key for key, message in outcomes.items() if not message]


def test_what_a_file_hides_in_a_value_is_left_out(read_all, tmp_path):
    """Methods for all histories, hooks of a tensor, and values that contain themselves."""
    values = array(numbers(1), dtype(), latin(8))
    state = b'}(' + text('_log_history') + values + text('_count_history') + values
    state += text('max_length') + number(9) + text('statistics_methods')
    state += b'}' + text('mean') + name('builtins.set') + b'su'
    hooks = call('collections.OrderedDict') + number(0) + name('builtins.set') + b's'
    files = {
        'methods': with_pickle(BEGIN + name(HISTORY) + b')\x81' + state + b'b' + END),
        'a list of itself': with_pickle(BEGIN + b']q\0h\0a' + END),
        'hooks': with_pickle(BEGIN + tensor((2,), (1,), hooks=hooks) + END),
    }
    assert not any(read_all(files).values())
    (tmp_path / 'file.pth').write_bytes(files['hooks'])
    loaded = read_checkpoint(tmp_path / 'file.pth')
    assert loaded._backward_hooks is None and not loaded.requires_grad
