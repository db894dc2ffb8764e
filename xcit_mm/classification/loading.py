"""From a checkpoint to timm's XCiT classifier: all of its weights, or an error."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..environment import require
from ..errors import UserError
from ..models.timm import accelerate
from ..weights.architecture import architecture
from ..weights.read import read_checkpoint
from ..weights.states import BACKBONE, HEAD, model_state, require_same_tensors


def load_classifier(
    path: str | Path, tokens_norm: bool | None = None, trusted: bool = False
) -> nn.Module:
    """Load a classifier; what it is, is told by the names and shapes of its tensors.

    Args:
        path: A file, URL or ``timm://NAME`` of the authors' ImageNet release, of timm, or of a
            classifier trained with their code: see
            :func:`~xcit_mm.weights.read.read_checkpoint`.
        tokens_norm: See :func:`classifier_of`.
        trusted: As of :func:`~xcit_mm.weights.read.read_checkpoint`.

    Returns:
        timm's ``Xcit`` with the attention of :func:`xcit_mm.models.timm`, in evaluation:
        (B, 3, H, W), normalised with ImageNet's mean and deviation, to logits (B, classes).

    Raises:
        UserError: If the file cannot be read, or is not just a classifier: nothing is loaded.
    """
    path = str(path)
    model = classifier_of(
        model_state(read_checkpoint(path, trusted=trusted), path), path, tokens_norm
    )
    if not model.num_classes:
        raise UserError(
            f'{path} has no head to name classes with (a DINO model has none): name the file of a '
            'classifier'
        )
    return model


def classifier_of(
    state: Mapping[str, Tensor], path: str, tokens_norm: bool | None = None
) -> nn.Module:
    """Build timm's classifier, with a head or without, from a state dict.

    Args:
        state: As of :func:`xcit_mm.weights.states.model_state`.
        path: Of the file, for the error.
        tokens_norm: Whether the class-attention layers normalise all tokens behind the
            attention, or the class token alone. The weights do not tell. None: as in the
            release, where N12 normalises the class token alone.

    Returns:
        As :func:`load_classifier`; without a head (DINO) ``num_classes`` is 0 and the output
        (B, C).

    Raises:
        UserError: If these are not just the weights of a classifier.
    """
    require('timm')
    from timm.models.xcit import Xcit

    state = {k.removeprefix(BACKBONE): v for k, v in state.items() if _is_of_model(k, state)}
    if not has_class_attention(state):
        dense = any(name.split('.')[0].endswith(HEAD) for name in state)
        what = 'it is a detector or segmentor' if dense else 'it has no class-attention layers'
        raise UserError(f'{path} holds no classifier: {what}')
    kind = architecture(state, path)
    head = state.get('head.weight')
    layers = {name.split('.')[1] for name in state if name.startswith('cls_attn_blocks.')}
    with torch.device('meta'):  # draws no random numbers: everything is replaced
        model = Xcit(
            patch_size=kind.patch_size,
            num_classes=0 if head is None else len(head) if head.ndim else 1,
            embed_dim=kind.embed_dim,
            depth=kind.depth,
            num_heads=kind.num_heads,
            cls_attn_layers=len(layers),
            tokens_norm=kind.arch != 'n12' if tokens_norm is None else tokens_norm,
        )
    model.to_empty(device='cpu')
    given = _timm_names(state)
    require_same_tensors(given, model.state_dict(), path)
    model.load_state_dict(given)
    return accelerate(model.eval())


def has_class_attention(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict holds class-attention layers, as classifiers and DINO models do."""
    return any(name.removeprefix(BACKBONE).startswith('cls_attn_blocks.') for name in state)


def _is_of_model(name: str, state: Mapping[str, Tensor]) -> bool:
    """Not of DINO's projection head, which stands beside the model that has a prefix."""
    is_dino = f'{BACKBONE}cls_token' in state
    return not is_dino or name.startswith(BACKBONE)


def _timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under timm's names, which has q, k and v of the class attention apart."""
    renamed = {}
    for name, value in state.items():
        match = re.fullmatch(r'(cls_attn_blocks\.\d+\.attn)\.qkv\.(weight|bias)', name)
        if match and value.ndim:
            for letter, part in zip('qkv', value.chunk(3), strict=False):
                renamed[f'{match[1]}.{letter}.{match[2]}'] = part
        else:
            renamed[re.sub(r'^pos_embeder\.', 'pos_embed.', name)] = value
    return renamed
