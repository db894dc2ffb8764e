"""Replacements for what mmengine 0.10.7 calls and newer Pythons and setuptools have removed.

The original mmengine is no longer developed. Its fork, onedl-mmengine, looks for mmseg's configs in
a distribution that it does not have.
"""

from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from mmengine.config import config
from mmengine.config.utils import MODULE2PACKAGE


def mend() -> None:
    """Let mmengine find loaders and installed packages with functions of current Pythons."""
    misc = import_module('mmengine.utils.dl_utils.misc')
    # Python 3.14 removed find_loader (cpython issue 120581). mmengine calls it for every model that
    # it trains, to find out whether mmcv has an extension.
    if hasattr(misc, 'pkgutil') and not hasattr(misc.pkgutil, 'find_loader'):
        misc.pkgutil = SimpleNamespace(find_loader=_find_loader)
    # These resolve bases such as mmdet::... with pkg_resources, which setuptools 81 removed.
    config.is_installed, config.get_installed_path = _is_installed, _installed_path


def _find_loader(module: str) -> Any:
    spec = find_spec(module)
    return spec and spec.loader


def _find_package(package: str) -> ModuleSpec | None:
    """Find a package by the name of its distribution, which differs between the families."""
    modules = {name: module for module, name in MODULE2PACKAGE.items()}
    return find_spec(modules.get(package, package))


def _is_installed(package: str) -> bool:
    return _find_package(package) is not None


def _installed_path(package: str) -> str:
    spec = _find_package(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f'the package {package} is not installed', name=package)
    return next(iter(spec.submodule_search_locations))
