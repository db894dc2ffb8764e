"""Pickles of plain values are read as by pickle, and hostile ones neither run, crash nor grow."""

import os
import pickle
import struct

import numpy as np
import pytest

from xcit_mm.apps.retrieval.plain_pickle import read_plain
from xcit_mm.network.weights.pickles import UnreadableError

SHARED = [5, 6]
TRUTH = dict(
    imlist=['all_souls_000013', 'Zürich', ''],
    qimlist=('a', 'b', 'c', 'd'),
    gnd=[
        dict(bbx=[136.5, -34.25, 1e300, 2**40], easy=SHARED, hard=[], junk=SHARED, n=None, t=True)
    ],
    empty=[{}, (), (1,), (1, 2), (1, 2, 3), b'\x00\xff', -1, 2**63 - 1, False],
)
ARRAYS = [
    np.arange(6).reshape(2, 3).T,
    np.array([], np.int32),
    np.array([1.5, -2], '>f8'),
    np.array(['ab', 'c']),
    np.float32(0.1),
]
ADDRESS = struct.pack('<Q', 0x4141414141414141)
MULTIARRAY = np.array(0).__reduce__()[0].__module__.encode()


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_as_by_pickle(protocol):
    # Functions of protocol 5 that share the memory of arrays are refused, as any other function.
    content = TRUTH | (dict(arrays=ARRAYS) if protocol < 5 else {})
    data = pickle.dumps(content, protocol)
    read, unpickled = read_plain(data), pickle.loads(data)
    arrays, expected_arrays = read.pop('arrays', []), unpickled.pop('arrays', [])
    assert read == unpickled == TRUTH
    for array, expected in zip(arrays, expected_arrays, strict=True):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


def test_pickles_of_python_2_are_read():
    data = b"(dp0\nS'easy'\np1\n(lp2\nI3\naI01\nasS'name'\np3\nVa\np4\ns."
    assert read_plain(data) == dict(easy=[3, True], name='a')


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_function_is_called(tmp_path, protocol):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'was_run'),)

    name = f'{os.mkdir.__module__}.mkdir'
    with pytest.raises(UnreadableError, match=f'^it names {name}, which could run code$'):
        read_plain(pickle.dumps([Code()], protocol))
    assert not (tmp_path / 'was_run').exists()


def test_bytes_of_the_file_are_no_addresses_of_objects():
    # The flags at the end of the dtype's state say that it holds no objects.
    data = (
        b'\x80\x02c'
        + MULTIARRAY
        + b'\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x01t'
        b'cnumpy\ndtype\n(U\x02O8\x89\x88tR(K\x03U\x01|NNN' + 2 * b'J\xff\xff\xff\xff' + b'K\x00tb'
        b'\x89U\x08' + ADDRESS + b'tb.'
    )
    with pytest.raises(UnreadableError, match=r'^it names numpy\.dtype O8, which could run code$'):
        read_plain(data)


@pytest.mark.parametrize(
    'data, reason',
    [
        (b'\x80\x02}' + b')' + b'\x85' * 200_000 + b'K\x01s.', 'it is damaged'),  # a deep key
        (b'\x80\x02' + b']' * 200_000 + b'a' * 199_999 + b'.', 'nested in more than 16 levels'),
        (b'\x80\x02]q\x00h\x00a.', 'nested in more than 16 levels'),  # a list in itself
        (b'(]q\x00' + (b'(' + b'h\x00' * 8 + b'lq\x00') * 12 + b'l.', 'repeat each other'),
        (b'\x80\x02\x8a\x20' + b'\x7f' * 32 + b'.', 'an integer of more than 64 bits'),
        (b'\x80\x02cnumpy\nndarray\n(\x8a\x05\0\0\0\0\x04tR.', 'it is damaged'),  # 128 GiB
        (b'\x80\x02cnumpy\ndtype\n(U\x02i8\x89\x88tR}b.', 'it is damaged'),  # another state
        (b'\x80\x02K\x01K\x02b.', 'it is damaged'),
        (b'\x80\x02P1\n.', 'it holds more than numbers and text'),
        (b'\x80\x02(K\x01K\x02Q.', 'it holds more than numbers and text'),
        (b'\x80\x02\x85.', 'it is damaged'),
        (b'\x80\x02h\x07.', 'no pickle, or damaged'),
        (b'\x80\x02K\x01K\x02.', 'no pickle, or damaged'),
        (pickle.dumps(TRUTH)[:-9], 'no pickle, or damaged'),
        (b'', 'no pickle, or damaged'),
        (b'<html>not found</html>', 'no pickle, or damaged'),
    ],
)
def test_hostile_and_damaged_pickles_are_refused(data, reason):
    with pytest.raises(UnreadableError, match=reason):
        read_plain(data)


def test_numbers_of_values_take_no_memory():
    """Python's unpickler makes room for as many values as the largest number, here 64 GiB."""
    assert read_plain(b'\x80\x02]r\xff\xff\xff\xff.') == []
