"""The checkpoint that a run resumes from."""

from pathlib import Path

from ...base.errors import UserError
from ...base.run_files import CHECKPOINTS, newest_first
from ...network.weights.names import model_state, require_finite
from ...network.weights.read import read_checkpoint
from .training_state import require_training_state


def newest_checkpoint(work_dir: str, trusted: bool = False) -> tuple[Path, list[str]]:
    """Find the newest checkpoint of a run that can be read, looking from the newest down.

    Returns its path, and sentences about newer files that cannot be read.
    """
    problems: list[str] = []
    iterations: dict[Path, int] = {}
    for pattern in CHECKPOINTS:
        for path in newest_first(work_dir, pattern):
            try:
                checkpoint = read_checkpoint(path, trusted=trusted)
                require_training_state(checkpoint, path)
                require_finite(model_state(checkpoint, path), path)
            except UserError as error:
                problems.append(str(error))
                continue
            iterations[path] = checkpoint['meta']['iter']
            break
    if not iterations:
        raise UserError(
            f'--resume: no checkpoint in {work_dir} can be resumed: {"; ".join(problems)}; '
            'without --resume the run starts again, and these files are kept'
        )
    newest = max(iterations, key=iterations.__getitem__)
    return newest, [f'{problem}; {newest.name} is used instead' for problem in problems]
