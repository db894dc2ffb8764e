"""Damaged and hostile checkpoints: each is a clear error or a correct load, and nothing of it runs.

Run as a program this file reads the checkpoints of a folder, so that what a file does to the
process, a crash, a hang or memory that runs over, is seen from outside.
"""

import argparse
import collections
import functools
import io
import json
import os
import pickle
import random
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from xcit_mm import UserError, XCiT
from xcit_mm.engine.training_state import require_training_state
from xcit_mm.weights.checkpoint import (
    backbone_state,
    convert,
    detector_state,
    load_pretrained,
    model_state,
    read_checkpoint,
)

ARCH = dict(embed_dim=32, depth=4, num_heads=2, eta=1.0)
SECONDS = 10  # for a file; they take a hundredth
MEMORY = 2**26  # bytes beyond what was taken before; the bombs ask for a quarter of a GB and more
BOMB = 2**28


@functools.cache
def model() -> XCiT:
    torch.manual_seed(1)
    return XCiT(ARCH, 16, out_indices=(0, 1, 2, 3))


def run_state() -> dict[str, Any]:
    """What mmengine's runner writes."""
    weights = model().state_dict()
    torch.manual_seed(2)
    moments = {i: {'step': 3, 'exp_avg': torch.randn(9)} for i in range(3)}
    log = {'train/loss': HistoryBuffer(list(map(float, range(50))), [1] * 50)}
    return {
        'meta': {
            'epoch': 1,
            'iter': 7,
            'seed': 5,
            'dataset_meta': {'classes': ('a', 'b'), 'palette': np.array([[1, 2, 3]])},
        },
        'state_dict': weights,
        'message_hub': {
            'log_scalars': log,
            'runtime_info': {'iter': 7, 'lr': np.float64(0.5), 'names': {'a'}},
            'resumed_keys': {'train/loss': True},
        },
        'optimizer': {
            'state': moments,
            'param_groups': [{'lr': 0.1, 'betas': (0.9, 0.999), 'params': [0, 1, 2]}],
        },
        'param_schedulers': [{'last_step': 3, 'milestones': collections.Counter([2, 3])}],
    }


def saved(content: Any, **kwargs) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **kwargs)
    return stream.getvalue()


