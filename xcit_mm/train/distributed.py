"""The connection of the processes of a run, and the mean of their gradients."""

import os
from collections.abc import Iterable

import torch
from mmengine.config import Config
from mmengine.dist import all_reduce, get_world_size, init_dist
from mmengine.model import is_model_wrapper
from mmengine.utils.dl_utils import set_multi_processing
from torch import distributed as dist
from torch import nn

from ..base.errors import UserError, reason
from ..base.processes import connect, cpu_group


def connect_run(cfg: Config) -> None:
    """Connect the processes of a launcher, as mmengine's runner would.

    Raises:
        UserError: If a process has not arrived in time.
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


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients over all processes, as DistributedDataParallel does.

    A parameter that a process has not used counts as zero there. If no process has used it, it
    remains without a gradient.
    """
    if get_world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    are_used = torch.tensor([parameter.grad is not None for parameter in trained]).byte()
    all_reduce(are_used, 'max', cpu_group())
    for parameter, is_used in zip(trained, are_used.tolist(), strict=True):
        if is_used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            all_reduce(parameter.grad, 'mean')
