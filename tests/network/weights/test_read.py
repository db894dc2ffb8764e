"""Checkpoint files are read without running code, and a file that cannot be read says why."""

import argparse
import collections
import os

import numpy as np
import pytest
import timm
import torch
from helpers import randomize
from helpers.pickles import assert_same, records, saved, zipped
from huggingface_hub import constants
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file

from xcit_mm import UserError
from xcit_mm.network.weights.pretrained import require_file
from xcit_mm.network.weights.read import read_checkpoint


def content() -> dict:
    """The kinds of values that real checkpoints hold."""
    state = collections.OrderedDict(
        half=torch.ones(3, dtype=torch.float16),
        view=torch.arange(12.0).reshape(3, 4)[1:, ::2],
        eight_bits=torch.ones(2).to(torch.float8_e5m2),
        parameter=torch.nn.Parameter(torch.ones(2)),
    )
    state._metadata = collections.OrderedDict({'': {'version': 1}})
    return {
        'args': argparse.Namespace(lr=1, out=None),
        'history': HistoryBuffer([1.0, 3.0], [1, 1]),
        'scalars': [np.float64(0.5), np.int64(-3), np.bool_(True), np.str_('ab'), np.str_('')],
        'arrays': [
            np.array([[1, 2, 3]], dtype=np.uint8),
            np.array(['circle', 'square']),
            np.asfortranarray(np.eye(3)[:2]),
            np.ones((2, 3), '>f8'),
            np.zeros((0, 3)),
        ],
        'state_dict': state,
        'optimizer': {'step': 3, 'betas': (0.9, 0.999), 'fused': None, 'keys': {1, 2}, 3: b'a'},
        'rest': [collections.Counter([2, 3]), torch.Size([1, 2]), torch.float16, 1j, b'', 2**63],
    }


def test_what_checkpoints_hold_is_read_and_can_be_saved_again(tmp_path):
    path = tmp_path / 'file.pth'
    torch.save(content(), path)
    before = torch.serialization.get_safe_globals()
    loaded = read_checkpoint(path)
    assert set(torch.serialization.get_safe_globals()) == set(before)  # PyTorch is unchanged
    assert_same(content(), loaded)
    assert loaded['state_dict']['view'].stride() == (4, 2)
    torch.save(loaded, path)
    with torch.serialization.safe_globals([HistoryBuffer, np.ndarray, np.dtype]):  # the caller's
        assert_same(content(), read_checkpoint(path))
    assert_same(content(), read_checkpoint(path, trusted=True))


def test_a_file_written_with_numpy_1_is_read(tmp_path):
    """NumPy 2 moved the functions that restore its values."""
    values = {'lr': np.float64(0.5), 'mean': np.array([1.0, 2.0])}
    parts = records(saved(values))
    old = {k: v.replace(b'numpy._core.', b'numpy.core.') for k, v in parts.items()}
    assert any(b'numpy.core.' in data for data in old.values())
    (tmp_path / 'old.pth').write_bytes(zipped(old))
    assert_same(values, read_checkpoint(tmp_path / 'old.pth'))


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_a_file_that_needs_code_is_refused_with_its_name_and_run_if_it_is_trusted(tmp_path):
    path, trace = tmp_path / 'file.pth', tmp_path / 'trace'
    for hook, name in (
        (Call(os.mkdir, str(trace)), r'posix\.mkdir'),
        (torch.nn.Linear(2, 2), r'torch\.nn\.modules\.linear\.Linear'),
    ):
        torch.save({'state_dict': {'a': torch.zeros(1)}, 'hook': hook}, path)
        message = (
            rf'file\.pth cannot be read: it .* needs more than weights.*{name} .*--trust-checkpoint'
        )
        with pytest.raises(UserError, match=message):
            read_checkpoint(path)
    assert not trace.exists()
    torch.save({'hook': Call(os.mkdir, str(trace))}, path)
    read_checkpoint(path, trusted=True)
    assert trace.exists()


def test_a_file_from_before_pytorch_1_6_is_read(tmp_path):
    values = content()
    del values['state_dict']['eight_bits']  # which did not exist
    torch.save(values, tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    assert_same(values, read_checkpoint(tmp_path / 'old.pth'))


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (b'<!DOCTYPE html><html>Not Found</html>', r".*starts with b'<!DOCTYPE html><'"),
        (b'', r".*starts with b''"),
        (saved(content())[:-1000], 'it is cut off'),
    ],
)
@pytest.mark.parametrize('trusted', [False, True])
def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path, data, message, trusted):
    (tmp_path / 'page.pth').write_bytes(data)
    with pytest.raises(UserError, match=rf'page\.pth cannot be read: {message}') as error:
        read_checkpoint(tmp_path / 'page.pth', trusted=trusted)
    assert '\n' not in str(error.value)


def test_a_file_that_does_not_exist_or_is_a_pipe_is_refused(tmp_path):
    with pytest.raises(UserError, match=r'gone\.pth cannot be read: it does not exist$'):
        read_checkpoint(tmp_path / 'gone.pth')
    os.mkfifo(tmp_path / 'a.pth')
    with pytest.raises(UserError, match='Not a regular file'):
        read_checkpoint(tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r'a\.pth is not a regular file'):
        require_file(str(tmp_path / 'a.pth'))
    with pytest.raises(
        UserError, match=rf'{tmp_path} has no model\.safetensors: name a file in it'
    ):
        require_file(str(tmp_path))


def test_timm_by_name_reads_the_cache_of_the_hub(tmp_path, monkeypatch):
    reference = timm.create_model('xcit_nano_12_p16_224')
    randomize(reference)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
    name = 'timm://xcit_nano_12_p16_224.fb_in1k'
    with pytest.raises(UserError, match=f'{name} cannot be downloaded .*on another machine'):
        read_checkpoint(name)
    cache = tmp_path / 'models--timm--xcit_nano_12_p16_224.fb_in1k'
    snapshot = cache / 'snapshots' / ('0' * 40)
    snapshot.mkdir(parents=True)
    (cache / 'refs').mkdir(exist_ok=True)
    (cache / 'refs' / 'main').write_text('0' * 40)
    save_file(reference.state_dict(), snapshot / 'model.safetensors')
    assert_same(dict(reference.state_dict()), dict(read_checkpoint(name)))
    with pytest.raises(UserError, match=r'timm has no XCiT of this name; timm\.list_pretrained'):
        read_checkpoint('timm://xcit_huge')
