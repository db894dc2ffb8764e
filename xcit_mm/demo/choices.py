"""Which models a page offers.

A config is a program. A visitor chooses one of those in the folders that the page was started
with, and never types one.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import UserError

NOT_FINITE = 'not_finite_'  # how files begin that a training keeps to be looked into
RELEASED = re.compile(r'^Weights: (\S+)$', re.MULTILINE)  # in the docstring of a config

Models = Mapping[str, Sequence[str]]  # configs and, of each, the checkpoints, the best guess first


def find_models(config_dir: Path, work_dirs: Path) -> dict[str, list[str]]:
    """Look for configs, and for the checkpoints that fit each of them.

    Args:
        config_dir: A folder of configs such as ``configs``, each with the address of the released
            weights that its docstring names.
        work_dirs: A folder of runs, or of one. A run has written its config beside its
            checkpoints.

    Returns:
        Paths of configs, those of the newest run first, and the checkpoints of each, newest
        first; none for a config that is yet to be trained.
    """
    runs = [folder for folder in (work_dirs, *work_dirs.glob('*')) if _checkpoints(folder)]
    models = {}
    for folder in sorted(runs, key=_last_written, reverse=True):
        for config in sorted(folder.glob('*.py')):
            models[str(config)] = [str(path) for path in _checkpoints(folder)]
    for config in sorted(config_dir.glob('*.py')):
        models.setdefault(str(config), _released(config))
    return models


def require_offered(
    config: str | None, checkpoint: str | None, models: Models, any_checkpoint: bool
) -> None:
    """Refuse what a visitor may not have computed.

    Args:
        config: As chosen on the page; a request that no page made can hold anything.
        checkpoint: Likewise.
        models: What the page offers at this moment.
        any_checkpoint: Whether another file or address may be named for an offered config.

    Raises:
        UserError: If nothing is chosen, or something that is not offered.
    """
    if not config:
        raise UserError('no config is chosen: take one of the list')
    if not isinstance(config, str) or config not in models:
        raise UserError(
            f'the config {config} is not, or no longer, among those that this page offers: reload '
            'it, and choose one of the list'
        )
    if not checkpoint:
        how = 'type a file or an address' if any_checkpoint else 'choose another config'
        raise UserError(f'no checkpoint is chosen for {config}: take one of the list, or {how}')
    if checkpoint not in models[config] and not any_checkpoint:
        raise UserError(
            f'the checkpoint {checkpoint} is not, or no longer, among those that this page offers '
            f'for {config}: reload it, and choose one of the list'
        )


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.glob('*.pth') if not path.name.startswith(NOT_FINITE)]
    return sorted(found, key=_written, reverse=True)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a training removes its older checkpoints
        return 0.0


def _last_written(folder: Path) -> float:
    return max(map(_written, _checkpoints(folder)), default=0.0)


def _released(config: Path) -> list[str]:
    """The config is only looked at: it is run once somebody has chosen it."""
    try:
        docstring = ast.get_docstring(ast.parse(config.read_text()))
    except (OSError, SyntaxError, ValueError):  # loading it says what is wrong
        return []
    return RELEASED.findall(docstring or '')
