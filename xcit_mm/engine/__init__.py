"""Train and test with the runner, loops, hooks and metrics that our configs name."""

# Registered with mmengine.
from . import hooks, layer_decay, loops, optim_wrapper, runner, test_loop
from .run import test, train

__all__ = ['hooks', 'layer_decay', 'loops', 'optim_wrapper', 'runner', 'test', 'test_loop', 'train']
