"""The largest batch that fits into memory, and gradient accumulation up to the recipe's batch."""

import ast
import gc
import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, all_reduce, get_world_size, is_distributed
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from ..base.errors import UserError, is_out_of_memory, reason
from ..base.free_memory import free_memory
from ..base.processes import cpu_group, together
from ..config.adapt import AUTO
from ..config.tree import class_name, typed_nodes
from ..data.datasets.samples import seed_all

LOADER = 'train_dataloader'
IN_PROCESS = dict(batch_size=1, num_workers=0, timeout=0)
IN_PROCESS |= dict(persistent_workers=False, prefetch_factor=None)
SHARE = 0.9  # of the memory that a probe may use; the rest is for images that it has not drawn
CANDIDATES = 8  # images of which each of the largest kinds is drawn
DRAWS = 4  # of each of them: a pipeline has random sizes
FORGET_PEAK = Path('/proc/self/clear_refs')
# What a schedule counts in iterations.
COUNTED = 'begin', 'end', 'milestones', 'T_max', 'step_size', 'total_steps', 'periods'
COUNTED_OF_LOOP = 'max_iters', 'val_interval', 'val_begin', 'dynamic_intervals'
COUNTED_OF_EMA = 'begin_iter', 'interval', 'gamma'


def choose_batch_size(cfg: Config) -> list[str]:
    """Replace ``train_dataloader.batch_size='auto'`` by the largest batch that fits into memory.

    The batch size is measured in training steps with the largest images that the pipeline draws.
    Gradients of several batches are accumulated until an update has as many images as in the recipe
    (``auto_scale_lr.base_batch_size``). The iterations of the run, its validations, schedule and
    checkpoints are multiplied by the number of accumulated batches, so that the run makes as many
    updates as the recipe. All processes use the smallest batch size that any of them measures. A
    resumed run reads the batch size from the config in its work dir.

    Edits ``cfg``, and returns sentences for the log.

    Raises:
        UserError: If not even one image fits, if no training image can be read, or if the config of
            a resumed run has no batch size.
    """
    if cfg.train_dataloader.get('batch_size') != AUTO:
        return []
    base, world = cfg.auto_scale_lr.base_batch_size, get_world_size()
    most = max(1, base // world)
    if cfg.get('resume'):
        size = _kept(Path(cfg.work_dir, Path(cfg.filename).name))
        how = 'it is the batch of the run that resumes'
    else:
        with together(cpu_group()):
            size, how = _measured(cfg, [n for n in range(most, 0, -1) if most % n == 0])
        _release()
        smallest = torch.tensor(size)
        all_reduce(smallest, 'min', cpu_group())
        size = int(smallest)
    cfg.train_dataloader.batch_size = size
    counts = max(1, most // size)
    notes = [
        f'train_dataloader.batch_size={size}: {how}. An update has {size * counts * world} images '
        f'(batch {size}, accumulative_counts {counts}, processes {world}), the recipe {base}.'
    ]
    return notes + _accumulate(cfg, counts)


def _accumulate(cfg: Config, counts: int) -> list[str]:
    """Accumulate the gradients of ``counts`` iterations, and multiply what is in iterations."""
    if counts == 1:
        return []
    cfg.optim_wrapper.accumulative_counts = counts
    changed = []

    def multiply(node: dict, names: Sequence[str], place: str) -> None:
        for name in names:
            if name in node:
                value, node[name] = node[name], _times(node[name], counts)
                changed.extend([f'{place}.{name}={node[name]}'] if node[name] != value else [])

    for place, scheduler in typed_nodes(cfg.get('param_scheduler') or [], 'param_scheduler'):
        if not scheduler.get('by_epoch', True):
            multiply(scheduler, COUNTED, place)
            if class_name(scheduler['type']).startswith('Exponential'):  # gamma of an iteration
                scheduler['gamma'] **= 1 / counts
                changed.append(f'{place}.gamma={scheduler["gamma"]}')
    if 'max_iters' in cfg.train_cfg:
        cfg.train_cfg.setdefault('val_interval', 1000)  # mmengine's default
        multiply(cfg.train_cfg, COUNTED_OF_LOOP, 'train_cfg')
    checkpoint = cfg.default_hooks.checkpoint
    if checkpoint is not None and not checkpoint.get('by_epoch', True):
        multiply(checkpoint, ('interval', 'save_begin'), 'default_hooks.checkpoint')
    for place, hook in _averages(cfg):
        hook.setdefault('interval', 1)
        if hook.get('ema_type') == 'ExpMomentumEMA':
            hook.setdefault('gamma', 2000)  # mmengine's default
        multiply(hook, COUNTED_OF_EMA, place)
    return [f'{counts} iterations are an update: {", ".join(changed)}.'] if changed else []


def _times(value: Any, counts: int) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_times(inner, counts) for inner in value)
    return value * counts if type(value) is int and value > 0 else value


def _averages(cfg: Config) -> list[tuple[str, dict]]:
    """Return the hooks that average the weights, with their places."""
    parts = ('default_hooks', 'custom_hooks')
    nodes = (node for part in parts for node in typed_nodes(cfg.get(part) or [], part))
    return [(place, node) for place, node in nodes if 'EMAHook' in class_name(node['type'])]


def _kept(path: Path) -> int:
    """Read the batch size of a run from the config in its work dir, without executing the file."""
    size = None
    with suppress(OSError, ValueError, SyntaxError):
        for node in ast.parse(path.read_text(encoding='utf-8')).body:
            is_loader = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == LOADER
            keywords = node.value.keywords if is_loader and isinstance(node.value, ast.Call) else []
            sizes = [word.value for word in keywords if word.arg == 'batch_size']
            size = ast.literal_eval(sizes[0]) if sizes else size
    size = all_gather_object(size, cpu_group())[0]
    if type(size) is not int or size < 1:
        raise UserError(
            f'--resume with {LOADER}.batch_size={AUTO}: {path} has no batch_size, where the run '
            'keeps it: write the number that the log of the run names'
        )
    return size


def _measured(cfg: Config, sizes: list[int]) -> tuple[int, str]:
    """Return the first of the decreasing sizes that fits into memory, and the reason as text."""
    init_default_scope(cfg.default_scope)
    device = torch.device(get_device())
    (largest, *samples), collate = _largest_samples(cfg, max(sizes))
    # Processes measure apart, so nothing is synchronized.
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).to(device)
    wrapper = build_optim_wrapper(model, deepcopy(cfg.optim_wrapper))
    copies = is_distributed() + bool(_averages(cfg))
    held = sum(p.numel() * p.element_size() for p in model.parameters()) * copies

    def step(size: int) -> None:
        ballast = torch.empty(held, dtype=torch.uint8, device=device).fill_(0)
        seed_all(size)
        for _ in range(2):  # the first makes the state of the optimizer
            model.train()
            # A step changes its samples, for example by padding their masks.
            batch = [deepcopy(samples[i % len(samples)]) for i in range(size)]
            model.train_step(collate(batch if size > 1 else [deepcopy(largest)]), wrapper)
        del ballast

    measure = _first_on_gpu if device.type == 'cuda' else _first_in_memory
    return measure(step, sizes)


