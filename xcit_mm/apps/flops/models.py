"""Counts of backbones, classifiers, detectors and segmentors."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...base.environment import require
from ...base.errors import UserError
from ...config.build_model import build_model
from ...config.load import load_config
from ...network.accelerate import accelerate
from ...network.archs import released_name
from ...network.xcit import XCiT
from .counting import Count, Part, count_part, count_xcit, empty_image, num_parameters


def count_backbone(arch: str, patch_size: int, size: tuple[int, int]) -> Count:
    """Count a backbone with its pyramid, for an image of a size (height, width) in pixels.

    ``arch`` and ``patch_size`` are arguments of :class:`xcit_mm.XCiT`.

    Raises:
        UserError: If there is no such backbone, or the image is too small for it.
    """
    with torch.device('meta'):
        xcit = XCiT(arch, patch_size).eval()
    _, parts = count_xcit(xcit, size)
    return Count(f'XCiT-{arch.upper()}/{patch_size}, backbone', size, tuple(parts))


def count_classifier(arch: str, patch_size: int, size: tuple[int, int]) -> Count:
    """Count timm's classifier of ImageNet's 1000 classes (paper, table 1).

    In the two class-attention layers, the paper counts the queries of all tokens, although only
    the query of the class token is used. ``multiply_adds`` follows the paper, ``computed`` does
    not. For arguments and errors see :func:`count_backbone`.
    """
    require('timm')
    import timm

    with torch.device('meta'):
        XCiT(arch, patch_size)  # names the choices if there is no such model
        name = released_name(arch, patch_size)
        if not timm.is_model(name):
            raise UserError(
                f'timm has no XCiT-{arch.upper()}/{patch_size}: count the backbone without '
                '--classifier'
            )
        model = accelerate(timm.create_model(name).eval())
    tokens = -(-size[0] // patch_size) * -(-size[1] // patch_size)
    queries = tokens * model.embed_dim**2 * len(model.cls_attn_blocks)
    parts = [
        replace(p, multiply_adds=p.multiply_adds + queries) if p.name == 'class attention' else p
        for p in count_xcit(model, size)[1]
    ]
    return Count(f'XCiT-{arch.upper()}/{patch_size}, classifier', size, tuple(parts))


def count_config(
    config: str | Path, size: tuple[int, int], options: Mapping[str, Any] | None = None
) -> Count:
    """Count the detector or segmentor of a config, as it predicts one image.

    ``size`` is (height, width) in pixels of the image after resizing. For ``options`` see
    :func:`xcit_mm.config.load.load_config`.

    Raises:
        UserError: If the config is invalid, its model cannot be counted, or the image is too
            small.
    """
    cfg = load_config(config, options)
    return _count_model(Path(config).stem, build_model(cfg, 'meta'), size)


def _count_model(name: str, model: nn.Module, size: tuple[int, int]) -> Count:
    divisor = getattr(model.data_preprocessor, 'pad_size_divisor', 1)
    padded = tuple(-(-side // divisor) * divisor for side in size)
    notes = [] if padded == size else ['The image is padded to {}x{}.'.format(*padded)]
    if isinstance(model.backbone, XCiT):
        maps, parts = count_xcit(model.backbone, padded)
        parts = [replace(p, name=f'backbone, {p.name}') for p in parts]
    else:
        image = empty_image(3, padded)
        maps, backbone = count_part('backbone', model.backbone, image)
        parts = [backbone]
    if model.with_neck:
        maps, neck = count_part('neck', model.neck, maps)
        parts.append(neck)
    try:
        parts += _count_heads(model, maps, notes)
    except (AttributeError, NotImplementedError, TypeError) as error:  # from cascades and queries
        raise UserError(
            f'the model {type(model).__name__} cannot be counted, except its '
            f'{num_parameters(model) / 1e6:.2f} M parameters: only segmentors with a head of '
            'convolutions, and detectors with one stage, or with an RPN and one RoI head, can; '
            'count its backbone with --arch'
        ) from error
    return Count(f'{name}, {type(model).__name__}', size, tuple(parts), tuple(notes))


def _count_heads(model: nn.Module, maps: tuple[Tensor, ...], notes: list[str]) -> list[Part]:
    """Count the heads. Heads of regions are counted for the largest number in an image."""
    roi_head = getattr(model, 'roi_head', None)
    if roi_head is None:
        name = 'decode_head' if hasattr(model, 'decode_head') else 'bbox_head'
        parts = [count_part(name.replace('_', ' '), getattr(model, name), maps)[1]]
        if getattr(model, 'with_auxiliary_head', False):
            notes.append('The auxiliary head is used in training only.')
            parts.append(Part('auxiliary head', num_parameters(model.auxiliary_head), 0, 0))
        return parts
    parts = [count_part('RPN head', model.rpn_head, maps)[1]]
    proposals, objects = model.test_cfg.rpn.max_per_img, model.test_cfg.rcnn.max_per_img
    heads = [('box', roi_head.bbox_head, roi_head.bbox_roi_extractor, proposals, 'proposals')]
    if roi_head.with_mask:
        heads += [('mask', roi_head.mask_head, roi_head.mask_roi_extractor, objects, 'objects')]
    for name, head, extractor, number, what in heads:
        side = extractor.roi_layers[0].output_size
        regions = torch.empty(number, extractor.out_channels, *side, device='meta')
        parts.append(count_part(f'{name} head', head, regions)[1])
        notes.append(f'The {name} head is counted for {number} {what}, the most that it gets.')
    return parts
