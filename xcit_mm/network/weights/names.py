"""The names of weights in all releases, and comparisons of a file with a model.

No function changes the dictionaries of tensors that it gets.
"""

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.errors import UserError, one_line
from ..archs import ARCHS, STEM_STRIDES
from .inflation import RGB, STEM

WRAPPERS = ('state_dict', 'model', 'teacher', 'student', 'state')
# The ends of rpn_head, roi_head, bbox_head ...; DINO's generator embeds the classes, too.
HEAD = ('_head', 'dn_query_generator')
BACKBONE = 'backbone.'  # the prefix of a backbone in detectors, segmentors and the authors' DINO
TEACHER = 'teacher.backbone.'  # its prefix in our DINO, which evaluates the teacher, too
NORMALIZED = 'model.'  # the prefix of a robust classifier behind the layer that normalizes images
# The classification head of the released ImageNet models.
CLASSIFIER = ('cls_token', 'cls_attn_blocks.', 'norm.', 'head.')
# The parts of our backbone that ImageNet models do not have.
PYRAMID = ('fpn1.', 'fpn2.', 'out_norms.')
# birder counts the blocks of each stage, and numbers the branches of a block in their order, where
# the authors call the local interaction the third one.
BIRDER_BLOCK = re.compile(r'block1\.stage(\d+)\.(\d+)\.')
BIRDER = {
    r'^block2\.([01])\.': r'cls_attn_blocks.\1.',
    r'^block2\.2\.': 'norm.',
    r'^classifier\.': 'head.',
    r'\.mlp\.0\.': '.mlp.fc1.',
    r'\.mlp\.3\.': '.mlp.fc2.',
}
SWAPPED = {'norm2': 'norm3', 'norm3': 'norm2', 'gamma2': 'gamma3', 'gamma3': 'gamma2'}
# What the robust release calls its files for images of 32 pixels, whose patches have 4 pixels.
SMALL_IMAGES = 'cifar'
PATCH_SIZE = 'patch_size'  # the key in ``meta`` of our checkpoints
QUERY = '.q.weight'  # of class attention in timm, whose queries, keys and values are separate
NUM_SHOWN = 3  # tensors of each side in an error


class Architecture(NamedTuple):
    """The hyper-parameters of an XCiT that the shapes of its weights depend on."""

    embed_dim: int
    depth: int
    num_heads: int
    patch_size: int

    @property
    def arch(self) -> str | None:
        """Its name among the published architectures, such as 's12', or None."""
        return next((name for name, arch in ARCHS.items() if arch[:3] == self[:3]), None)

    def __str__(self) -> str:
        if self.arch is not None:
            return f'XCiT-{self.arch.upper()}/{self.patch_size}'
        return (
            f'an XCiT of {self.depth} layers, {self.embed_dim} channels, {self.num_heads} heads '
            f'and patch size {self.patch_size}'
        )


def architecture(
    state: Mapping[str, Tensor], path: str | Path, checkpoint: Any = None
) -> Architecture:
    """Return the architecture of the XCiT in the weights of a file, or raise a UserError.

    Patches of 4 and of 16 pixels have the same weights. They have 4 if ``meta`` of the
    ``checkpoint`` that held the weights says so, or if it says nothing and the file is named after
    CIFAR, as in the robust release.
    """
    result = _find_architecture(state)
    if result is None:
        raise UserError(f'{path} holds {_summary(state, state)}')
    is_small = SMALL_IMAGES in Path(path).name.lower()
    patch_size = meta_of(checkpoint).get(PATCH_SIZE) or (4 if is_small else None)
    return result._replace(patch_size=4) if (result[3], patch_size) == (16, 4) else result


def model_state(checkpoint: Any, path: str | Path) -> dict[str, Tensor]:
    """Return the weights in what a file holds, or raise a UserError if it has none.

    They are a state dict by itself (timm, DINO) or under ``state_dict`` (mmdet, mmseg, mmengine),
    ``model`` (the authors' ImageNet release), ``teacher`` or ``student`` (DINO, which evaluates the
    teacher), or ``state`` (birder).
    """
    state = checkpoint if isinstance(checkpoint, Mapping) else {}
    wrapped = (state.get(name) for name in WRAPPERS)
    state = next((value for value in wrapped if isinstance(value, Mapping)), state)
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise UserError(
            f'the checkpoint {path} holds no state dict, directly or under one of {WRAPPERS}'
        )
    return {str(name).removeprefix('module.'): value for name, value in state.items()}


def meta_of(checkpoint: Any) -> Mapping[str, Any]:
    """Return the ``meta`` of what a file holds, or an empty dict without it."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def without_prefix(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights of the backbone by their names in it; without a prefix, all weights."""
    for prefix in (TEACHER, BACKBONE, NORMALIZED):
        prefixed = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if prefixed:
            return _without_stages(prefixed)
    return _without_stages(state)


