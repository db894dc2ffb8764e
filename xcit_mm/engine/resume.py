"""Find the checkpoint that a run resumes from, and move away what an earlier run left."""

import re
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import EARLIER, set_aside
from ..run_report.reading import LOSSES, METRICS, RUN_INFO
from ..weights.read import read_checkpoint
from ..weights.states import model_state, require_finite
from .training_state import require_training_state

POINTER = 'last_checkpoint'  # mmengine's file with the path of the newest checkpoint
CHECKPOINTS = ('epoch_*.pth', 'iter_*.pth')
NON_FINITE = 'non_finite_'  # the start of the names of the files that NonFiniteHook writes
# What a run writes to its work dir beside its log.
WRITTEN = (
    *CHECKPOINTS,
    'best_*.pth',
    f'{NON_FINITE}*.pth',
    POINTER,
    LOSSES,
    METRICS,
    RUN_INFO,
    'report.html',
    'pictures',
    'tensorboard',
)


def newest_checkpoint(
    work_dir: str, trusted: bool = False
) -> tuple[Path, dict[str, Any], list[str]]:
    """Read the newest checkpoint of a run that can be read, looking from the newest down.

    Returns the path, what the file holds, and sentences about newer files that cannot be read.
    """
    problems: list[str] = []
    readable: list[tuple[Path, dict[str, Any]]] = []
    for pattern in CHECKPOINTS:
        for path in _newest_first(work_dir, pattern):
            try:
                checkpoint = read_checkpoint(path, trusted=trusted)
                require_training_state(checkpoint, path)
                require_finite(model_state(checkpoint, path), path)
            except UserError as error:
                problems.append(str(error))
                continue
            readable.append((path, checkpoint))
            break
    if readable:
        path, checkpoint = max(readable, key=lambda pair: pair[1]['meta']['iter'])
        return path, checkpoint, [f'{problem}; {path.name} is taken' for problem in problems]
    raise UserError(
        f'--resume: no checkpoint in {work_dir} can be resumed: {"; ".join(problems)}; '
        'without --resume the run starts again, and these files are kept'
    )


def has_checkpoints(work_dir: str) -> bool:
    """Return whether a folder has a file that is named like a checkpoint of a run."""
    return any(_newest_first(work_dir, pattern) for pattern in CHECKPOINTS)


def require_checkpoints(work_dir: str) -> None:
    """Refuse to resume in a folder without checkpoints, and name the folders of earlier runs."""
    if not has_checkpoints(work_dir):
        earlier = ' or '.join(sorted(map(str, Path(work_dir).glob(f'{EARLIER}*'))))
        hint = f', or resume an earlier run with --work-dir {earlier}' if earlier else ''
        raise UserError(
            f'--resume: {work_dir} holds no checkpoint to resume from: leave out --resume{hint}'
        )


def set_run_aside(work_dir: str) -> Path | None:
    """Move the files of an earlier run into a new folder, and return it, or None without any.

    A new run would replace some of the checkpoints, and a resume would mix both runs.
    """
    earlier = sorted(path for pattern in WRITTEN for path in Path(work_dir).glob(pattern))
    return set_aside(Path(work_dir), earlier, 'name another --work-dir, or resume with --resume')


def _newest_first(work_dir: str, pattern: str) -> list[Path]:
    """Order by the numbers in the names, as the times of copies are those of the copying."""
    return sorted(filter(Path.is_file, Path(work_dir).glob(pattern)), key=_number, reverse=True)


def _number(path: Path) -> int:
    number = re.fullmatch(r'\D+_(\d{1,18})', path.stem)
    return int(number[1]) if number else -1
