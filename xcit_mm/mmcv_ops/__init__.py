"""Stand-in for the compiled operators of mmcv, built on torchvision and PyTorch.

mmcv has wheels for few versions of PyTorch, and compiling it takes a quarter of an hour. The models
of mmdet and mmseg call only the functions in ``OPERATORS``, with the names and arguments of those
in ``mmcv._ext``; ``python -m xcit_mm.mmcv_ops`` lists them and what they are compared with.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

from ..base import environment
from ..base.errors import MissingOperatorError

EXTENSION = 'mmcv._ext'
SWITCH = 'XCIT_MM_MMCV_FALLBACK'
NOTICE = (
    'mmcv has no compiled operators: those of torchvision and PyTorch are used '
    '(python -m xcit_mm.mmcv_ops lists them).'
)


def install() -> None:
    """Replace a missing ``mmcv._ext``, unless XCIT_MM_MMCV_FALLBACK=0."""
    if os.environ.get(SWITCH, '1') == '0' or EXTENSION in sys.modules:
        return
    mmcv = find_spec('mmcv')  # finds an editable installation as well, and does not import it
    if mmcv and not PathFinder.find_spec(EXTENSION, mmcv.submodule_search_locations):
        sys.modules[EXTENSION] = _StandIn()
        environment.NOTICES.append(NOTICE)


def is_active() -> bool:
    """Return whether mmcv uses the stand-in."""
    return isinstance(sys.modules.get(EXTENSION), _StandIn)


class _StandIn(ModuleType):
    """A module with every operator; a call of one that is missing raises MissingOperatorError."""

    def __init__(self) -> None:
        super().__init__(EXTENSION, __doc__)
        self.is_loaded = False
        self.missing: set[str] = set()  # what mmcv.ops asked for
        self.__spec__ = ModuleSpec(EXTENSION, loader=None)  # mmengine asks pkgutil for it
        # What mmcv.utils.collect_env reports.
        self.get_compiler_version = self.get_compiling_cuda_version = lambda: 'n/a'

    def __getattr__(self, name: str):
        if name.startswith('__'):
            raise AttributeError(name)
        if not self.is_loaded:
            from .families import OPERATORS  # not before mmcv.ops is imported

            vars(self).update({function.__name__: function for function in OPERATORS})
            self.is_loaded = True
            return getattr(self, name)
        self.missing.add(name)

        def needs_compiled_mmcv(*args, **kwargs):
            raise MissingOperatorError(
                f'mmcv.ops: {name} needs compiled mmcv, but {EXTENSION} is missing; '
                'build mmcv with its operators (MMCV_WITH_OPS=1) or use a model without it'
            )

        return needs_compiled_mmcv
