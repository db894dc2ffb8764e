"""Predictions that do not depend on the other images of a batch."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any


def groups_of(sizes: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices of each size, in the order in which the sizes first occur."""
    groups = defaultdict(list)
    for i, size in enumerate(sizes):
        groups[size].append(i)
    return list(groups.values())


def predict_by_size(step: Callable[[dict], Sequence[Any]], batch: dict[str, Any]) -> list[Any]:
    """Call ``test_step`` or ``val_step`` with the images of each size in a batch.

    Images of several sizes would be padded, and XCiT would attend to the padding, so that results
    would depend on the other images of the batch.
    """
    inputs = batch['inputs']
    is_augmented = isinstance(inputs[0], (list, tuple))  # a list for each augmentation
    images = zip(*inputs, strict=True) if is_augmented else ((image,) for image in inputs)
    groups = groups_of([tuple(x.shape for x in of_image) for of_image in images])
    if len(groups) == 1:
        return step(batch)
    outputs = {}
    for indices in groups:

        def chosen(values: Sequence[Any], indices: Sequence[int] = indices) -> list[Any]:
            return [values[i] for i in indices]

        part = {k: list(map(chosen, v)) if is_augmented else chosen(v) for k, v in batch.items()}
        outputs.update(zip(indices, step(part), strict=True))
    return [outputs[i] for i in range(len(outputs))]
