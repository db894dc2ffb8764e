"""What only a GPU can show: ``python -m pytest -m gpu tests/gpu``.

The tests of the other folders check the same on a CPU, with a stand-in for graphs.
"""

import copy
import json
import subprocess
import sys

import pytest
import torch
from helpers import ROOT, detectors, randomize, relative_error
from helpers.runs import DETECTOR, UNDRAWN
from helpers.small_xcit import small_xcit
from torch import Tensor, nn

from benchmarks.whole_models import _samples, _with_objects
from xcit_mm import stream, stream_backward
from xcit_mm.large.tokens import passes, workspace
from xcit_mm.network.graphs import GraphedModel, graphed_part
from xcit_mm.network.graphs.captured import Captured

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU'),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}


class Wait(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.max().item() > 0 else -x


def losses(model: nn.Module, dtype: torch.dtype, graphs: GraphedModel | None) -> list[float]:
    """The losses of nine steps in three sizes, from the same random numbers."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    scaler = torch.amp.GradScaler(enabled=dtype == torch.float16)
    values = []
    for number, size in enumerate((64, 96, 128) * 3):
        torch.manual_seed(number)
        x = torch.randn(2, 3, size, size, device='cuda')
        samples = _with_objects(_samples(model, x))
        for sample in samples:
            sample.gt_instances = sample.gt_instances.to('cuda')
        if graphs is not None:
            graphs.attach()
        with torch.autocast('cuda', dtype, enabled=dtype != torch.float32):
            loss = model.parse_losses(model.loss(x, samples))[0]
        if graphs is not None:
            graphs.detach()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('dtype', DTYPES)
def test_a_detector_trains_as_without_graphs(dtype, with_cp):
    model = detectors.build('mask_rcnn_xcit_n12_16_shapes').cuda()
    model.backbone.with_cp = with_cp
    for block in model.backbone.blocks:
        block.drop_path.p = 0.3
    twin, notes = copy.deepcopy(model), []
    graphs = GraphedModel(twin, notes.append)
    assert losses(twin, dtype, graphs) == pytest.approx(
        losses(model, dtype, None), rel=TOLERANCES[dtype]
    )
    assert notes == []
    assert [(part.calls, part.replays) for part in graphs.parts] == [(9, 6), (9, 6)]
    for (name, value), wanted in zip(twin.named_buffers(), model.buffers(), strict=True):
        assert torch.allclose(value.double(), wanted.double(), rtol=0.1, atol=0.1), name


def test_a_broken_capture_leaves_random_numbers_and_the_run_intact(monkeypatch):
    model = detectors.build('mask_rcnn_xcit_n12_16_shapes').cuda()
    model.neck = nn.Sequential(model.neck)
    model.neck[0].lateral_convs[0] = nn.Sequential(model.neck[0].lateral_convs[0], Wait())
    # Without the eager pass, which would find the wait before anything is captured.
    monkeypatch.setattr(graphed_part, 'Captured', lambda *args: Captured(*args[:-1], True))
    notes = []
    graphs = GraphedModel(model, notes.append)
    losses(model, torch.float32, graphs)
    assert len(notes) == 1 and 'runs without them' in notes[0]
    torch.manual_seed(0)
    first = torch.rand(3, device='cuda')
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(3, device='cuda'))


def test_sizes_share_their_memory():
    """Of three sizes, each needs static tensors of its own, but not the memory of its layers."""
    reserved = []
    for sizes in ((640,), (640, 608, 576)):
        model = detectors.build('mask_rcnn_xcit_n12_16_shapes').cuda().train()
        graphs = GraphedModel(model, print)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graphs.attach()
        for size in sizes * 2:
            model.extract_feat(torch.randn(4, 3, size, size, device='cuda'))[0].sum().backward()
        graphs.detach()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved() - before)
        del model, graphs
    assert reserved[1] < 2 * reserved[0]


def test_a_training_under_torchrun_learns_and_is_evaluated(tmp_path, shapes_root):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=1']
    options = {
        'data_root': shapes_root,
        'train_cfg.max_iters': 100,
        'train_cfg.val_interval': 100,
        'default_hooks.checkpoint.interval': 100,
        'param_scheduler.1.end': 100,
        **UNDRAWN,
    }
    done = subprocess.run(
        [
            *command,
            'tools/train.py',
            DETECTOR,
            '--graphs',
            '--launcher=pytorch',
            f'--work-dir={tmp_path}',
            '--cfg-options',
            *(f'{name}={value}' for name, value in options.items()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'CUDA graphs: 99 of 100 steps ran captured' in done.stdout + done.stderr
    lines = (tmp_path / 'losses.jsonl').read_text().splitlines()
    first, *_, last = (json.loads(line)['loss'] for line in lines)  # means of ten steps
    assert last < 0.8 * first
    assert 'coco/bbox_mAP_50' in json.loads((tmp_path / 'metrics.jsonl').read_text())


@pytest.mark.parametrize('memory', ['gpu', 'cpu', 'files'])
def test_streamed_maps_and_gradients_equal_those_of_the_whole_image(memory, tmp_path, monkeypatch):
    """The tokens are on the GPU, or are copied to it from the CPU or from files."""
    monkeypatch.setattr(passes, 'TILE_TOKENS', 64)
    monkeypatch.setattr(passes, 'GPU_TILE_TOKENS', 256)
    if memory != 'gpu':
        monkeypatch.setattr(workspace, 'free_device_memory', lambda device: 0)
    backbone = small_xcit(8, norm_eval=True).double().cuda()
    randomize(backbone)
    image = torch.randn(3, 250, 347).double()
    maps = backbone(image[None].cuda())
    gradients = [torch.randn_like(m) for m in maps]
    torch.autograd.backward(maps, gradients)
    expected = [p.grad.clone() for p in backbone.parameters()]
    backbone.zero_grad()
    options = dict(memory=0, store=tmp_path) if memory == 'files' else dict(memory=2**30)
    for streamed, whole in zip(stream(backbone.eval(), image, **options), maps, strict=True):
        assert relative_error(torch.from_numpy(streamed), whole[0].cpu()) <= 1e-10
    backbone.zero_grad()
    stream_backward(backbone, image, [g[0].cpu() for g in gradients], **options)
    for parameter, gradient in zip(backbone.parameters(), expected, strict=True):
        assert relative_error(parameter.grad, gradient) <= 1e-10
