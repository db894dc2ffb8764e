"""The checkpoint that a run resumes from."""

from pathlib import Path
from typing import Any

from ..errors import UserError
from ..run_files import CHECKPOINTS, newest_first
from ..weights.names import model_state, require_finite
from ..weights.read import read_checkpoint
from .training_state import require_training_state


def newest_checkpoint(
    work_dir: str, trusted: bool = False
) -> tuple[Path, dict[str, Any], list[str]]:
    """Read the newest checkpoint of a run that can be read, looking from the newest down.

    Returns the path, what the file holds, and sentences about newer files that cannot be read.
    """
    problems: list[str] = []
    readable: list[tuple[Path, dict[str, Any]]] = []
    for pattern in CHECKPOINTS:
        for path in newest_first(work_dir, pattern):
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