def records(file: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return stream.getvalue()


def with_pickle(content: bytes, **others: bytes) -> bytes:
    """A file of torch.save with this pickle and one storage of 10 floats."""
    plain = {'version': b'3\n', 'byteorder': b'little', 'data/0': bytes(40)}
    files = {'data.pkl': content, **plain, **others}
    return zipped({f'file/{name}': data for name, data in files.items()})


# --- damage: a good load is the base, whole ---------------------------------------------------


def flipped(file: bytes, bit: int) -> bytes:
    changed = bytearray(file)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(file: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    marks = [i for i in range(len(file)) if file[i : i + 4] in (b'PK\1\2', b'PK\3\4', b'PK\5\6')]
    marks = [0, *sorted(rng.sample(marks[1:-1], 25)), marks[-1]]
    directory = file.index(b'PK\1\2')
    for length in [0, 1, 4, 15, 16, 17, *marks[1:], *(m + 9 for m in marks), len(file) - 1]:
        yield f'cut at {length}', file[:length]
    for length in sorted(rng.sample(range(len(file)), 30)):
        yield f'cut anywhere at {length}', file[:length]
    for bit in sorted(rng.sample(range(8 * len(file)), 60)):
        yield f'bit {bit}', flipped(file, bit)
    for bit in sorted(rng.sample(range(8 * directory, 8 * len(file)), 60)):
        yield f'directory bit {bit}', flipped(file, bit)
    for bit in sorted(rng.sample(range(8 * 2000), 40)):  # the header and the pickle
        yield f'pickle bit {bit}', flipped(file, bit)
    for mark in marks:
        yield f'header at {mark}', flipped(file, 8 * mark + rng.randrange(8 * 22))
        if file[mark:].startswith(b'PK\1\2'):  # PyTorch leaves the memory of a folder as it was
            yield f'folder at {mark}', flipped(file, 8 * (mark + 38) + 4)
    for start in sorted(rng.sample(range(len(file)), 12)):
        size = rng.choice([1, 64, 4096])
        yield f'zeros at {start}', file[:start] + bytes(size) + file[start + size :]
        yield f'hole at {start}', file[:start] + file[start + size :]
        yield f'bytes put in at {start}', file[:start] + rng.randbytes(size) + file[start:]
    for a, b in (sorted(rng.sample(range(0, len(file), 512), 2)) for _ in range(10)):
        middle = file[a + 512 : b]
        yield (
            f'{a} and {b} swapped',
            (file[:a] + file[b : b + 512] + middle + file[a : a + 512] + file[b + 512 :]),
        )
    for i in range(5):
        several = file
        for bit in rng.sample(range(8 * len(file)), 3**i):
            several = flipped(several, bit)
        yield f'{3**i} bits', several
    yield 'twice', file + file
    yield 'with a tail', file + bytes(1000)
    yield 'with a head', b'PK' + bytes(1000) + file
    yield 'behind a web page', b'<html></html>' + file
    yield 'two halves', file[: len(file) // 2] * 2


def rearranged(file: bytes) -> Iterator[tuple[str, bytes]]:
    parts = records(file)
    folder = next(iter(parts)).partition('/')[0]
    for name in [*parts][:12]:
        rest = {n: data for n, data in parts.items() if n != name}
        if name.endswith(('data.pkl', 'data/0', 'data/1', 'version')):
            yield f'without {name}', zipped(rest)
        yield f'{name} in another folder', zipped({**rest, f'x/{name}': parts[name]})
        yield f'{name} shorter', zipped({**parts, name: parts[name][:-1]})
        yield f'{name} longer', zipped({**parts, name: parts[name] + b'\0'})
    yield 'compressed', zipped(parts, zipfile.ZIP_DEFLATED)
    yield 'in another order', zipped(dict(reversed(parts.items())))
    yield 'with a program', zipped({**parts, f'{folder}/constants.pkl': b'\x80\2).'})
    yield 'no byte order', zipped({**parts, f'{folder}/byteorder': b'odd'})


# --- hostile pickles --------------------------------------------------------------------------

P, END, T, R = b'\x80\2', b'.', b't', b'R'


def text(value: str) -> bytes:
    return b'X' + struct.pack('<I', len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b'\x8a\x10' + value.to_bytes(16, 'little', signed=True)


def numbers(*values: int) -> bytes:
    return b'(' + b''.join(map(number, values)) + T


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition('.')
    return f'c{module}\n{attribute}\n'.encode()


def call(path: str, *args: bytes) -> bytes:
    return name(path) + b'(' + b''.join(args) + T + R


def storage(num: int = 10, key: bytes | None = None, kind: str = 'torch.FloatStorage') -> bytes:
    parts = text('storage'), name(kind), key or text('0'), text('cpu'), number(num)
    return b'(' + b''.join(parts) + T + b'Q'


def tensor(size: tuple, stride: tuple, offset: int = 0, of: bytes | None = None) -> bytes:
    return call(
        'torch._utils._rebuild_tensor_v2',
        of or storage(),
        number(offset),
        numbers(*size),
        numbers(*stride),
        b'\x89',
        call('collections.OrderedDict'),
    )


def array(shape: bytes, dtype: bytes, content: bytes) -> bytes:
    begin = call(
        'numpy._core.multiarray._reconstruct', name('numpy.ndarray'), numbers(0), text('b')
    )
    return begin + b'(' + number(1) + shape + dtype + b'\x89' + content + T + b'b'


def dtype(code: str = 'f8', *structure: bytes) -> bytes:
    state = number(3), text('|'), *(structure or (b'N',) * 3), number(8), number(1), number(0)
    return call('numpy.dtype', text(code), b'\x89', b'\x88') + b'(' + b''.join(state) + T + b'b'


def latin(size: int) -> bytes:
    return call('_codecs.encode', text('A' * size), text('latin1'))


def doubled(begin: bytes, pair: bytes) -> bytes:
    """50 pairs, each of which is twice the one before it."""
    memo = [bytes([i]) for i in range(51)]
    steps = (pair % {b'i': b'h' + memo[i]} + b'q' + memo[i + 1] for i in range(50))
    return begin + b'q\0' + b''.join(steps)


def payloads(trace: str) -> Iterator[tuple[str, bytes]]:
    """Pickles that make the folder ``trace``, or begin to."""
    code = f"__import__('os').mkdir({trace!r})"
    folder, command = text(trace), text(f'mkdir {trace}')
    calls = {
        'os.mkdir': folder,
        'posix.mkdir': folder,
        'posix.system': command,
        'os.system': command,
        'nt.system': command,
        'subprocess.getoutput': command,
        'builtins.eval': text(code),
        'builtins.exec': text(code),
        '__builtin__.eval': text(code),
        'builtins.__import__': text('antigravity'),
        'importlib.import_module': text('antigravity'),
        'torch.load': folder,
        'torch.hub.load': folder,
        'torch.jit.load': folder,
        'numpy.load': folder,
        'pickle.loads': folder,
        'functools.partial': name('os.mkdir') + folder,
        'operator.methodcaller': text('mkdir'),
        'pathlib.PosixPath': folder,
        'shutil.rmtree': folder,
        'mmengine.config.Config.fromstring': text(f'import os\nos.mkdir({trace!r})') + text('.py'),
        'mmengine.utils.mkdir_or_exist': folder,
        'torch.distributed.rpc.rpc_sync': folder,
        'torch.serialization._get_layout': folder,
        'torch._utils._rebuild_wrapper_subclass': folder,
        'torch.storage._load_from_bytes': latin(9),
        'torch.nn.Linear': number(2) + number(2),
        'numpy.ndarray': numbers(1) + text('O') + latin(8),
    }
    for path, args in calls.items():
        module, _, attribute = path.rpartition('.')
        if path == 'mmengine.config.Config.fromstring':
            module, attribute = 'mmengine.config', 'Config.fromstring'
        yield f'reduce {path}', P + call(path, args) + END
        yield (
            f'stack global {path}',
            (b'\x80\4' + text(module) + text(attribute) + b'\x93(' + args + T + R + END),
        )
    for opcode in 'io':
        parts = (name('os.mkdir') + folder, folder)[opcode == 'i']
        end = b'o' if opcode == 'o' else b'ios\nmkdir\n'
        yield f'opcode {opcode}', P + b'(' + parts + end + END
    new = name('subprocess.Popen') + b'(' + command + T
    yield 'newobj', P + new + b'\x81' + END
    yield 'newobj_ex', b'\x80\4' + new + b'}\x92' + END
    yield 'newobj_ex of what is allowed', b'\x80\4' + name('argparse.Namespace') + b')}\x92' + END
    yield 'extension', P + b'\x82\1' + END
    yield 'persistent text', P + b'P' + trace.encode() + b'\n' + END
    yield 'out of band', b'\x80\5\x97' + END
    getattr_ = 'builtins.getattr'
    history = 'mmengine.logging.history_buffer.HistoryBuffer'
    for attribute in ('__init__', '__globals__', '__class__', '__reduce__'):
        yield f'getattr {attribute}', P + call(getattr_, name(history), text(attribute)) + END
    yield 'getattr of others', P + call(getattr_, name('numpy.ndarray'), text('tofile')) + END
    method = call(getattr_, name(history), text('register_statistics'))
    yield 'a method called', P + method + b'(' + name(getattr_) + T + R + END
    namespace = name('argparse.Namespace') + b')\x81'
    register = namespace + b'}' + text('append') + method + b'sb' + name(getattr_) + b'a'
    yield 'a method called by append', P + register + END
    yield 'state for a class', P + name(history) + b'N}' + text('mean') + b'Ns\x86b' + END
    yield 'state for a function', P + name(getattr_) + b'N}' + text('__code__') + b'Ns\x86b' + END
    yield 'state for a list', P + b']}' + text('a') + b'Nsb' + END
    for what in (b'N', text('0'), b')', numbers(1), b'(' + text('module') + folder * 2 + T, b']'):
        yield f'persistent {what[:20]!r}', P + what + b'Q' + END


def poisons() -> Iterator[tuple[str, bytes]]:
    """What is restored in part and would change others, or wait until it is used."""
    history = name('mmengine.logging.history_buffer.HistoryBuffer') + b')\x81'
    values = array(numbers(1), dtype(), latin(8))
    state = (
        *(text('max_length') + number(9), text('_log_history') + values),
        *(text('_count_history') + values, text('statistics_methods')),
        b'}' + text('mean') + name('builtins.set') + b's',
    )
    yield 'statistics of all histories', P + history + b'}(' + b''.join(state) + b'ub' + END
    shadow = call('collections.OrderedDict') + b'}' + text('items') + number(1) + b'sb'
    yield 'a hidden method', P + shadow + text('a') + tensor((2,), (1,)) + b's' + END
    hooks = call('collections.OrderedDict') + number(0) + name('builtins.set') + b's'
    parts = storage(), number(0), numbers(2), numbers(1), b'\x88', hooks
    hooked = call('torch._utils._rebuild_tensor_v2', *parts)
    yield 'a tensor with hooks', P + b'}' + text('a') + hooked + b's' + END


SIZE = 2**17  # of what a file names once, and has copied again and again


def repeated(begin: bytes, value: bytes) -> bytes:
    """A list of a value 4,000 times, which may get what was begun with, from the memo."""
    return P + begin + b'q\0' + b'](' + value * 4000 + b'e' + END


def numbered(count: int) -> bytes:
    """A list of pairs of a number and None."""
    return b'](' + b''.join(b'J' + struct.pack('<i', i) + b'N\x86' for i in range(count)) + b'e'


def of_one_hash(count: int) -> list[bytes]:
    return [b'\x8a\x0a' + (i * (2**61 - 1)).to_bytes(10, 'little') for i in range(count)]


def copies() -> Iterator[tuple[str, bytes]]:
    """Files that name a thing once and have it copied again and again, or take the square of time.

    In each the pickle has some 100 KB, and what it asks for half a GB or a minute.
    """
    encode = name('_codecs.encode') + b'(h\0' + text('latin1') + T + R
    yield 'bytes of one text', repeated(text('A' * SIZE), encode)
    content = b'(' + number(1) + numbers(SIZE) + dtype('b') + b'\x89h\0' + T + b'b'
    begin = call('numpy._core.multiarray._reconstruct', name('numpy.ndarray'), numbers(0), b'N')
    yield 'arrays of the same bytes', repeated(latin(SIZE), begin + content)
    scalar = call('numpy._core.multiarray.scalar', dtype(f'S{SIZE}'), b'h\0')
    yield 'strings of the same bytes', repeated(latin(SIZE), scalar)
    history = name('mmengine.logging.history_buffer.HistoryBuffer') + b')\x81'
    keys = b''.join(text(key) + b'h\0' for key in ('_log_history', '_count_history'))
    state = b'}(' + keys + text('max_length') + number(9) + b'ub'
    values = array(numbers(SIZE), dtype('b'), latin(SIZE))
    yield 'histories of the same values', repeated(values, history + state)
    lists = text('max_length') + number(9)
    lists += b''.join(text(key) + b'j\x32\0\0\0' for key in ('_log_history', '_count_history'))
    doubled_lists = doubled(b']', b'](%(i)s%(i)se')
    yield 'a history of lists', P + doubled_lists + history + b'}(' + lists + b'ub' + END
    ones = b'](' + b'K\1' * SIZE + b'e'
    yield (
        'sizes of one list',
        repeated(ones + b'0(' + b'K\1' * SIZE + T, call('torch.Size', b'h\0')),
    )
    pairs = numbered(SIZE // 8)
    yield 'dicts of one list', repeated(pairs, call('collections.OrderedDict', b'h\0'))
    single = b'](' + b''.join(b'J' + struct.pack('<i', i) for i in range(SIZE // 8)) + b'e'
    yield 'sets of one list', repeated(single, call('builtins.set', b'h\0'))
    counts = b'}(' + b''.join(b'J' + struct.pack('<i', i) + b'N' for i in range(SIZE // 8)) + b'u'
    yield 'counters of one dict', repeated(counts, call('collections.Counter', b'h\0'))
    texts = b'}(' + b''.join(text(f'{i:05}') + b'N' for i in range(SIZE // 8)) + b'u'
    yield 'namespaces of one dict', repeated(texts, name('argparse.Namespace') + b')\x81h\0b')
    yield 'sets of an array', P + values + b'q\0' + call('builtins.set', b'h\0') + END
    yield 'sets', P + b'](' + b'\x8f' * 2**19 + b'e' + END
    yield 'lists of the same lists', P + doubled_lists + END
    yield 'one list again and again', repeated(b'](' + b'N' * SIZE + b'e', b'h\0')
    large = storage(SIZE, text('1'), 'torch.CharStorage')
    yield 'one tensor again and again', repeated(tensor((SIZE,), (1,), of=large), b'h\0')
    yield 'a buffer', b'\x80\5\x96' + struct.pack('<Q', BOMB) + END
    yield 'a large number', P + b'\x8b' + struct.pack('<i', SIZE) + b'\1' * SIZE + END
    yield 'decimals', P + b'L' + b'9' * 4000 + b'L\n' + END
    pairs = (b'%sN' % key for key in of_one_hash(4000))
    yield 'names of one hash', P + b'}(' + b''.join(pairs) + b'u' + END
    members = b'](' + b''.join(of_one_hash(4000)) + b'e'
    yield 'a set of one hash', P + call('builtins.set', members) + END
    numbers_ = b''.join(b'J' + struct.pack('<i', i) + b'N' for i in range(2**16 + 1))
    yield 'many numbers as names', P + b'}(' + numbers_ + b'u' + END
    places = (b'Np%d\n' % (i * (2**61 - 1)) for i in range(4000))
    yield 'memo of one hash', P + b''.join(places) + END
    yield 'memo with gaps', P + b'Nr' + struct.pack('<I', 2**31) + END
    alike = text('A' * SIZE) + b'q\0' + text('A' * SIZE) + b'q\1'
    yield 'the same long name', P + alike + b'00}(h\0N' + b'h\1N' * 4000 + b'u' + END
    deep = b')' + b'\x85' * 10**5
    state = b']' + deep + b'N\x86a'
    yield 'deep names in a state', P + name('argparse.Namespace') + b')\x81' + state + b'b' + END


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small files that take memory or time without end, or crash the process."""
    large = number(BOMB)
    yield 'bytearray', P + call('builtins.bytearray', large) + END
    yield 'torch.Tensor', P + call('torch.Tensor', number(10**12)) + END
    yield 'torch.Size', P + call('torch.Size', numbers(-1, 10**20)) + END
    growing = latin(100)
    for _ in range(30):
        growing = call('_codecs.encode', growing, text('hex'))
    yield 'hex of hex', P + growing + END
    frame = struct.pack('<Q', 2**33)
    yield 'memo', P + b'r' + struct.pack('<I', 2**31) + END
    yield 'large memo', P + b'Nr' + struct.pack('<I', 2**31) + b'R' + END
    yield 'bytes', b'\x80\4\x8e' + frame + b'a' + END
    yield 'frame', b'\x80\4\x95' + frame + b'a' + END
    yield 'integer', P + b'\x8b' + struct.pack('<i', 2**31 - 1) + END
    for size, stride in [
        *(((10**12,), (0,)), ((10**6, 10**6), (0, 0)), ((2**62, 4), (0, 0)), ((11,), (1,))),
        *(((2,), (2**62,)), ((-1,), (1,)), ((10,), (-1,)), ((10,), (1, 1))),
    ]:
        yield f'tensor {size} {stride}', P + tensor(size, stride) + END
    yield 'tensor far in its storage', P + tensor((1,), (1,), offset=2**61) + END
    yield 'tensor before its storage', P + tensor((1,), (1,), offset=-1) + END
    yield 'tensor without storage', P + tensor((1,), (1,), of=b'N') + END
    for num in (11, 2**61, 2**64, -1):
        yield f'storage of {num}', P + tensor((1,), (1,), of=storage(num)) + END
    yield 'storage by number', P + tensor((1,), (1,), of=storage(key=number(0))) + END
    yield 'storage elsewhere', P + tensor((1,), (1,), of=storage(key=text('../0'))) + END
    yield 'storage of another size', P + tensor((2,), (1,), of=storage(kind='torch.X')) + END
    yield 'array too large', P + array(numbers(10**9), dtype(), latin(8)) + END
    yield 'array of no size', P + array(numbers(-1), dtype(), latin(8)) + END
    yield 'array overflows', P + array(numbers(2**62, 4), dtype(), latin(0)) + END
    yield 'array of objects', P + array(numbers(1), dtype('O'), b']Na') + END
    field = b'(' + text('a') + T, b'}' + text('a') + b'(' + dtype('O') + number(0) + T + b's'
    yield 'addresses', P + array(numbers(1), dtype('V8', b'N', *field), latin(8)) + END
    yield 'addresses in numbers', P + array(numbers(1), dtype('f8', b'N', *field), latin(8)) + END
    yield 'string', P + call('numpy._core.multiarray.scalar', dtype(f'S{10**9}')) + END
    yield 'short number', P + call('numpy._core.multiarray.scalar', dtype(), latin(4)) + END
    deep = 10**5
    yield 'deep lists', P + b']' * deep + b'a' * (deep - 1) + END
    yield 'deep tuples', P + b')' + b'\x85' * deep + END
    yield 'deep names', P + b'})' + b'\x85' * deep + b'Ns' + END
    yield 'deep names of a set', P + call('builtins.set', b'])' + b'\x85' * deep + b'a') + END
    yield 'a set of sets', b'\x80\4(' + b'(' * 3 + b'\x91' * 4 + END
    yield 'a list of itself', P + b']q\0h\0a' + END
    yield 'a dict of itself', P + b'}q\0' + text('state_dict') + b'h\0s' + END
    names = doubled(b')', b'%(i)s%(i)s\x86')
    yield 'names of the same names', P + b'}' + names + b'Ns' + END
    yield 'shown without end', P + call('numpy.dtype', doubled(b']', b'](%(i)s%(i)se')) + END
    yield 'nothing', b''
    yield 'no end', P + b'}'
    yield 'an empty stack', P + b'sssss' + END


def before_zip() -> dict[str, bytes]:
    """Files as PyTorch wrote them before 1.6, and before 0.4: 2 KB that ask for 256 MB."""
    old = saved(run_state(), _use_new_zipfile_serialization=False)
    header = old[: saved({}, _use_new_zipfile_serialization=False).index(b'}q') - 2]
    hole = tarfile.TarInfo('storages')
    hole.type = tarfile.GNUTYPE_SPARSE
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w') as archive:
        archive.addfile(hole)
    uninitialised = header + P + tensor((10,), (1,)) + END + P + b']' + END
    return {
        'whole': old,
        'a large storage': header + P + tensor((1,), (1,), of=storage(BOMB // 4)) + END,
        'no storages': uninitialised,
        'a tar archive': stream.getvalue(),
    }


# --- contents of wrong kinds: by what refuses them ----------------------------------------------

WEIGHTS = ('weights', 'backbone', 'convert')
ALL = ('weights', 'resume', 'backbone', 'convert')
GAMMA = 'blocks.0.gamma3'


def with_weight(value: Any, key: Any = GAMMA) -> dict[str, Any]:
    content = run_state()
    content['state_dict'] = {**content['state_dict'], key: value}
    return content


def with_part(path: str, value: Any) -> dict[str, Any]:
    content = run_state()
    *outer, last = path.split('.')
    node = content
    for part in outer:
        node = node[part]
    node[last] = value
    return content


def in_dtype(kind: torch.dtype) -> dict[str, Any]:
    content = run_state()
    content['state_dict'] = {
        k: v.to(kind) if v.is_floating_point() else v for k, v in content['state_dict'].items()
    }
    return content


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def contents() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Files by name, and the steps that refuse what is in them."""
    base, gamma = run_state(), torch.rand(32)
    yield 'base', base, ()
    for content in (None, 3, 'weights', gamma, [gamma], (gamma,), {1, 2}, {}, {'a': 1}):
        yield f'a {type(content).__name__} {str(content)[:9]}', content, ALL
    for value in ([gamma], gamma, 'a', None, {}, {'state_dict': base['state_dict']}):
        given = str(value)[:9]
        refused = WEIGHTS if isinstance(value, dict) else ALL
        yield f'weights are {given}', with_part('state_dict', value), refused
    for value in (3, 'a', None, [1.0], [gamma], {}, np.ones(32), base['message_hub']):
        yield f'a weight is a {type(value).__name__} {value}'[:40], with_weight(value), WEIGHTS
    for key in (1, None, ('a', 'b'), 1.5, True):
        refused = ('read',) if isinstance(key, tuple) else WEIGHTS
        yield f'a name is {key}', with_weight(gamma, key), refused
    yield 'a name comes twice', with_weight(gamma, f'module.{GAMMA}'), WEIGHTS
    for key in ('a\nb', 'a\r\x1b[2J', 'a' * 10**6, '\ud800'):
        yield f'a name is odd {key[:4]!r}', with_weight(gamma, key), ('backbone',)
    for value in (
        gamma > 0.5,
        gamma.long(),
        (gamma * 99).to(torch.uint8),
        gamma.to(torch.complex64),
    ):
        yield f'a weight of {value.dtype}', with_weight(value), ('backbone',)
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        yield f'weights of {kind}', in_dtype(kind), ()
    yield 'the weights count', in_dtype(torch.int32), ('backbone',)
    quantized = torch.quantize_per_tensor(gamma, 0.1, 0, torch.quint8)
    for value in (gamma.to_sparse(), quantized, gamma.to('meta'), torch.ones(1).expand(32)):
        yield f'a weight {value.layout} {value.device} {value.dtype}', with_weight(value), ('read',)
    for value in (torch.rand(64)[::2], torch.rand(99)[7:39], torch.rand(32, 2).T[1]):
        yield f'a view {value.stride()} {value.storage_offset()}', with_weight(value), ()
    yield 'a parameter', with_weight(torch.nn.Parameter(gamma)), ()
    for value in (float('nan'), float('inf'), -float('inf')):
        with_one = gamma.index_fill(0, torch.tensor([31]), value)
        yield f'a weight with {value}', with_weight(with_one), ('backbone', 'convert')
        yield f'a half with {value}', with_weight(with_one.half()), ('backbone', 'convert')
    yield 'too large for float', with_weight(gamma.double() * 1e300), ('backbone', 'convert')
    yield 'a large sum', with_weight(torch.full((32,), 3e38)), ()
    yield 'in 8 bits', with_weight(gamma.to(torch.float8_e4m3fn)), ()
    for value in (torch.rand(()), torch.rand(0), torch.rand(31), torch.rand(32, 1)):
        refused = ('backbone', 'convert') if value.ndim == 0 else ('backbone',)
        yield f'a weight of {tuple(value.shape)}', with_weight(value), refused
    yield 'no epoch', with_part('meta.epoch', None), ('resume',)
    for seed in ('abc', -1, 2**40, None):
        yield f'the seed {seed}', with_part('meta.seed', seed), ('resume',)
    yield 'weights alone', {'state_dict': base['state_dict']}, ('resume',)
    yield 'code for mmengine', with_part('meta.cfg', 'import os'), ()
    yield 'nested', with_part('meta.time', nested(40)), ()
    yield 'nested too often', with_part('meta.time', nested(100)), ('read',)
    yield 'large numbers', with_part('meta.time', 10**600), ()
    yield 'numbers that are too large', with_part('meta.time', 10**4000), ('read',)
    values = (
        *(np.float32(1), np.int64(-3), np.bool_(True), np.str_('abc'), np.array(['a', 'bc'])),
        *(
            np.ones((2, 3), '>f8'),
            np.asfortranarray(np.eye(3)[:2]),
            np.zeros((0, 3)),
            np.dtype('>i4'),
        ),
        *(
            b'bytes',
            {1: 'a', None: 2},
            argparse.Namespace(lr=1),
            torch.Size([1, 2]),
        ),
        *(torch.float16, torch.device('cpu'), 1e308, float('nan'), collections.OrderedDict(a=1)),
    )
    for i, value in enumerate(values):
        yield f'{i} a {type(value).__name__}', with_part('meta.time', value), ()


# --- reading them, in a process of its own ------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return (isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype) and bits(
            a
        ) == bits(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and [*a] == [*b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (HistoryBuffer, argparse.Namespace)):
        ours, theirs = ({k: v for k, v in vars(x).items() if 'statistics' not in k} for x in (a, b))
        return type(a) is type(b) and same(ours, theirs)
    return pickle.dumps(a) == pickle.dumps(b)  # with the dtype and order of arrays


def bits(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def outcome(path: Path, oracle: Callable[[], Any] | None, backbone: XCiT) -> dict[str, Any]:
    """What a file does in all functions: the steps that refuse it, and what went wrong."""
    messages: dict[str, str] = {}

    def step(name: str, function: Callable) -> Any:
        try:
            return function()
        except UserError as error:
            messages[name] = str(error)

    content = step('read', lambda: read_checkpoint(path))
    if 'read' in messages:
        return {'messages': messages, 'is_same': True}
    is_same = oracle is None or same(content, oracle())
    state = step('weights', lambda: model_state(content, path))
    if state is not None:
        detector_state(state)
        backbone_state(state)
    step('resume', lambda: require_training_state(content, path))
    step('backbone', lambda: load_pretrained(backbone, path))
    target = path.with_suffix('.converted')
    step('convert', lambda: convert(path, target))
    if target.exists():
        target.unlink()
    return {'messages': messages, 'is_same': is_same}


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statistics = dict(HistoryBuffer([1.0], [1])._statistics_methods)
    oracles = dict(json.loads((folder / 'oracles.json').read_text()))
    base = torch.load(folder / 'base', weights_only=False)
    backbone = model()
    outcome(folder / 'base', None, backbone)  # takes what every file takes
    for file, kind in oracles.items():
        path = folder / file
        oracle = {
            'base': lambda: base,
            'itself': lambda path=path: torch.load(path, weights_only=False),
            'none': None,
        }[kind]
        print(json.dumps({'begins': file}), flush=True)
        signal.alarm(SECONDS)  # whose signal ends the process, in C as well
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        done = outcome(path, oracle, backbone)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        is_clean = HistoryBuffer._statistics_methods == statistics
        print(json.dumps({**done, 'file': file, 'grown': grown, 'is_clean': is_clean}), flush=True)


@pytest.fixture
def read_all(tmp_path) -> Callable[..., dict[str, dict[str, Any]]]:
    """Read files, by name, and give what :func:`outcome` says of each."""

    def read_all(files: dict[str, tuple[bytes, str]]) -> dict[str, dict[str, Any]]:
        (tmp_path / 'base').write_bytes(saved(run_state()))
        paths = {f'{i}.pth': name for i, name in enumerate(files)}
        for path, name in paths.items():
            (tmp_path / path).write_bytes(files[name][0])
        oracles = [(path, files[name][1]) for path, name in paths.items()]
        (tmp_path / 'oracles.json').write_text(json.dumps(oracles))
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', __file__, tmp_path],
            env=os.environ | {'OMP_NUM_THREADS': '1'},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
        last = paths.get(lines[-1].get('begins')) if lines else None
        assert done.returncode == 0, f'{last}: {done.returncode} {done.stderr[-3000:]}'
        outcomes = {paths[line['file']]: line for line in lines if 'file' in line}
        assert outcomes.keys() == files.keys()
        for name, line in outcomes.items():
            assert line['grown'] < MEMORY, f'{name} took {line["grown"]} bytes'
            assert line['is_clean'], f'{name} changed the statistics of all histories'
            assert line['is_same'], f'{name} was loaded as something else'
            for message in line['messages'].values():
                assert line['file'] in message, message
                assert message.isprintable(), message
                assert len(message) < 1500, message
        return outcomes

    return read_all


def test_a_damaged_file_is_refused_or_whole(read_all):
    file = saved(run_state())
    files = dict([*damaged(file, random.Random(0)), *rearranged(file)])
    assert len(files) > 300
    outcomes = read_all({name: (content, 'base') for name, content in files.items()})
    refused = [name for name, line in outcomes.items() if 'read' in line['messages']]
    assert all('read' in outcomes[name]['messages'] for name in files if name.startswith('cut'))
    assert 0.8 * len(files) < len(refused) < len(files)
    assert {'compressed', 'no byte order'} <= {*refused}
    assert 'TorchScript' in outcomes['with a program']['messages']['read']
    for line in outcomes.values():  # what is loaded is good for everything
        assert line['messages'].keys() <= {'read'}


def test_a_damaged_file_without_checksums_is_refused_or_read(read_all):
    """No hang and no crash, and cut off is seen."""
    rng = random.Random(1)
    torch.serialization.set_crc32_options(False)
    unchecked = saved(run_state())
    torch.serialization.set_crc32_options(True)
    files = {'whole': (unchecked, 'base')}
    for length in sorted(rng.sample(range(len(unchecked)), 15)):
        files[f'cut at {length}'] = unchecked[:length], 'none'
    for bit in sorted(rng.sample(range(8 * 4000), 35)):
        files[f'bit {bit}'] = flipped(unchecked, bit), 'none'
    outcomes = read_all(files)
    for name, line in outcomes.items():
        assert ('read' in line['messages']) or 'cut' not in name, name


def test_nothing_in_a_file_is_run(read_all, tmp_path):
    trace = tmp_path / 'trace'
    pickles = dict(payloads(str(trace)))
    assert len(pickles) > 70
    outcomes = read_all({name: (with_pickle(content), 'none') for name, content in pickles.items()})
    assert not trace.exists()
    for name, line in outcomes.items():
        assert 'read' in line['messages'], name


def test_poisons_and_bombs_are_refused_or_do_nothing(read_all):
    cases = [*poisons(), *bombs(), *copies()]
    files = {name: with_pickle(content, **{'data/1': bytes(SIZE)}) for name, content in cases}
    packed = {'file/data.pkl': P + b'}' + END, 'file/version': b'3\n', 'file/data/0': bytes(BOMB)}
    files['deflated'] = zipped(packed, zipfile.ZIP_DEFLATED)
    assert len(files['deflated']) < 2**20
    old = before_zip()
    files |= old
    outcomes = read_all({name: (content, 'none') for name, content in files.items()})
    for name in old:
        remedy = 'no checkpoint' if 'tar' in name else 'write it again with torch.save(torch.load('
        assert remedy in outcomes[name]['messages']['read'], name
    harmless = {name for name, _ in poisons()}
    for name, line in outcomes.items():
        assert ('read' in line['messages']) != (name in harmless), name
    hidden = outcomes['a hidden method']['messages']
    assert hidden.keys() == {'resume', 'backbone', 'convert'}


def test_contents_of_wrong_kinds_are_refused_where_they_matter(read_all):
    cases = {name: (content, refused) for name, content, refused in contents()}
    files = {}
    for name, (content, refused) in cases.items():
        files[name] = saved(content), 'itself' if 'read' not in refused else 'none'
    outcomes = read_all(files)
    for name, (_, refused) in cases.items():
        if refused == ('read',):
            assert [*outcomes[name]['messages']] == ['read'], name
        else:
            assert sorted(outcomes[name]['messages']) == sorted(refused), name


if __name__ == '__main__':
    main(Path(sys.argv[1]))
