"""Packages that mmdet and mmseg import for few models, imported when such a model calls them.

mmdet imports scikit-learn for PAA and for its tracking, and mmseg imports timm for its backbones.
If they are installed, every program would load them, and pandas, pyarrow and wandb with them, which
takes more than 150 MiB of memory and seconds.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType
from typing import Any

SKLEARN_PROCESSES = 'sklearn.gaussian_process', 'sklearn.gaussian_process.kernels'
# For each module, what it imports only to call functions or classes of it.
IMPORTS = {
    'mmdet.models.dense_heads.paa_head': ('sklearn', 'sklearn.mixture'),
    'mmdet.models.task_modules.tracking.interpolation': ('sklearn', *SKLEARN_PROCESSES),
    'mmseg.models.backbones.timm_backbone': ('timm',),
}


def install() -> None:
    """Postpone these imports in modules that are imported from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the modules whose imports are postponed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in IMPORTS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        return spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin))


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _standing_in(IMPORTS[module.__name__]):
            super().exec_module(module)


@contextmanager
def _standing_in(names: Sequence[str]) -> Iterator[None]:
    """Put modules whose functions import the real ones in the place of installed packages."""
    is_installed = names[0] in sys.modules or find_spec(names[0]) is not None
    missing = [name for name in names if name not in sys.modules] if is_installed else []
    modules = {name: _Postponed(name) for name in missing}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Postponed(ModuleType):
    """A module that is imported when one of its functions is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        submodule = sys.modules.get(f'{self.__name__}.{name}')
        return submodule or partial(_call, self.__name__, name)


def _call(module: str, function: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(import_module(module), function)(*args, **kwargs)
