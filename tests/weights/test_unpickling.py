"""Checkpoints are read without running code that is in them, by us and by others."""

import argparse
import collections
import os
import pickle
import struct
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from test_mutated_checkpoints import (
    END,
    P,
    T,
    array,
    call,
    dtype,
    latin,
    number,
    numbers,
    records,
    saved,
    text,
    with_pickle,
    zipped,
)

from xcit_mm import UserError
from xcit_mm.weights import unpickling
from xcit_mm.weights.checkpoint import read_checkpoint


def test_what_checkpoints_hold_is_read(tmp_path):
    content = {
        'args': argparse.Namespace(lr=1),
        'history': HistoryBuffer([1.0, 3.0], [1, 1]),
        'lr': np.float64(0.5),
        'mean': np.array([1.0, 2.0], dtype=np.float32),
        'palette': np.array([[1, 2, 3]], dtype=np.uint8),
        'classes': np.array(['circle', 'square']),
        'state': collections.OrderedDict(
            half=torch.ones(3, dtype=torch.float16), parameter=torch.nn.Parameter(torch.ones(2))
        ),
        'optimizer': {'step': 3, 'betas': (0.9, 0.999), 'fused': None, 'keys': {1, 2}},
    }
    torch.save(content, tmp_path / 'file.pth')
    loaded = read_checkpoint(tmp_path / 'file.pth')
    assert loaded['args'].lr == 1
    assert loaded['history'].statistics('mean') == 2.0
    assert loaded['lr'] == 0.5
    for name in ('mean', 'palette', 'classes'):
        assert loaded[name].dtype == content[name].dtype
        assert loaded[name].tolist() == content[name].tolist()
    assert pickle.dumps(loaded['palette']) == pickle.dumps(content['palette'])
    assert torch.equal(loaded['state']['half'], content['state']['half'])
    assert torch.equal(loaded['state']['parameter'], content['state']['parameter'])
    assert loaded['optimizer'] == content['optimizer']


def test_a_file_written_with_numpy_1_is_read(tmp_path):
    """NumPy 2 moved the functions that rebuild its values; released files name the old place."""
    values = {'lr': np.float64(0.5), 'mean': np.array([1.0, 2.0])}
    parts = {
        name: content.replace(b'numpy._core.', b'numpy.core.')
        for name, content in records(saved(values)).items()
    }
    assert any(b'numpy.core.' in content for content in parts.values())
    (tmp_path / 'old.pth').write_bytes(zipped(parts))
    loaded = read_checkpoint(tmp_path / 'old.pth')
    assert loaded['lr'] == 0.5
    assert loaded['mean'].tolist() == [1.0, 2.0]


