"""Classifiers of timm from checkpoints: with all of the weights in a file, or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...base.environment import require
from ...base.errors import UserError
from ..accelerate import accelerate
from ..archs import STEM_STRIDES
from .inflation import STEM
from .names import (
    Architecture,
    architecture,
    model_state,
    require_same_tensors,
    without_prefix,
)
from .read import read_checkpoint


def load_classifier(path: str | Path, trusted: bool = False) -> nn.Module:
    """Load a classifier of the authors' ImageNet release, of timm, or of the authors' code.

    Args:
        path: File, URL or ``timm://NAME``.
        trusted: See :func:`~xcit_mm.network.weights.read.read_checkpoint`.

    Returns:
        timm's ``Xcit`` in evaluation mode, with the blocks of :func:`.accelerate`. It
        maps images (B, 3, H, W), normalized with ImageNet's mean and standard deviation, to
        logits (B, classes).

    Raises:
        UserError: If the file cannot be read, or is not exactly a classifier.
    """
    return classifier_in(read_checkpoint(path, trusted=trusted), path)


def classifier_in(checkpoint: Any, path: str | Path) -> nn.Module:
    """Build the model of :func:`load_classifier` from what a file holds."""
    state = model_state(checkpoint, path)
    model = build_classifier(state, path, architecture(state, path, checkpoint))
    if not model.num_classes:
        raise UserError(
            f'{path} has no classification head, like every DINO model: name the file of a '
            'classifier'
        )
    return model


def build_classifier(
    state: Mapping[str, Tensor], path: str | Path, shape: Architecture
) -> nn.Module:
    """Build the model of :func:`load_classifier` from its weights; without a head for DINO.

    ``shape`` is the architecture of the weights.
    """
    require('timm')
    from timm.models.xcit import Xcit, checkpoint_filter_fn

    state = without_prefix(state)  # of a DINO training, and without its projection head
    if not has_class_attention(state):
        raise UserError(
            f'{path} is not a classifier but a backbone, detector or segmentor: it has no '
            'class-attention layers'
        )
    head = state.get('head.weight')
    class_layers = {name.split('.')[1] for name in state if name.startswith('cls_attn_blocks.')}
    with torch.device('meta'):  # skips the initialization: every value is replaced
        model = Xcit(
            patch_size=16 if shape.patch_size == 4 else shape.patch_size,
            in_chans=state[STEM].shape[1],
            num_classes=0 if head is None else len(torch.atleast_1d(head)),
            embed_dim=shape.embed_dim,
            depth=shape.depth,
            num_heads=shape.num_heads,
            cls_attn_layers=len(class_layers),
            # In the release, only N12 normalizes the class token alone after the attention.
            tokens_norm=shape.arch != 'n12',
        )
    convolutions = [layer for layer in model.patch_embed.modules() if isinstance(layer, nn.Conv2d)]
    for layer, stride in zip(convolutions, STEM_STRIDES[shape.patch_size], strict=True):
        layer.stride = stride, stride  # timm has none of 1, of patches of 4 pixels
    model.patch_embed.patch_size = shape.patch_size
    model.to_empty(device='cpu')
    weights = checkpoint_filter_fn(dict(state), model)
    require_same_tensors(weights, model.state_dict(), path)
    model.load_state_dict(weights)
    return accelerate(model.eval())


def has_class_attention(state: Mapping[str, Tensor]) -> bool:
    """Return whether weights include class-attention layers, as in classifiers and DINO models."""
    return any(name.startswith('cls_attn_blocks.') for name in without_prefix(state))
