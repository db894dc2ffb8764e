"""Build the files of ``torch.save`` record by record, and their pickles step by step."""

import io
import struct
import zipfile
from typing import Any

import torch

BEGIN, END, TUPLE, CALL = b'\x80\2', b'.', b't', b'R'
HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
RECONSTRUCT = 'numpy._core.multiarray._reconstruct'


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
        for path, data in content.items():
            archive.writestr(path, data)
    return stream.getvalue()


def with_pickle(content: bytes, **others: bytes) -> bytes:
    """A file with this pickle and one storage of 10 floats."""
    plain = {'version': b'3\n', 'byteorder': b'little', 'data/0': bytes(40)}
    files = {'data.pkl': content, **plain, **others}
    return zipped({f'file/{path}': data for path, data in files.items()})


def text(value: str) -> bytes:
    return b'X' + struct.pack('<I', len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b'\x8a\x0a' + value.to_bytes(10, 'little', signed=True)


def numbers(*values: int) -> bytes:
    return b'(' + b''.join(map(number, values)) + TUPLE


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition('.')
    return f'c{module}\n{attribute}\n'.encode()


def call(path: str, *args: bytes) -> bytes:
    return name(path) + b'(' + b''.join(args) + TUPLE + CALL


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
