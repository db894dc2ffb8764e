"""Is everything installed that a run needs, and does it fit together?"""

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
OPTIONAL = ('timm', 'safetensors')  # for weights in their formats
# What single tools need, by the extra of setup.py that brings it.
EXTRAS = {
    'tensorboard': 'vis',
    'onnx': 'export',
    'onnxruntime': 'export',
    'onnxscript': 'export',
    'gradio': 'demo',
}


def require(module: str) -> None:
    """Import a package that xcit_mm stands on.

    Args:
        module: Its import name, such as 'mmdet' or 'mmdet.models'.

    Raises:
        DependencyError: If it is missing, refuses the versions of others, or imports a torchvision
            that was built for another torch.
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
        # A CUDA torchvision beside a torch for the CPU registers no operators: "operator
        # torchvision::nms does not exist".
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
    """Refuse an environment with packages of both families under the same import names.

    Raises:
        DependencyError: With the command that removes one of them.
    """
    found = {stack: [p for p in packages if installed(p)] for stack, packages in STACKS.items()}
    if all(found.values()):
        onedl, openmmlab = (' '.join(packages) for packages in found.values())
        raise DependencyError(
            f'{onedl} and {openmmlab} write to the same folders: pip uninstall -y {onedl} '
            f'{openmmlab}, then pip install -e ".[onedl]"'
        )


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def remedy(error: ImportError | AssertionError) -> str:
    """What the user can do where an import failed."""
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
    """The command that completes the stack that is there: the two must not be mixed."""
    return f'pip install -e ".[{EXTRAS.get(missing, _stack())}]" in the clone of xcit_mm'


def _mmcv_without_operators() -> str:
    commands = {
        'onedl': 'pip install --force-reinstall --no-deps onedl-mmcv',
        # mmcv first: mmcv-lite writes into the same folder and would leave its operators there.
        'openmmlab': 'pip uninstall -y mmcv mmcv-lite && pip install "mmcv-lite<2.2"',
    }
    return f'{commands[_stack()]}, and xcit_mm brings the operators that it needs'


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what packages say on import about parts nobody asked for.

    onedl-mmdetection's "Line NMS is not compiled ... you need to recompile", of a lane
    detector, would send every user without compiled mmcv on a wrong track; "Could not import
    OneDL" speaks of a product of its makers.
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
