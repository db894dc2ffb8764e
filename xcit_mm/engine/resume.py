"""Find the checkpoint that a run resumes from, and move away what an earlier run left."""

import heapq
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import EARLIER, set_aside
from ..weights.read import read_checkpoint
from ..weights.states import model_state, require_finite
from .training_state import require_training_state

POINTER = 'last_checkpoint'  # mmengine's file with the path of the newest checkpoint
MAX_POINTER = 4096  # characters, the longest path of most systems
CHECKPOINTS = ('epoch_*.pth', 'iter_*.pth')
NON_FINITE = 'non_finite_'  # the start of the names of what NonFiniteHook leaves
# What a run writes to its work dir beside its log.
WRITTEN = (
    *CHECKPOINTS,
    'best_*.pth',
    f'{NON_FINITE}*.pth',
    POINTER,
    'losses.jsonl',
    'metrics.jsonl',
    'run.json',
    'report.html',
    'pictures',
    'tensorboard',
)


def newest_checkpoint(
    work_dir: str, trusted: bool = False
) -> tuple[Path, dict[str, Any], list[str]]:
    """Read the newest checkpoint of a run that can be read, looking from the newest down.

    The folder may have been moved since the run: mmengine notes full paths.

    Returns:
        The path, what the file holds, and sentences about newer files that cannot be read.

    Raises:
        UserError: If no checkpoint can be read.
    """
    problems: list[str] = []
    for path in _candidates(Path(work_dir)):
        try:
            checkpoint = read_checkpoint(path, trusted=trusted)
            require_training_state(checkpoint, path)
            require_finite(model_state(checkpoint, path), path)
        except UserError as error:
            problems.append(str(error))
            continue
        return path, checkpoint, [f'{problem}; {path.name} is taken' for problem in problems]
    raise UserError(
        f'--resume: no checkpoint in {work_dir} can be resumed: {"; ".join(problems)}; '
        'without --resume the run starts again, and these files are kept'
    )


def has_checkpoints(work_dir: str) -> bool:
    """Return whether a folder has a file that is named like a checkpoint of a run."""
    return bool(_candidates(Path(work_dir)))


def require_checkpoints(work_dir: str) -> None:
    """Refuse to resume in a folder without checkpoints, and name the folders of earlier runs."""
    if not has_checkpoints(work_dir):
        earlier = sorted(map(str, Path(work_dir).glob(f'{EARLIER}*')))
        hint = f'; earlier runs are in --work-dir {", ".join(earlier)}' if earlier else ''
        raise UserError(f'--resume: {work_dir} holds no checkpoint to resume from{hint}')


def set_run_aside(work_dir: str) -> Path | None:
    """Move the files of an earlier run into a new folder, and return it, or None without any.

    A new run would replace some of the checkpoints, and a resume would mix both runs.
    """
    earlier = sorted(path for pattern in WRITTEN for path in Path(work_dir).glob(pattern))
    return set_aside(Path(work_dir), earlier, 'name another --work-dir, or resume with --resume')


def _candidates(work_dir: Path) -> list[Path]:
    """Look in the work dir, or in the folder of its name that the config writes them to."""
    paths = _newest_first(work_dir)
    if not paths and (work_dir / POINTER).is_file():
        with (work_dir / POINTER).open(errors='replace') as file:
            noted = Path(file.read(MAX_POINTER).strip())
        if noted.parent.name == work_dir.absolute().name:  # not the run that this is a copy of
            with suppress(OSError, ValueError):  # not a path
                paths = _newest_first(noted.parent)
    return paths


def _newest_first(folder: Path) -> list[Path]:
    """Order by the number in the name, and epochs against iterations by their time."""
    kinds = (
        sorted(filter(Path.is_file, folder.glob(pattern)), key=_number, reverse=True)
        for pattern in CHECKPOINTS
    )
    return list(heapq.merge(*kinds, key=lambda path: -path.stat().st_mtime))


def _number(path: Path) -> int:
    number = re.fullmatch(r'\D+_(\d{1,18})', path.stem)
    return int(number[1]) if number else -1