def _largest_samples(cfg: Config, number: int) -> tuple[list[Any], Callable]:
    """Draw the largest training sample, and a batch of the tallest, the widest and large ones.

    A batch is padded to the height of the tallest and the width of the widest image. Also returns
    what joins samples to a batch.
    """
    loader = Runner.build_dataloader({**cfg.train_dataloader, **IN_PROCESS}, seed=0)
    infos = [loader.dataset.get_data_info(i) for i in range(len(loader.dataset))]

    def drawn(index: int, draw: int) -> Any:
        seed_all(index, draw)
        return loader.dataset[index]

    sizes, problem = {}, None
    for place in product(_candidates(infos), range(DRAWS)):
        try:
            sample = drawn(*place)
        except Exception as error:  # a run replaces bad samples, and names them
            problem = reason(error)
            continue
        sizes[place] = _size(sample.get('inputs') if isinstance(sample, dict) else sample)
    if not sizes:
        raise UserError(f'batch_size={AUTO}: no training image can be read: {problem}')

    def demand(place: tuple[int, int]) -> tuple[int, int]:
        height, width = sizes[place]
        return height * width, len(infos[place[0]].get('instances') or ())

    order = sorted(sizes, key=demand, reverse=True)
    tallest, widest = (max(order, key=lambda place, k=k: sizes[place][k]) for k in (0, 1))
    batch = [tallest, widest, *order][:number]
    return [drawn(*place) for place in (order[0], *batch)], loader.collate_fn


