import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from xcit_mm.network.fast.kernels.batch_norm import merge_kernel
from xcit_mm.network.fast.kernels.launch import KernelError, _reason, launch


@triton.jit
def unfinished_kernel(x_ptr, C: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, C), unknown)  # noqa: F821


@triton.jit
def calling_kernel(x_ptr, C: tl.constexpr):
    unfinished_kernel(x_ptr, C)


def test_an_error_names_the_kernel_and_the_reason(compiled):
    x = torch.zeros(1, 3, 16)  # kernels run on a GPU alone, unless they are interpreted
    with pytest.raises(KernelError, match=r'^kernel merge_kernel cannot run: \w+: [^\n]+$') as info:
        launch(merge_kernel, (1,), x, x, 1, C=16, BLOCK_C=16, BLOCK_P=16)
    assert info.value.__cause__ is not None


@pytest.mark.parametrize('kernel', [unfinished_kernel, calling_kernel])
def test_the_reason_of_a_failed_compilation_is_its_last_line(compiled, kernel):
    with pytest.raises(CompilationError) as info:
        compiled(kernel, '*fp32', 90, C=16)
    assert _reason(info.value) == "CompilationError: NameError('unknown is not defined')"
