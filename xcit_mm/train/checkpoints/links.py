"""The links ``best.pth`` and ``last.pth`` to checkpoints of a run."""

from contextlib import suppress
from pathlib import Path

from ...base.files import UNFINISHED


def is_of_user(link: Path) -> bool:
    """Return whether something other than a link is at this path, which is then kept."""
    return link.exists() and not link.is_symlink()


def point_to(link: Path, checkpoint: Path | None) -> None:
    """Point a link to a checkpoint in one step, or remove it without a checkpoint.

    Raises:
        OSError: If the file system has no links, or the user has no right to create them.
    """
    if is_of_user(link):
        return
    if checkpoint is None:
        link.unlink(missing_ok=True)
        return
    # A work dir that is moved keeps its links.
    checkpoint = checkpoint.absolute()
    is_beside = checkpoint.parent == link.absolute().parent
    new = link.with_name(f'.{link.name}{UNFINISHED}')
    new.unlink(missing_ok=True)
    try:
        new.symlink_to(checkpoint.name if is_beside else checkpoint)
        new.replace(link)
    finally:
        new.unlink(missing_ok=True)


def through_link(link: Path, checkpoint: str) -> str:
    """Return the path of a link if it points to a checkpoint, otherwise that of the checkpoint."""
    with suppress(OSError):  # in an object store, or removed
        if link.is_symlink() and link.samefile(checkpoint):
            return str(link)
    return checkpoint