def _without_stages(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights of an XCiT of birder under the authors' names, and others as they are."""
    blocks = {tuple(map(int, match.groups())) for match in map(BIRDER_BLOCK.match, state) if match}
    numbers = {place: number for number, place in enumerate(sorted(blocks))}

    def renamed(name: str) -> str:
        if match := BIRDER_BLOCK.match(name):
            parts = name[match.end() :].split('.')
            number = numbers[int(match[1]), int(match[2])]
            name = '.'.join([f'blocks.{number}', *(SWAPPED.get(part, part) for part in parts)])
        # A layer of its stem holds a convolution, BatchNorm and GELU.
        name = re.sub(r'(?<=^patch_embed\.proj\.)\d+', lambda m: str(2 * int(m[0])), name)
        for pattern, ours in BIRDER.items():
            name = re.sub(pattern, ours, name)
        return name

    return {renamed(name): value for name, value in state.items()} if blocks else state


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an XCiT backbone under our names, without a classification head.

    ``state`` holds a classifier, a DINO model, a detector, a segmentor or a backbone.
    """
    named = _under_our_names(state)
    return {name: value for name, value in named.items() if not name.startswith(CLASSIFIER)}


def image_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an ``ImageXCiT`` under our names, which are those of the release.

    ``state`` is as in :func:`backbone_state`. Without class attention in it, there is none in the
    result either.
    """
    named = _under_our_names(state)
    named = {name: value for name, value in named.items() if not name.startswith(PYRAMID)}
    separate = {name[: -len(QUERY)] for name in named if name.endswith(QUERY)}  # in timm
    for start in separate:
        for kind in ('weight', 'bias'):
            parts = [named.pop(f'{start}.{part}.{kind}', None) for part in 'qkv']
            if all(isinstance(part, Tensor) for part in parts):
                named[f'{start}.qkv.{kind}'] = torch.cat(parts)
    return named


def _under_our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights = without_prefix(state).items()
    return {re.sub(r'^pos_embed\.', 'pos_embeder.', name): value for name, value in weights}  # timm


def detector_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a detector or segmentor, without a classification head."""
    rest = {name: value for name, value in state.items() if not name.startswith(BACKBONE)}
    if len(rest) == len(state):
        return rest
    return {BACKBONE + name: value for name, value in backbone_state(state).items()} | rest


def require_same_tensors(
    state: Mapping[str, Tensor],
    model: Mapping[str, Tensor],
    path: str | Path,
    may_be_missing: Container[str] = (),
) -> None:
    """Compare the weights of a file with a model, by name, shape and kind of number.

    mmengine loads the tensors that fit and logs the others, so that a model with random weights is
    trained or evaluated. Here a difference or an infinite weight is a UserError. Floats of
    different sizes are converted, and count as the same.
    """
    compared = [name for name in {**state, **model} if name in state or name not in may_be_missing]
    differ = [n for n in compared if _shape(state.get(n)) != _shape(model.get(n))]
    if differ:
        if _has_head(model) and not _has_head(state):
            raise UserError(
                f'{path} has no head, but this model has one: a training starts from it with '
                '--cfg-options pretrained=FILE'
            )
        remedy = 'use the config and the file of the same model'
        in_stem = [name.removeprefix(BACKBONE) for name in differ] == [STEM]
        if in_stem and state[differ[0]].shape[1] == RGB:
            channels = model[differ[0]].shape[1]
            remedy = f'tools/convert_checkpoint.py --in-channels {channels} adapts weights for RGB'
        raise UserError(
            f'{path} does not hold the weights of this model ({len(differ)} tensors differ): '
            f'the file has {_summary(state, differ)}; the model has {_summary(model, differ)}: '
            f'{remedy}'
        )
    require_finite(state, path)


def _has_head(names: Iterable[str]) -> bool:
    return any(name.partition('.')[0].endswith(HEAD[0]) for name in names)


def modules_of(names: Iterable[str]) -> list[str]:
    """Return the modules of tensors: a.b for a.b.weight and a.b.bias."""
    return sorted({name.rpartition('.')[0] for name in names})


def require_finite(state: Mapping[str, Tensor], path: str | Path) -> None:
    """Raise a UserError if a weight is infinite or NaN, as after a run that diverged."""
    for name, value in state.items():
        numbers = value.float() if value.is_floating_point() else value  # as models store them
        # The sum takes a twentieth of the time, and overflows only where large numbers add up.
        if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
            raise UserError(
                f'{path} holds infinite numbers or NaN in {one_line(name)}: use an earlier '
                'checkpoint'
            )


def _find_architecture(state: Mapping[str, Tensor]) -> Architecture | None:
    trunk = backbone_state(state)
    depth = len({name.split('.')[1] for name in trunk if name.startswith('blocks.')})
    num_convs = sum(bool(re.fullmatch(r'patch_embed\.proj\.\d\.0\.weight', n)) for n in trunk)
    tensors = [trunk.get(f'blocks.0.{name}') for name in ('gamma3', 'attn.temperature')]
    embed_dim, num_heads = (len(t) if t is not None and t.ndim else 0 for t in tensors)
    # Strides of 1, of patches of 4, are not in the weights: see :func:`architecture`.
    patch_sizes = {len(strides): 2 ** len(strides) for strides in STEM_STRIDES.values()}
    patch_size = patch_sizes.get(num_convs)
    if (
        not embed_dim
        or not num_heads
        or embed_dim % 8
        or embed_dim % num_heads
        or patch_size is None
    ):
        return None
    return Architecture(embed_dim, depth, num_heads, patch_size)


def _summary(state: Mapping[str, Tensor], names: Iterable[str]) -> str:
    shown = [f'{one_line(name)} {_shape(state[name])}' for name in names if name in state]
    more = ', ...' if len(shown) > NUM_SHOWN else ''
    tensors = ', '.join(shown[:NUM_SHOWN]) or 'nothing else'
    return f'{_find_architecture(state) or "no XCiT"} ({tensors}{more})'


def _shape(value: Any) -> str:
    """Return what two tensors must have in common so that one can be loaded as the other."""
    if not isinstance(value, Tensor):
        return f'a {type(value).__name__}'
    shape = str(tuple(value.shape))
    if value.is_floating_point():
        return shape
    return f'{shape} of {"complex numbers" if value.is_complex() else value.dtype}'
