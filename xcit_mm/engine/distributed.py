"""Connection of the processes of a run."""

import os

import torch
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.model import is_model_wrapper
from mmengine.utils.dl_utils import set_multi_processing
from torch import distributed as dist
from torch import nn

from ..errors import UserError, reason
from ..processes import connect


def connect_run(cfg: Config) -> None:
    """Connect the processes of a launcher, as mmengine's runner would.

    Raises:
        UserError: If a process has not arrived after ten minutes.
    """
    if not torch.cuda.is_available():
        connect()  # mmengine's start needs CUDA devices
        return
    settings = cfg.get('env_cfg') or {}
    set_multi_processing(**settings.get('mp_cfg', {}), distributed=True)
    try:
        init_dist(cfg.launcher, **settings.get('dist_cfg', {}))  # NCCL waits for ten minutes
    except dist.DistError as error:
        address = f'{os.environ.get("MASTER_ADDR")}:{os.environ.get("MASTER_PORT")}'
        raise UserError(
            f'not all processes have arrived at {address} ({reason(error)}): see the messages of '
            'the others, and start all of them again'
        ) from error


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself."""
    return model.module if is_model_wrapper(model) else model
