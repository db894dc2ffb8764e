"""Print where mmcv's operators come from on this machine: ``python -m xcit_mm.mmcv_ops``.

``python -m xcit_mm.mmcv_ops SCRIPT ARGUMENTS...`` runs a script, which then has the operators.
"""

import runpy
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import torch
import torchvision
from rich.console import Console
from rich.table import Column, Table

from ..environment import require
from ..errors import DependencyError
from . import EXTENSION, SWITCH, is_active
from .families import FAMILIES


def main() -> None:
    """Run a script, or print the versions and what computes each family of operators."""
    if sys.argv[1:]:
        del sys.argv[0]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python does
        runpy.run_path(sys.argv[0], run_name='__main__')
        return
    try:
        require('mmcv.ops')  # asks the extension for every operator, and so lists those it lacks
    except DependencyError as error:
        sys.exit(str(error))
    console = Console()
    mmcv = sys.modules['mmcv']
    package = packages_distributions()['mmcv'][0]
    console.print(
        f'{package} {mmcv.__version__}, PyTorch {torch.__version__}, '
        f'torchvision {torchvision.__version__}'
    )
    if not is_active():
        console.print(f'mmcv has compiled operators and uses all of them: {EXTENSION}')
        return
    console.print(f'mmcv has no compiled operators: these stand in ({SWITCH}=0 switches them off).')
    table = Table(
        Column('mmcv.ops', min_width=max(len(name) for name, *_ in FAMILIES)),
        'computed by',
        'compared with in the tests',
    )
    for family in FAMILIES:
        table.add_row(*family)
    console.print(table)
    missing = sorted(sys.modules[EXTENSION].missing)
    console.print(
        f'Only compiled mmcv has these {len(missing)}, which no model of mmdet or mmseg calls: '
        f'{", ".join(missing)}'
    )


if __name__ == '__main__':
    main()
