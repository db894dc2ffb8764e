"""The buffers of a model, the same on two processes."""

import subprocess
import sys

from helpers import ROOT

# argv: the rank, and a file to meet at.
PROCESS = """
import sys
from types import SimpleNamespace

import torch
from mmengine.model import MMDistributedDataParallel
from torch import nn

from xcit_mm.engine import BufferSyncHook

rank = int(sys.argv[1])
torch.distributed.init_process_group(
    'gloo', init_method=f'file://{sys.argv[2]}', rank=rank, world_size=2
)
model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(3))
model.register_buffer('table', torch.zeros(5, 2).t())  # not contiguous
model.register_buffer('flag', torch.zeros((), dtype=torch.bool))
wrapped = MMDistributedDataParallel(model, broadcast_buffers=False)
for number, buffer in enumerate(model.buffers()):
    buffer.copy_(torch.arange(buffer.numel()).view_as(buffer) + 10 * number + 100 * rank)
model.flag.fill_(rank == 0)
BufferSyncHook().before_val_epoch(SimpleNamespace(model=wrapped))
for number, buffer in enumerate(model.buffers()):
    expected = torch.arange(buffer.numel()).view_as(buffer) + 10 * number
    assert torch.equal(buffer, expected.to(buffer.dtype)), (rank, buffer)
"""


def test_both_validate_with_the_buffers_of_the_first(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', PROCESS, str(rank), str(tmp_path / 'here')],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == 0, said
