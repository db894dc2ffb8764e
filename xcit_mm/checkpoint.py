"""Weights from files into our models: all of them, or an error."""

import argparse
from collections.abc import Container, Mapping
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import CheckpointLoader
from mmengine.utils import digit_version
from torch import Tensor, nn

from .errors import UserError, reason

# The classification head of the released ImageNet models, which a dense task has no use for.
CLASSIFIER = ('cls_token', 'cls_attn_blocks.', 'norm.', 'head.')
# The pyramid exists in detectors and segmentors only; from ImageNet it starts at random.
PYRAMID = ('fpn1.', 'fpn2.')


def allow_plain_classes() -> None:
    """Let ``torch.load(weights_only=True)`` read what mmengine writes into a checkpoint.

    Since PyTorch 2.6 this is the default, and mmengine 0.10.7 cannot read its own files: they
    hold the history of the logged values, and those of the authors' release an
    ``argparse.Namespace``. None of what is allowed here runs code when it is unpickled.
    """
    if digit_version(torch.__version__) < digit_version('2.6'):
        return
    reconstruct, scalar = np.array(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(t)) for t in (np.float64, np.float32, np.int64, np.int32, np.bool_)}
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            HistoryBuffer,
            (_history_method, 'builtins.getattr'),
            np.ndarray,
            np.dtype,
            reconstruct,
            scalar,
            *dtypes,
        ]
    )


def _history_method(owner: object, name: str) -> Any:
    """What getattr may do in a checkpoint: a history refers to its own methods by it."""
    if owner is not HistoryBuffer or name.startswith('_'):
        raise UnpicklingError(f'getattr of {name!r} from {owner!r}, which no checkpoint needs')
    return getattr(owner, name)


def read_state(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint file.

    Args:
        path: A file or URL with a state dict, by itself or under ``state_dict`` (mmengine) or
            ``model`` (the authors' ImageNet release).

    Raises:
        UserError: If there is no such file, or it holds something else.
    """
    try:
        checkpoint = CheckpointLoader.load_checkpoint(path, map_location='cpu')
    except Exception as error:  # of the network, the file system, zip and pickle
        raise UserError(f'the checkpoint {path} cannot be read ({reason(error)})') from None
    state = checkpoint
    for wrapper in ('state_dict', 'model'):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not any(isinstance(v, Tensor) for v in state.values()):
        raise UserError(
            f'the checkpoint {path} holds no state dict, by itself or under state_dict or model'
        )
    return dict(state)


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the weights of the XCiT backbone out of a state dict.

    Args:
        state: Of an ImageNet release of the authors, of a detector or segmentor (``backbone.``
            names), or of a backbone.

    Returns:
        The names and tensors of the backbone, without what belongs to the classifier.
    """
    prefix = 'backbone.'
    if any(name.startswith(prefix) for name in state):
        state = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
    return {k: v for k, v in state.items() if not k.startswith(CLASSIFIER)}


def load_pretrained(backbone: nn.Module, path: str | None) -> None:
    """Load pretrained weights into an XCiT backbone and log how many tensors came.

    Args:
        backbone: An :class:`xcit_mm.XCiT`.
        path: A file or URL in one of the formats of :func:`read_state`.

    Raises:
        UserError: If the file cannot be read, or does not hold just the tensors of this
            backbone; only the pyramid may be missing. The message shows the first
            differences. Nothing is loaded then.
    """
    if not path:
        raise UserError("init_cfg=dict(type='Pretrained', checkpoint=...) names no checkpoint")
    given, wanted = backbone_state(read_state(path)), backbone.state_dict()
    may_be_missing = {name for name in wanted if name.startswith(PYRAMID)}
    require_same_tensors(given, wanted, path, may_be_missing)
    backbone.load_state_dict(given, strict=False)
    print_log(f'Loaded {len(given)} of the {len(wanted)} tensors of XCiT from {path}', 'current')


def require_same_tensors(
    given: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    path: str,
    may_be_missing: Container[str] = (),
) -> None:
    """Compare a state from a file with a model's, by names and shapes.

    mmengine loads what fits and logs the rest, so that a model of random weights is evaluated
    or trained where a file belongs to another one.

    Raises:
        UserError: If they differ, with the first differences.
    """
    differences = [
        f'{name} is {_shape(given, name)} in the file and {_shape(wanted, name)} in the model'
        for name in {**given, **wanted}
        if _shape(given, name) != _shape(wanted, name)
        and not (name not in given and name in may_be_missing)
    ]
    if differences:
        raise UserError(
            f'{path!r} does not hold the weights of this model (another arch, patch size or '
            f'config?); {len(differences)} tensors differ, first: ' + '; '.join(differences[:3])
        )


def _shape(state: Mapping[str, Tensor], name: str) -> str:
    if name not in state:
        return 'absent'
    value = state[name]
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f'a {type(value).__name__}'
