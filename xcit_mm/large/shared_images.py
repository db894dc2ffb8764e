"""Training on images that several processes share, each with a block of rows.

The attention of a layer adds up the moments of all processes, a convolution borrows rows from the
neighboring processes, and a BatchNorm uses the statistics of all processes. Gradients flow back
along the same paths. Each process therefore computes its rows of the outputs of a single process,
and the gradients of all processes add up to the gradients of a single process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from ..base.errors import ArgumentError
from ..base.processes import require_same
from ..network import XCiT
from .tokens.shared_rows import SharedRows
from .tokens.streamable import require_known_reach


@contextmanager
def shared_images(backbone: XCiT, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Share images among the processes of a group, within a ``with`` block.

    Within the block, ``backbone`` takes a block of rows of each image (B, channels, h, W), and
    returns the same rows of its maps. The blocks follow each other in the order of the ranks, and
    all but the last have a multiple of 32 rows. The loss of the image is the sum of the losses of
    the processes, and the gradient of a parameter is the sum of their gradients. Because
    DistributedDataParallel takes the mean instead, multiply the losses by the number of processes
    if you use it.

    Args:
        backbone: The XCiT, with the same weights in all processes.
        group: The group of processes that share an image. Default: all processes.

    Raises:
        ArgumentError: If the processes are not connected, if a layer has hooks or was replaced,
            or, in the forward pass, if the number of rows of a block is not possible.
        ProcessesError: If the layers of the backbones differ, or, in the forward pass, the batch,
            the channels, the width or the dtype of the blocks. The weights are not compared.
    """
    if not dist.is_initialized():
        raise ArgumentError('the processes are not connected: call init_process_group first')
    require_known_reach(backbone)
    require_same({'the backbone': f'{backbone!r} in training mode: {backbone.training}'}, group)
    previous, backbone.rows = backbone.rows, SharedRows(group or dist.group.WORLD)
    try:
        yield
    finally:
        backbone.rows = previous
