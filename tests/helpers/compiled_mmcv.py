"""Cases of mmcv's operators, and what compiled mmcv computes for them.

``python tests/helpers/compiled_mmcv.py tests/expected/compiled_mmcv.npz`` wrote the arrays of the
test, with the operators of onedl-mmcv 2.3.6 compiled for the CPU (``-std=c++20``, for PyTorch
2.15).
"""

import sys

import numpy as np
import torch
from mmcv import ops
from torch import Tensor


def results() -> dict[str, Tensor]:
    """Return outputs and gradients by case; the inputs come from numbers that never change."""
    random = np.random.RandomState(0)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).requires_grad_()

    arrays = {}

    def add(name: str, output: Tensor, *inputs: Tensor) -> None:
        cotangent = draw(*output.shape).detach()
        gradients = torch.autograd.grad(output, inputs, cotangent)
        arrays[name] = output.detach()
        arrays.update({f'{name}/gradient{i}': grad for i, grad in enumerate(gradients)})

    for name, options in {
        'plain': (1, 1, 1, 1, 1),
        'strided_and_dilated': (2, 2, 2, 1, 2),
        'grouped': (1, 0, 1, 2, 4),
    }.items():
        groups, deform_groups = options[3:]
        image, weight, bias = draw(2, 4, 8, 9), draw(6, 4 // groups, 3, 3), draw(6)
        size = torch.nn.functional.conv2d(image, weight, bias, *options[:4]).shape[2:]
        offset, mask = draw(2, deform_groups * 18, *size), draw(2, deform_groups * 9, *size)
        output = ops.deform_conv2d(image, offset, weight, *options)
        add(f'deform_conv2d/{name}', output, image, offset, weight)
        output = ops.modulated_deform_conv2d(image, offset, mask, weight, bias, *options)
        add(f'modulated_deform_conv2d/{name}', output, image, offset, mask, weight, bias)
    image, weight = draw(2, 4, 5, 6), draw(4, 4, 3, 3)
    offset, mask = draw(2, 18, 9, 11), draw(2, 9, 9, 11)  # more than the output needs, as in DyHead
    output = ops.modulated_deform_conv2d(image, offset, mask, weight, None, 1, 1)
    add('modulated_deform_conv2d/offsets_of_a_finer_map', output, image, offset, mask, weight)
    image, weight, mask = draw(2, 4, 5, 6), draw(4, 4, 3, 3), draw(2, 9, 5, 6)
    offset = torch.zeros(2, 18, 5, 6, requires_grad=True)  # where every training starts
    output = ops.deform_conv2d(image, offset, weight, 1, 1)
    add('deform_conv2d/zero_offsets', output, image, offset, weight)
    output = ops.modulated_deform_conv2d(image, offset, mask, weight, None, 1, 1)
    add('modulated_deform_conv2d/zero_offsets', output, image, offset, mask, weight)
    for psa_type in ('collect', 'distribute'):
        masks = draw(2, 35, 4, 6)
        add(f'psa_mask/{psa_type}', ops.PSAMask(psa_type, (5, 7))(masks), masks)
    corners = 30 * torch.from_numpy(random.uniform(size=(12, 4)).astype(np.float32))
    starts = corners[:, :2]
    draw(6720)  # what four cases of an operator took when the arrays were written
    scores = torch.from_numpy(random.permutation(12).astype(np.float32))
    boxes = torch.cat([starts, starts + corners[:, 2:] + 1, scores[:, None]], dim=1)
    groups = ops.nms_match(boxes, 0.2)
    arrays['nms_match/sizes'] = torch.tensor([len(group) for group in groups])
    arrays['nms_match/boxes'] = torch.cat(groups)
    return arrays


if __name__ == '__main__':
    np.savez_compressed(sys.argv[1], **{k: v.numpy() for k, v in results().items()})
