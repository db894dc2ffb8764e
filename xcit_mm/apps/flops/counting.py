"""The multiply-adds of a module, counted on PyTorch's meta device without computing them.

Matrix products and convolutions are counted, including the products of the attention. Norms,
activations, softmax, resizing, RoIAlign and NMS are not, as in most tools.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...base import files
from ...network.layers import XCA

# Modules and parameters by their names, in this package and in timm.
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
    """A part of a model."""

    name: str
    parameters: int
    multiply_adds: int  # of the model as the paper defines it, with queries, keys and values
    computed: int  # by xcit_mm for the same result on a CPU in float32


@dataclass(frozen=True)
class Count:
    """A model at an image size (height, width) in pixels, with sentences on what was counted."""

    model: str
    size: tuple[int, int]
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> Part:
        """The sum of the parts."""
        rows = ((p.parameters, p.multiply_adds, p.computed) for p in self.parts)
        return Part('total', *map(sum, zip(*rows, strict=True)))


def table(count: Count) -> str:
    """Lay out a count in millions of parameters and billions of multiply-adds."""
    rows = [('', 'parameters', 'multiply-adds', 'computed')]
    for part in (*count.parts, count.total):
        products = (f'{number / 1e9:.2f} G' for number in (part.multiply_adds, part.computed))
        rows.append((part.name, f'{part.parameters / 1e6:.2f} M', *products))
    width = max(len(name) for name, *_ in rows)
    lines = [f'{name:<{width}}{"".join(f"{cell:>15}" for cell in cells)}' for name, *cells in rows]
    lines.insert(-1, '-' * len(lines[0]))
    title = '{}, an image of {}x{} pixels'.format(count.model, *count.size)
    return '\n'.join([title, *lines, *count.notes])


def write_json(path: Path, count: Count) -> None:
    """Write a count as JSON."""
    files.write_json(path, {**asdict(count), 'total': asdict(count.total)})


def empty_image(channels: int, size: tuple[int, int]) -> Tensor:
    """Return an image (1, channels, H, W) without values."""
    return torch.empty(1, channels, *size, device='meta')


def count_part(name: str, module: nn.Module, *inputs: Any) -> tuple[Any, Part]:
    """Return the output of a module without XCA, and its counts."""
    output, counts = _run(module, *inputs)
    products = counts.get('Global', 0)
    return output, Part(name, num_parameters(module), products, products)


def count_xcit(xcit: nn.Module, size: tuple[int, int]) -> tuple[Any, list[Part]]:
    """Return the output and the parts of an XCiT of this package, or an accelerated one of timm."""
    image = empty_image(getattr(xcit, 'in_channels', 3), size)
    counts = []
    for form in ('direct', None):
        for module in xcit.modules():
            if isinstance(module, XCA):
                module.form = form
        output, by_module = _run(xcit, image)
        counts.append(by_module)
    parts = []
    for name, pattern in XCIT_PARTS.items():
        tensors = (p for n, p in xcit.named_parameters() if re.match(rf'({pattern})(\.|$)', n))
        parameters = sum(p.numel() for p in tensors)
        called = re.compile(rf'{type(xcit).__name__}\.({pattern})')
        products = [sum(n for module, n in c.items() if called.fullmatch(module)) for c in counts]
        if parameters:
            parts.append(Part(name, parameters, *products))
    return output, parts


def num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(p.numel() for p in module.parameters())


def _run(module: nn.Module, *inputs: Any) -> tuple[Any, dict[str, int]]:
    """Return the output and the multiply-adds of every submodule by its class and path."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        output = module(*inputs)
    counts = counter.get_flop_counts()
    return output, {name: sum(by_op.values()) // 2 for name, by_op in counts.items()}
