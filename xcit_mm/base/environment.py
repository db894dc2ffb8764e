"""The packages that a run needs: whether they are installed and fit together."""

import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import PackageNotFoundError, version

from . import shipped
from .errors import DependencyError
from .version import __version__

STACKS = {
    'onedl': ('onedl-mmengine', 'onedl-mmcv', 'onedl-mmdetection', 'onedl-mmsegmentation'),
    'openmmlab': ('mmengine', 'mmcv', 'mmcv-lite', 'mmdet', 'mmsegmentation'),
}
OPTIONAL = ('timm', 'safetensors')  # packages for weights in their formats
# The packages whose versions determine the result of a run.
PACKAGES = 'torch', 'torchvision', 'numpy', *STACKS['onedl'], *STACKS['openmmlab']
FRAMEWORK_PARTS = ('models', 'datasets', 'evaluation', 'visualization')
# For each framework, the modules with our classes that are built on it. They are above this file,
# so the package names them (xcit_mm/__init__.py).
BUILT_ON: dict[str, tuple[str, ...]] = {'mmdet': (), 'mmseg': (), 'mmengine': ()}
# For each package that only some tools need, the extra of setup.py that installs it.
EXTRAS = dict.fromkeys(('onnx', 'onnxruntime', 'onnxscript'), 'export')
EXTRAS |= dict.fromkeys(('openvino', 'nncf'), 'openvino')
EXTRAS |= dict.fromkeys(('openslide', 'pyogrio', 'zarr'), 'large')
EXTRAS |= dict.fromkeys(('faiss', 'asmk', 'pyarrow'), 'retrieval')
EXTRAS |= dict.fromkeys(('mlflow', 'sqlalchemy', 'alembic'), 'mlflow')
EXTRAS |= dict.fromkeys(('supervision', 'pandas'), 'results')
EXTRAS |= {'tifffile': 'multiband', 'tensorboard': 'vis', 'wandb': 'wandb', 'gradio': 'demo'}
EXTRAS['huggingface_hub'] = 'hub'
NOTICES: list[str] = []  # what the log of each run says about this environment
_quiet_lock = threading.RLock()  # what is hidden is hidden for the whole process


def require(module: str) -> None:
    """Import a module, or raise a DependencyError if a package is missing or does not fit."""
    package = module.split('.')[0]
    try:
        with quiet():
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or package
        command = _install(missing)
        if missing == 'mmcv._ext':
            command = 'unset XCIT_MM_MMCV_FALLBACK, or compile mmcv'
        raise DependencyError(f'the package {missing} is not installed: {command}') from None
    except AssertionError as error:  # how mmdet and mmseg refuse a version
        raise DependencyError(
            f'{package} refuses the installed versions ({error}): {remedy(error)}'
        ) from None
    except RuntimeError as error:
        # "operator torchvision::nms does not exist": a CUDA torchvision with a CPU torch.
        if 'torchvision::' not in str(error):
            raise
        raise DependencyError(
            f'torchvision was built for another torch than the {installed("torch")} that is '
            f'installed ({error}): pip install --force-reinstall torch torchvision, which also run '
            'without a GPU'
        ) from None
    except ImportError as error:
        raise DependencyError(f'{package} cannot be imported: {error}. {remedy(error)}') from None


def require_one_stack() -> None:
    """Refuse an environment with the packages of both families, as they share import names."""
    present = {stack: filter(installed, packages) for stack, packages in STACKS.items()}
    onedl, openmmlab = (' '.join(packages) for packages in present.values())
    if onedl and openmmlab:
        raise DependencyError(
            f'{onedl} and {openmmlab} write to the same folders: pip uninstall -y {onedl} '
            f'{openmmlab}, then {shipped.install("onedl")}'
        )


def require_framework(name: str) -> None:
    """Import mmdet or mmseg, and our classes that are built on it, so that all are registered.

    With mmengine alone, pretraining and classifiers are registered.
    """
    require_one_stack()
    require('torchvision')  # its build may not fit torch
    require('mmcv')
    for part in FRAMEWORK_PARTS if name != 'mmengine' else ():
        require(f'{name}.{part}')
    for module in BUILT_ON.get(name, ()):
        require(module)


def installed(package: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions of xcit_mm and of the packages that determine the result of a run."""
    packages = {name: version for name in PACKAGES if (version := installed(name))}
    return {'xcit_mm': __version__, **packages}


def remedy(error: ImportError | AssertionError) -> str:
    """Return what the user can do about a failed import."""
    is_version = isinstance(error, AssertionError) and 'mmcv' in str(error).lower()
    if is_version or '_ext' in str(error):  # compiled for another torch
        # mmcv first: mmcv-lite has the same folder, where its operators would remain.
        commands = {
            'onedl': 'pip install --force-reinstall --no-deps onedl-mmcv',
            'openmmlab': 'pip uninstall -y mmcv mmcv-lite && pip install "mmcv-lite<2.2"',
        }
        return f'{commands[_stack()]}, and xcit_mm provides the operators that it needs'
    if 'custom modules' in str(error):
        return 'Set PYTHONPATH to the folder that holds the module'
    return f'{_install()}; docs/errors.md lists other causes'


def _stack() -> str:
    return 'openmmlab' if any(map(installed, STACKS['openmmlab'])) else 'onedl'


def _install(missing: str | None = None) -> str:
    """Return the command that completes the installed family; the two must not be mixed."""
    if missing in OPTIONAL:
        return f'pip install {missing}'
    return shipped.install(EXTRAS.get(missing, _stack()))


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what packages print on import about parts that xcit_mm does not use.

    An example is onedl-mmdetection's "Line NMS is not compiled ... you need to recompile".
    """
    with _quiet_lock:
        previous = logging.root.manager.disable
        _disable_logging(logging.WARNING)
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
                warnings.simplefilter('ignore')
                yield
        finally:
            _disable_logging(previous)


def _disable_logging(level: int) -> None:
    logging.disable(level)
    # mmengine's loggers remember which levels are disabled, and Python does not know of them.
    if 'mmengine.logging' in sys.modules:
        for logger in sys.modules['mmengine.logging'].MMLogger._instance_dict.values():
            logger._cache.clear()


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a ``with`` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
