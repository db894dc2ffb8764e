"""The records in a file of ``torch.save``, and pickles as PyTorch never writes them."""

import io
import struct
import zipfile
from typing import Any

import torch

BEGIN, END = b'\x80\2', b'.'


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


def with_pickle(content: bytes) -> bytes:
    """A file with this pickle and one storage of 10 floats."""
    plain = {'version': b'3\n', 'byteorder': b'little', 'data/0': bytes(40)}
    files = {'data.pkl': content, **plain}
    return zipped({f'file/{path}': data for path, data in files.items()})


def text(value: str) -> bytes:
    return b'X' + struct.pack('<I', len(value.encode())) + value.encode()


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition('.')
    return f'c{module}\n{attribute}\n'.encode()


def call(path: str, *args: bytes) -> bytes:
    return name(path) + b'(' + b''.join(args) + b'tR'
