"""Files of ``torch.save``, record by record, and comparisons of what they hold."""

import collections
import io
import pickle
import zipfile
from typing import Any

import torch
from mmengine.logging import HistoryBuffer


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


def assert_same(a: Any, b: Any) -> None:
    """Compare types, order, dtypes and values to the last bit."""
    if isinstance(a, dict) and not isinstance(a, collections.Counter):
        assert type(a) is type(b) and [*a] == [*b]
        a, b = [*a.values(), getattr(a, '_metadata', 0)], [*b.values(), getattr(b, '_metadata', 0)]
    if isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert type(a) is type(b) and a.dtype == b.dtype and torch.equal(a.float(), b.float())
    elif isinstance(a, HistoryBuffer):
        assert type(b) is HistoryBuffer and a.statistics('mean') == b.statistics('mean')
        assert_same([*a.data], [*b.data])
    else:
        # In the byte order of this machine; protocol 5, the default of Python 3.14, keeps another.
        a = pickle.loads(pickle.dumps(a, protocol=4))
        assert pickle.dumps(a) == pickle.dumps(b)  # with the dtype and order of arrays