def _candidates(infos: list[dict]) -> list[int]:
    """Return the images with the most pixels, rows, columns and objects, as far as is known."""
    sizes = [(info.get('height') or 0, info.get('width') or 0) for info in infos]
    keys = (
        lambda i: sizes[i][0] * sizes[i][1],
        lambda i: sizes[i][0],
        lambda i: sizes[i][1],
        lambda i: len(infos[i].get('instances') or ()),
    )
    every = range(len(infos))
    return sorted({i for key in keys for i in sorted(every, key=key, reverse=True)[:CANDIDATES]})


def _size(inputs: Any) -> tuple[int, int]:
    """Return the height and width of the inputs of a sample, which may be several views."""
    if isinstance(inputs, (list, tuple)):
        return max(map(_size, inputs))
    return (0, 0, *getattr(inputs, 'shape', ()))[-2:]


def _first_on_gpu(step: Callable[[int], None], sizes: list[int]) -> tuple[int, str]:
    torch.cuda.set_per_process_memory_fraction(SHARE)
    try:
        for size in sizes:
            try:
                step(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            else:
                peak = torch.cuda.max_memory_reserved()
                return size, f'steps with the largest images take {_megabytes(peak)} of the GPU'
            _release()  # not above, where the error still holds the tensors of the step
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    raise UserError(_too_small('the memory of the GPU'))


def _first_in_memory(step: Callable[[int], None], sizes: list[int]) -> tuple[int, str]:
    """Measure one and two images, because a system that is out of memory kills the process."""
    sharing = int(os.environ.get('LOCAL_WORLD_SIZE', get_world_size()))
    free, before = int(SHARE * free_memory()) // sharing, _peak(gc.collect)
    one = _peak(lambda: step(1)) - before
    each = _peak(lambda: step(2)) - before - one if sizes[0] > 1 else 0
    for size in sizes:
        needed = one + (size - 1) * max(0, each)
        if needed <= free:
            return size, f'steps with the largest images take {_megabytes(needed)} of memory'
    raise UserError(_too_small(f'{_megabytes(free)} of memory: one image takes {_megabytes(one)}'))


def _peak(call: Callable[[], object]) -> int:
    """Return the most bytes that this process has in memory during a call.

    Linux knows them, because it can forget an earlier peak. Elsewhere, and where a container does
    not allow that, the memory is read every few milliseconds. (``getrusage`` would also count the
    peak of the program that started this one.)
    """
    try:
        FORGET_PEAK.write_text('5', encoding='utf-8')
    except OSError:
        return _watched_peak(call)
    call()
    status = Path('/proc/self/status').read_text(encoding='utf-8')
    return int(re.search(r'^VmHWM:\s*(\d+) kB', status, re.MULTILINE)[1]) * 1024


def _watched_peak(call: Callable[[], object]) -> int:
    process, done = psutil.Process(), threading.Event()
    peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return peak


def _too_small(memory: str) -> str:
    return (
        f'{LOADER}.batch_size={AUTO}: not even one image can be trained within {SHARE:.0%} of '
        f'{memory}; use a smaller model or smaller images, or model.backbone.with_cp=True'
    )


def _megabytes(size: float) -> str:
    return f'{max(0, size) / 2**20:.0f} MiB'


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
