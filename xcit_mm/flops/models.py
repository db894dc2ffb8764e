"""Backbones, classifiers, detectors and segmentors, counted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.config.load import load_config
from ..engine.model import build_model
from ..environment import require
from ..errors import UserError
from ..models.archs import released_name
from ..models.timm import accelerate
from ..models.xcit import XCiT
from .counting import Count, Part, image_of, parameters, part, xcit_parts


def count_backbone(arch: str, patch_size: int, size: tuple[int, int]) -> Count:
    """Count a backbone with its pyramid.

    Args:
        arch: 'n12', 't12', ..., as of :class:`xcit_mm.XCiT`.
        patch_size: 8 or 16.
        size: (height, width) of the image in pixels.

    Raises:
        UserError: If there is no such backbone, or the image is too small for it.
    """
    _, parts = xcit_parts(_backbone(arch, patch_size), image_of(size))
    return Count(f'XCiT-{arch.upper()}/{patch_size}, backbone', size, tuple(parts))


def count_classifier(arch: str, patch_size: int, size: tuple[int, int]) -> Count:
    """Count timm's classifier of ImageNet's 1000 classes (paper, table 1).

    In its two class-attention layers the paper counts the queries of all tokens, although that
    of the class token alone is used; so does ``multiply_adds``, but not ``computed``.

    Args:
        arch: 'n12', 't12', ..., as of :class:`xcit_mm.XCiT`.
        patch_size: 8 or 16.
        size: (height, width) of the image in pixels.

    Raises:
        UserError: If there is no such classifier, or timm is not installed.
    """
    _backbone(arch, patch_size)  # its errors name the choices
    require('timm')
    import timm

    name = released_name(arch, patch_size)
    with torch.device('meta'):
        model = accelerate(timm.create_model(name).eval())
    _, parts = xcit_parts(model, image_of(size))
    tokens = -(-size[0] // patch_size) * -(-size[1] // patch_size)
    queries = tokens * model.embed_dim**2 * len(model.cls_attn_blocks)
    parts = [
        replace(p, multiply_adds=p.multiply_adds + queries) if p.name == 'class attention' else p
        for p in parts
    ]
    return Count(f'XCiT-{arch.upper()}/{patch_size}, classifier', size, tuple(parts))


def count_config(
    config: str | Path, size: tuple[int, int], options: Mapping[str, Any] | None = None
) -> Count:
    """Count the detector or segmentor of a config, as it predicts one image.

    Args:
        config: Path of a config file.
        size: (height, width) in pixels of the image that the model is given, behind all resizing.
        options: As of :func:`xcit_mm.engine.config.load.load_config`.

    Raises:
        UserError: If the config is wrong, its model of a kind that cannot be counted, or the
            image too small.
    """
    cfg = load_config(config, options)
    model = build_model(cfg, 'meta')
    padded = _padded(size, getattr(model.data_preprocessor, 'pad_size_divisor', 1))
    notes = [] if padded == size else [f'The image is padded to {padded[0]}x{padded[1]}.']
    if isinstance(model.backbone, XCiT):
        maps, parts = xcit_parts(model.backbone, image_of(padded))
        parts = [replace(p, name=f'backbone, {p.name}') for p in parts]
    else:
        maps, counted = part('backbone', model.backbone, image_of(padded))
        parts = [counted]
    if model.with_neck:
        maps, counted = part('neck', model.neck, maps)
        parts.append(counted)
    parts += _heads(model, maps, notes)
    return Count(f'{Path(config).stem}, {type(model).__name__}', size, tuple(parts), tuple(notes))


def _backbone(arch: str, patch_size: int) -> XCiT:
    with torch.device('meta'):
        return XCiT(arch, patch_size).eval()


def _padded(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    height, width = (-(-side // divisor) * divisor for side in size)
    return height, width


def _heads(model: nn.Module, maps: tuple[Tensor, ...], notes: list[str]) -> list[Part]:
    roi_head = getattr(model, 'roi_head', None)
    if isinstance(getattr(roi_head, 'bbox_head', None), nn.Module):
        return _region_heads(model, maps, notes)
    for name in ('decode_head', 'bbox_head'):  # of segmentors, of single-stage detectors
        head = getattr(model, name, None)
        if isinstance(head, nn.Module) and not isinstance(head, nn.ModuleList):
            try:
                parts = [part(name.replace('_', ' '), head, maps)[1]]
            except TypeError:  # it takes more than maps, as those of transformers
                break
            return parts + _auxiliary_heads(model, notes)
    raise UserError(
        f'the model {type(model).__name__} cannot be counted: there are detectors with one stage, '
        'or with an RPN and a head of regions, and segmentors with one decode head'
    )


def _auxiliary_heads(model: nn.Module, notes: list[str]) -> list[Part]:
    if not getattr(model, 'with_auxiliary_head', False):
        return []
    notes.append('The auxiliary head computes in training alone.')
    return [Part('auxiliary head', parameters(model.auxiliary_head), 0, 0)]


def _region_heads(model: nn.Module, maps: tuple[Tensor, ...], notes: list[str]) -> list[Part]:
    """The heads at as many regions as there can be: how many there are, the image decides."""
    roi_head = model.roi_head
    proposals, objects = model.test_cfg.rpn.max_per_img, model.test_cfg.rcnn.max_per_img
    parts = [part('RPN head', model.rpn_head, maps)[1]]
    parts.append(
        _at_regions('box head', roi_head.bbox_head, roi_head.bbox_roi_extractor, proposals)
    )
    notes.append(f'The box head is counted for {proposals} proposals, the most that it gets.')
    if roi_head.with_mask:
        extractor = roi_head.mask_roi_extractor
        parts.append(_at_regions('mask head', roi_head.mask_head, extractor, objects))
        notes.append(f'The mask head is counted for {objects} objects, the most that it gets.')
    return parts


def _at_regions(name: str, head: nn.Module, extractor: nn.Module, regions: int) -> Part:
    size = extractor.roi_layers[0].output_size
    return part(name, head, torch.empty(regions, extractor.out_channels, *size, device='meta'))[1]
