"""Train and test with the runner, loops, hooks and metrics that our configs name."""

from . import hooks, loops, runner  # registered with mmengine
from .train import test, train

__all__ = ['hooks', 'loops', 'runner', 'test', 'train']