class Call:
    """What pickles as the call of a function."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    'payload',
    [
        lambda trace: Call(os.mkdir, trace),
        lambda trace: Call(Path.touch, Path(trace)),
        lambda trace: Call(eval, f"__import__('os').mkdir({trace!r})"),
        lambda trace: Call(getattr, HistoryBuffer, '__init__'),
        lambda trace: Call(np.ndarray, (1,), 'O', b'AAAAAAAA'),
        lambda trace: Call(torch.load, trace),
        lambda trace: torch.nn.Linear(2, 2),
    ],
)
def test_nothing_else_is_called(tmp_path, payload):
    trace = tmp_path / 'trace'
    content = {'state_dict': {'a': torch.zeros(1)}, 'hook': payload(str(trace))}
    torch.save(content, tmp_path / 'file.pth')
    with pytest.raises(UserError, match=r'file\.pth cannot be read: it needs more than weights \('):
        read_checkpoint(tmp_path / 'file.pth')
    assert not trace.exists()


def test_a_file_of_before_pytorch_1_6_is_read_where_it_is_trusted(tmp_path):
    path = tmp_path / 'old.pth'
    torch.save({'a': torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match=r'it is not a zip archive .* write it again with torch\.'):
        read_checkpoint(path)
    assert read_checkpoint(path, trusted=True)['a'].tolist() == [1.0, 1.0]


def test_code_in_a_plain_pickle_is_not_run(tmp_path):
    trace = tmp_path / 'trace'
    (tmp_path / 'file.pth').write_bytes(pickle.dumps(Call(os.mkdir, str(trace)), protocol=2))
    with pytest.raises(UserError, match='cannot be read'):
        read_checkpoint(tmp_path / 'file.pth')
    assert not trace.exists()


@pytest.mark.skipif(not unpickling.ALLOWS_BY_NAME, reason='PyTorch before 2.6')
def test_mmengine_reads_the_history_of_a_run_with_plain_torch(tmp_path):
    unpickling.allow_plain_classes()  # again: onedl's mmengine takes some back after it read a file
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    torch.save({'message_hub': history}, tmp_path / 'run.pth')
    loaded = torch.load(tmp_path / 'run.pth', weights_only=True)['message_hub']
    assert loaded.statistics('mean') == 2.0
    torch.save(Call(getattr, HistoryBuffer, '__init__'), tmp_path / 'payload.pth')
    with pytest.raises(UnpicklingError, match='__init__'):
        torch.load(tmp_path / 'payload.pth', weights_only=True)


@pytest.mark.skipif(not unpickling.ALLOWS_BY_NAME, reason='PyTorch before 2.6')
def test_plain_torch_takes_no_bytes_for_addresses(tmp_path):
    """NumPy restores a dtype of numbers with a field of objects, whose addresses they are."""
    unpickling.allow_plain_classes()
    objects = call('numpy.dtype', text('O'), b'\x89', b'\x88')
    field = b'(' + text('a') + T, b'}' + text('a') + b'(' + objects + number(0) + T + b's'
    content = array(numbers(1), dtype('f8', b'N', *field), latin(8))
    (tmp_path / 'file.pth').write_bytes(with_pickle(P + content + END))
    loaded = torch.load(tmp_path / 'file.pth', weights_only=True)
    assert loaded.dtype.names is None
    with pytest.raises(UserError, match=r'more than weights \(numpy\.dtype\)'):
        read_checkpoint(tmp_path / 'file.pth')


def test_a_dtype_without_a_storage_class_is_read(tmp_path):
    value = torch.ones(2).to(torch.float8_e5m2)
    torch.save({'a': value}, tmp_path / 'file.pth')
    loaded = read_checkpoint(tmp_path / 'file.pth')['a']
    assert loaded.dtype == value.dtype
    assert torch.equal(loaded.float(), value.float())


def directory(archive: bytes) -> tuple[bytes, bytes, int]:
    """The records of an archive, its directory, and how many entries that has."""
    end = archive.rfind(b'PK\5\6')
    count, size, start = struct.unpack('<HII', archive[end + 10 : end + 20])
    return archive[:start], archive[start : start + size], count


def moved(entries: bytes, by: int) -> bytes:
    """A directory of records that lie elsewhere."""
    result, at = bytearray(entries), 0
    while at < len(result):
        lengths = struct.unpack('<HHH', result[at + 28 : at + 34])
        (place,) = struct.unpack('<I', result[at + 42 : at + 46])
        result[at + 42 : at + 46] = struct.pack('<I', (place + by) & 0xFFFFFFFF)
        at += 46 + sum(lengths)
    return bytes(result)


def test_what_is_read_is_what_was_compared_with_its_checksum(tmp_path):
    """One file, two directories: PyTorch's reader takes another one than Python's."""

    values = torch.arange(4.0)
    good = saved({'w': values})
    bad = good.replace(values.numpy().tobytes(), torch.full((4,), 666.0).numpy().tobytes())
    bad_records, bad_directory, count = directory(bad)
    good_records, entries, _ = directory(good)
    offset = len(bad_records)
    by = len(bad_records) + len(bad_directory) - (len(bad_directory) + len(good_records))
    end = struct.pack('<4sHHHHIIH', b'PK\5\6', 0, 0, count, count, len(entries), offset, 0)
    file = bad_records + bad_directory + good_records + moved(entries, by) + end
    (tmp_path / 'two.pth').write_bytes(file)
    assert torch.load(tmp_path / 'two.pth', weights_only=True)['w'].tolist() == [666.0] * 4
    assert read_checkpoint(tmp_path / 'two.pth')['w'].tolist() == [0.0, 1.0, 2.0, 3.0]
