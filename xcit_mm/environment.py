"""Check that the packages that a run needs are installed and fit together."""

import importlib
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import PackageNotFoundError, version

from .errors import DependencyError

STACKS = {
    'onedl': ('onedl-mmengine', 'onedl-mmcv', 'onedl-mmdetection', 'onedl-mmsegmentation'),
    'openmmlab': ('mmengine', 'mmcv', 'mmcv-lite', 'mmdet', 'mmsegmentation'),
}
OPTIONAL = ('timm', 'safetensors')  # needed for weights in their formats
FRAMEWORK_PARTS = ('models', 'datasets', 'evaluation', 'visualization')
BUILT_ON = {
    'mmdet': ('xcit_mm.datasets.coco', 'xcit_mm.engine.coco_metric'),
    'mmseg': ('xcit_mm.engine.iou_metric',),
}
# For each package that only some tools need, the extra of setup.py that installs it.
EXTRAS = {
    'tensorboard': 'vis',
    'onnx': 'export',
    'onnxruntime': 'export',
    'onnxscript': 'export',
    'gradio': 'demo',
}


def require(module: str) -> None:
    """Import a module of a package that xcit_mm needs, such as 'mmdet' or 'mmdet.models'.

    Raises:
        DependencyError: If it is missing, or refuses the version of another package.
    """
    package = module.split('.')[0]
    try:
        with quiet():
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or package
        if missing == 'mmcv._ext':
            raise DependencyError(
                'mmcv has no compiled operators: unset XCIT_MM_MMCV_FALLBACK, or compile mmcv'
            ) from None
        command = f'pip install {missing}' if missing in OPTIONAL else _install(missing)
        raise DependencyError(f'the package {missing} is not installed: {command}') from None
    except AssertionError as error:  # how mmdet and mmseg refuse a version
        raise DependencyError(
            f'{package} refuses the installed versions ({error}): {remedy(error)}'
        ) from None
    except RuntimeError as error:
        # "operator torchvision::nms does not exist": a CUDA torchvision beside a CPU torch.
        if 'torchvision::' not in str(error):
            raise
        raise DependencyError(
            f'torchvision {installed("torchvision")} was built for another torch than the '
            f'{installed("torch")} that is installed ({error}); a "+cpu" torch has no matching '
            'torchvision in the package index: pip install --force-reinstall torch torchvision '
            '(the default build runs without a GPU, too)'
        ) from None
    except ImportError as error:
        raise DependencyError(f'{package} cannot be imported: {error}. {remedy(error)}') from None


def require_one_stack() -> None:
    """Refuse an environment with the packages of both families, which share import names."""
    present = {stack: filter(installed, packages) for stack, packages in STACKS.items()}
    onedl, openmmlab = (' '.join(packages) for packages in present.values())
    if onedl and openmmlab:
        raise DependencyError(
            f'{onedl} and {openmmlab} write to the same folders: pip uninstall -y {onedl} '
            f'{openmmlab}, then pip install -e ".[onedl]"'
        )


def require_framework(name: str) -> None:
    """Import mmdet or mmseg, and our classes that are built on it, so that all are registered.

    Raises:
        DependencyError: If a package is missing, or both families are installed.
    """
    require_one_stack()
    require('torchvision')  # whose build may not fit that of torch
    require('mmcv')
    for part in FRAMEWORK_PARTS:
        require(f'{name}.{part}')
    for module in BUILT_ON.get(name, ()):
        require(module)


def installed(package: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def remedy(error: ImportError | AssertionError) -> str:
    """Return what the user can do about a failed import."""
    if isinstance(error, AssertionError) and 'mmcv' in str(error).lower():
        return _mmcv_without_operators()
    if 'libGL' in str(error):
        return (
            'OpenCV misses a system library: pip uninstall -y opencv-python '
            'opencv-python-headless && pip install opencv-python-headless'
        )
    if '_ext' in str(error):
        return f'mmcv was compiled for another torch: {_mmcv_without_operators()}'
    if 'custom modules' in str(error):
        return 'Set PYTHONPATH to the folder that holds the module'
    if 'mmsegmentation is not installed' in str(error) and installed('onedl-mmsegmentation'):
        return 'onedl-mmengine has no mmseg:: bases: take those in configs/_base_ of xcit_mm'
    base = re.match(r'(\w+) is not installed', str(error))  # of a config: mmpretrain::...
    if base and base[1] not in ('mmdet', 'mmsegmentation'):
        return f'pip install {base[1]}'
    return _install()


def _stack() -> str:
    return 'openmmlab' if any(map(installed, STACKS['openmmlab'])) else 'onedl'


def _install(missing: str | None = None) -> str:
    """Return the command that completes the installed family; the two must not be mixed."""
    return f'pip install -e ".[{EXTRAS.get(missing, _stack())}]" in the clone of xcit_mm'


def _mmcv_without_operators() -> str:
    commands = {
        'onedl': 'pip install --force-reinstall --no-deps onedl-mmcv',
        # mmcv first: mmcv-lite has the same folder, where its operators would remain.
        'openmmlab': 'pip uninstall -y mmcv mmcv-lite && pip install "mmcv-lite<2.2"',
    }
    return f'{commands[_stack()]}, and xcit_mm provides the operators that it needs'


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what packages print on import about parts that xcit_mm does not use.

    Such as onedl-mmdetection's "Line NMS is not compiled ... you need to recompile", which would
    mislead every user without compiled mmcv, and "Could not import OneDL".
    """
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(previous)


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
