"""Files with the weights of other releases under our names."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ...base.errors import UserError, reason
from ...base.files import require_writable_file, write_whole
from ...network.weights.inflation import RGB, inflate
from ...network.weights.names import (
    HEAD,
    PATCH_SIZE,
    architecture,
    backbone_state,
    detector_state,
    model_state,
    require_finite,
)
from ...network.weights.read import read_checkpoint


def convert(
    source: str | Path,
    target: Path,
    trusted: bool = False,
    in_channels: int | None = None,
    rgb: Sequence[int] | None = None,
) -> str:
    """Write the weights of a checkpoint under our names, for mmengine to load.

    ``target`` is a new file with ``{'state_dict': ...}`` of the whole detector or segmentor, or of
    the backbone if the source is a classifier or a DINO model. With ``in_channels``, weights
    for RGB are adapted (see :func:`~xcit_mm.network.weights.inflation.inflate`).

    Returns:
        A sentence on what was written.
    """
    if target.exists():
        raise UserError(f'{target} already exists; name a new file')
    require_writable_file(target)
    checkpoint = read_checkpoint(source, trusted=trusted)
    state = model_state(checkpoint, source)
    is_whole = any(name.split('.')[0].endswith(HEAD) for name in state)
    state = detector_state(state) if is_whole else backbone_state(state)
    require_finite(state, source)
    inflated = ''
    if in_channels is not None or rgb is not None:
        state, inflated = inflate(state, in_channels or RGB, source, rgb)
    shape = architecture(state, source, checkpoint)
    kind = f'{"a model with " if is_whole else ""}{shape}'
    meta = {'source': str(source), PATCH_SIZE: shape.patch_size}
    try:
        with write_whole(target) as file:
            torch.save({'meta': meta, 'state_dict': state}, file)
    except OSError as error:
        raise UserError(f'{target} cannot be written ({reason(error)})') from None
    return f'{target}: {len(state)} tensors of {kind}{inflated and f". {inflated}"}'
