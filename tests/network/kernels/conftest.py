"""Kernels run in Triton's interpreter, on a CPU, unless a test compiles them."""

import sys
from importlib.util import find_spec

import pytest

from xcit_mm.network.fast import kernels

HAS_TRITON = find_spec('triton') is not None
collect_ignore_glob = [] if HAS_TRITON else ['test_*.py']
if HAS_TRITON:
    import triton.experimental.gluon  # noqa: F401  copies functions of Triton when it is imported
    import triton.language as tl
    from helpers.compiled_kernels import compile_kernel
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction
else:
    InterpretedFunction = object


class Interpreted(InterpretedFunction):
    """A function that a kernel calls without patching Triton's language again, which is slow."""

    def __call__(self, *args, **kwargs):
        return self.rewrite()(*args, **kwargs)


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    """Replace kernels, and the functions of Triton that they call, for the time of a test."""
    if 'compiled' in request.fixturenames:
        yield
        return
    ours = [m for name, m in sys.modules.items() if name.startswith(f'{kernels.__name__}.')]
    for module in (tl, tl.standard, *ours):
        for name, function in vars(module).copy().items():
            if isinstance(function, JITFunction):
                is_of_triton = function.fn.__module__.startswith('triton.')
                kind = InterpretedFunction if is_of_triton else Interpreted
                monkeypatch.setattr(module, name, kind(function.fn))
    core = vars(tl.core).copy()
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        yield
    for name, value in core.items():  # which Triton changes and does not put back
        setattr(tl.core, name, value)


@pytest.fixture
def compiled():
    """The function :func:`helpers.compiled_kernels.compile_kernel`; kernels are left compilable."""
    return compile_kernel
