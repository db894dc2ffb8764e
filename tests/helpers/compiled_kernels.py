"""Kernels compiled for a GPU that need not be here, with the resources they take there."""

import re
import subprocess
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction


@dataclass
class CompiledKernel:
    """What a kernel takes: ``registers`` of a thread, bytes ``spilled``, bytes ``shared``."""

    registers: int
    spilled: int
    shared: int
    ptx: str


def compile_kernel(
    kernel: JITFunction, arguments: str, capability: int, **options: Any
) -> CompiledKernel:
    """Compile a kernel.

    Args:
        kernel: A function decorated with ``triton.jit``.
        arguments: The types of its arguments but the constants, in order and separated by spaces:
            ``*fp32``, ``*bf16``, ``i32``, ``fp32``, or None for an argument that is None.
            All pointers are assumed to be multiples of 16, like the pointers of new tensors.
        capability: 80 or 90.
        options: Constants of the kernel by name, ``num_warps`` and ``num_stages``.
    """
    types = iter(arguments.split())
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in options:
            signature[name], constants[(place,)] = 'constexpr', options[name]
            continue
        signature[name] = next(types)
        if signature[name] == 'None':
            signature[name], constants[(place,)] = 'constexpr', None
        elif signature[name].startswith('*'):
            attributes[(place,)] = [['tt.divisibility', 16]]
    assert next(types, None) is None, 'there are more types than arguments'
    launched = {key: value for key, value in options.items() if key not in kernel.arg_names}
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget('cuda', capability, 32)
    result = triton.compile(source, target=target, options={'enable_fp_fusion': True} | launched)
    return _with_resources(result, capability)


def _with_resources(result: Any, capability: int) -> CompiledKernel:
    arch = f'sm_{capability}' + ('a' if capability >= 90 else '')
    command = [get_ptxas(capability).path, f'-arch={arch}', '-v', '/dev/stdin', '-o', '/dev/null']
    done = subprocess.run(command, input=result.asm['ptx'], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    registers, spilled = (
        int(re.search(pattern, done.stderr).group(1))
        for pattern in (r'Used (\d+) registers', r'(\d+) bytes spill stores')
    )
    shared = result.metadata.shared
    return CompiledKernel(registers, spilled, shared, result.asm['ptx'])
