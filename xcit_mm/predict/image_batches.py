"""Batches of images that worker processes read and prepare, or why they could not."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader

from ..base.errors import UserError
from ..base.progress import ImageProgress

Prepare = Callable[[str], Tensor]  # a path or URL to what a model gets, or a UserError


def image_batches(
    paths: Sequence[str | Path],
    prepare: Prepare,
    batch_size: int,
    workers: int,
    progress: ImageProgress,
) -> Iterator[list[Tensor | str]]:
    """Yield the prepared images of each batch, and in place of unreadable ones their errors.

    Args:
        paths: Paths or URLs.
        prepare: Returns an image as a tensor, or raises a UserError; pickled for the workers.
        batch_size: Images in a batch.
        workers: The largest number of processes that read images; 0: this process reads them.
        progress: Counts the images and reports those that are left out.

    Raises:
        UserError: After the last batch, if no image could be read.
    """
    progress.expect(len(paths))
    workers = min(workers, len(paths) // batch_size)
    read = partial(_read_batch, prepare)
    readable, first_error = 0, ''
    for batch in DataLoader(
        [str(path) for path in paths], batch_size, num_workers=workers, collate_fn=read
    ):
        for image in batch:
            if isinstance(image, str):
                progress.report(f'{image}; left out')
                first_error = first_error or image
            else:
                readable += 1
        yield batch
        for _ in batch:
            progress.count()
    if paths and not readable:
        raise UserError(f'no image can be read: {first_error}')


def _read_batch(prepare: Prepare, paths: Sequence[str]) -> list[Tensor | str]:
    batch: list[Tensor | str] = []
    for path in paths:
        try:
            batch.append(prepare(path))
        except UserError as error:
            batch.append(str(error))
    return batch
