"""Names of the files that a run writes to its work dir, and what is done with them by name."""

import re
from pathlib import Path

from .errors import UserError
from .files import EARLIER, set_aside

LOSSES = 'losses.jsonl'
METRICS = 'metrics.jsonl'
RUN_INFO = 'run.json'
CURVE_IDS = 'curve_ids.json'  # the ids of the run in services that draw curves
PICTURES = 'pictures'
ERRORS = 'errors'
ERRORS_PICTURE = 'errors.png'
POINTER = 'last_checkpoint'  # mmengine's file with the path of the newest checkpoint
CHECKPOINTS = ('epoch_*.pth', 'iter_*.pth')
BEST, LAST = 'best.pth', 'last.pth'  # links to checkpoints
NON_FINITE = 'non_finite_'  # the start of the names of the files that NonFiniteHook writes
# What a run writes to its work dir in addition to its log.
WRITTEN = (
    *CHECKPOINTS,
    'best_*.pth',
    f'{NON_FINITE}*.pth',
    POINTER,
    LOSSES,
    METRICS,
    RUN_INFO,
    CURVE_IDS,
    'report.html',
    PICTURES,
    ERRORS,
    'tensorboard',
)


def has_checkpoints(work_dir: str) -> bool:
    """Return whether a folder has a file that is named like a checkpoint of a run."""
    return any(newest_first(work_dir, pattern) for pattern in CHECKPOINTS)


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
    folder = Path(work_dir)
    earlier = [path for pattern in WRITTEN for path in folder.glob(pattern)]
    # A file with the name of a link is not of a run.
    earlier += [link for link in (folder / BEST, folder / LAST) if link.is_symlink()]
    return set_aside(folder, sorted(earlier))


def newest_first(work_dir: str, pattern: str) -> list[Path]:
    """Order by the numbers in the names: a copy has the time of the copying."""
    return sorted(filter(Path.is_file, Path(work_dir).glob(pattern)), key=_number, reverse=True)


def _number(path: Path) -> int:
    number = re.fullmatch(r'\D+_(\d{1,18})', path.stem)
    return int(number[1]) if number else -1
