"""Counting what is multiplied in a module, on PyTorch's meta device: shapes without numbers.

Products of matrices and convolutions are counted, those of the attention among them. Norms,
activations, softmax, resizing, RoIAlign and NMS are not, as in most tools.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..models.layers import XCA

aten = torch.ops.aten
# Modules and parameters by their names, in ours and in timm's XCiT.
XCIT_PARTS = {
    'stem': r'patch_embed',
    'position': r'pos_embed(er)?',
    'attention': r'blocks\.\d+\.(norm1|attn|gamma1)',
    'local interaction': r'blocks\.\d+\.(norm3|local_mp|gamma3)',
    'MLP': r'blocks\.\d+\.(norm2|mlp|gamma2)',
    'pyramid': r'fpn\d|out_norms\.\d',
    'class attention': r'cls_token|cls_attn_blocks\.\d+|norm',
    'head': r'head',
}


@dataclass(frozen=True)
class Part:
    """A part of a model.

    Attributes:
        name: What it is.
        parameters: How many numbers it has learnt.
        multiply_adds: Of the model as the paper defines it, with queries, keys and values.
        computed: Of what xcit_mm does for the same result, on a CPU in float32.
    """

    name: str
    parameters: int
    multiply_adds: int
    computed: int


@dataclass(frozen=True)
class Count:
    """A model at an image size.

    Attributes:
        model: What it is.
        size: (height, width) of the image in pixels.
        parts: What it consists of.
        notes: Sentences on what the numbers hold for.
    """

    model: str
    size: tuple[int, int]
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> Part:
        """The sum of the parts."""
        rows = ((p.parameters, p.multiply_adds, p.computed) for p in self.parts)
        return Part('total', *map(sum, zip(*rows, strict=True)))


def image_of(size: tuple[int, int]) -> Tensor:
    """(1, 3, height, width), without pixels."""
    return torch.empty(1, 3, *size, device='meta')


def run(module: nn.Module, *inputs: Any) -> tuple[Any, dict[str, int]]:
    """Run a module on the meta device.

    Returns:
        Its output, and the multiply-adds of every module in it that was called, by its name:
        the class of ``module`` and the path; 'Global': of all.
    """
    counter = FlopCounterMode(display=False, custom_mapping={aten.baddbmm_: _baddbmm_flops})
    with counter, torch.no_grad():
        output = module(*inputs)
    counts = counter.get_flop_counts()
    return output, {name: sum(by_op.values()) // 2 for name, by_op in counts.items()}


def part(name: str, module: nn.Module, *inputs: Any) -> tuple[Any, Part]:
    """Count a module without an attention of ours, and give its output."""
    output, counts = run(module, *inputs)
    products = counts.get('Global', 0)
    return output, Part(name, parameters(module), products, products)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def xcit_parts(xcit: nn.Module, image: Tensor) -> tuple[Any, list[Part]]:
    """Count an XCiT, ours or an accelerated one of timm, by its parts, and give its output."""
    products = {}
    for form in ('direct', None):
        for module in xcit.modules():
            if isinstance(module, XCA):
                module.form = form
        output, products[form] = run(xcit, image)
    parts = []
    for name, pattern in XCIT_PARTS.items():
        numbers = sum(
            p.numel() for n, p in xcit.named_parameters() if re.match(rf'({pattern})(\.|$)', n)
        )
        called = re.compile(rf'{type(xcit).__name__}\.({pattern})')
        direct, computed = (
            sum(count for n, count in products[form].items() if called.fullmatch(n))
            for form in ('direct', None)
        )
        if numbers:
            parts.append(Part(name, numbers, direct, computed))
    return output, parts


def _baddbmm_flops(to: torch.Size, a: torch.Size, b: torch.Size, **_: Any) -> int:
    """Of the product that is added in place, which PyTorch does not count by itself."""
    return 2 * a.numel() * b[-1]
