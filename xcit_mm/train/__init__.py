"""Training and testing with the runner, loops, hooks and metrics that our configs name."""

# Registered with mmengine when they are imported.
from . import (  # noqa: F401
    hooks,
    layer_decay,
    loops,
    optim_wrapper,
    parameter_groups,
    runner,
)
from .checkpoints import checkpoint_hook  # noqa: F401
from .run import test, train

__all__ = ['test', 'train']
