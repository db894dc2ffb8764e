"""Print where mmcv's operators come from on this machine, or run a script that has them."""

import argparse
import runpy
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import torch
import torchvision

from ..base.environment import require
from ..base.errors import DependencyError
from . import EXTENSION, SWITCH, is_active
from .families import FAMILIES


def main() -> None:
    """Run the script of the command line; without one, print what computes each operator."""
    parser = argparse.ArgumentParser(prog='python -m xcit_mm.mmcv_ops', description=__doc__)
    parser.add_argument('script', nargs='?', type=Path, help='a script that imports mmdet or mmseg')
    parser.add_argument('arguments', nargs=argparse.REMAINDER, help='what the script gets')
    args = parser.parse_args()
    if args.script is not None:
        if not args.script.is_file():
            parser.error(f'{args.script} is not a file')
        sys.argv = [str(args.script), *args.arguments]
        sys.path[0] = str(args.script.resolve().parent)  # as Python does
        runpy.run_path(str(args.script), run_name='__main__')
        return
    try:
        require('mmcv.ops')  # asks the extension for every operator, and so lists those it lacks
    except DependencyError as error:
        sys.exit(str(error))
    mmcv, package = sys.modules['mmcv'], packages_distributions()['mmcv'][0]
    versions = f'PyTorch {torch.__version__}, torchvision {torchvision.__version__}'
    print(f'{package} {mmcv.__version__}, {versions}')
    if not is_active():
        print(f'mmcv has compiled operators and uses all of them: {EXTENSION}')
        return
    print(f'mmcv has no compiled operators: these stand in ({SWITCH}=0 switches them off).')
    for name, computed_by, compared_with in FAMILIES:
        print(f'  {name}: by {computed_by} (the tests compare it with {compared_with})')
    missing = sorted(sys.modules[EXTENSION].missing)
    print(
        f'Only compiled mmcv has these {len(missing)}, which no model of mmdet or mmseg calls: '
        f'{", ".join(missing)}'
    )


if __name__ == '__main__':
    main()
