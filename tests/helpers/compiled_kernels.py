"""Kernels compiled for a GPU that need not be here, with the resources they take there."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs
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
    cubin: bytes


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
    return CompiledKernel(registers, spilled, shared, result.asm['ptx'], result.asm['cubin'])


def instructions(kernel: CompiledKernel) -> tuple[int, int]:
    """Return how many machine instructions a thread has, and how many of them its longest loop.

    Divided by the values that a thread computes at a time, they tell whether a kernel is bound by
    instructions: an H100 issues about 3e13 a second over all threads, and reads 1.6e12 values of 16
    bits in that time.
    """
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(kernel.cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, '-c', file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    labels, count, loop = {}, 0, 0
    for line in lines.splitlines():
        if label := re.match(r'\s*(\.L_\w+):', line):
            labels[label[1]] = count
        elif re.search(r'/\*[0-9a-f]{4,}\*/', line):
            count += 1
            if jump := re.search(r'BRA.*`\((\.L_\w+)\)', line):
                loop = max(loop, count - labels.get(jump[1], count))
    return count, loop if loop > 1 else 0  # every kernel ends in a jump to itself
