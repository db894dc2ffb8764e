"""Train and test with the runner, loops, hooks and metrics that our configs name."""

from . import (
    hooks,
    layer_decay,
    loops,
    optim_wrapper,
    runner,
    test_loop,
)  # registered with mmengine
from .train import test, train

__all__ = ['hooks', 'layer_decay', 'loops', 'optim_wrapper', 'runner', 'test', 'test_loop', 'train']
