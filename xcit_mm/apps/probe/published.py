"""Accuracies of the released DINO models on ImageNet (table 3 of the paper)."""

import re
from pathlib import Path
from typing import NamedTuple

NUM_CLASSES = 1000


class Accuracy(NamedTuple):
    """Top-1 accuracy of a linear classifier and of k-NN, in percent."""

    linear: float
    knn: float


TABLE_3 = {
    'xcit_small_12_p16_dino': Accuracy(77.8, 76.0),
    'xcit_small_12_p8_dino': Accuracy(79.2, 77.1),
    'xcit_medium_24_p16_dino': Accuracy(78.8, 76.4),
    'xcit_medium_24_p8_dino': Accuracy(80.3, 77.9),
}
# File names in XCiT's release (small models are also named cp16 there) and in DINO's release.
RELEASED = re.compile(r'xcit_(small|medium)_(12|24)_c?p(16|8)_(?:dino|pretrain)')
SYNSET = re.compile(r'n\d{8}')


def published(path: str, model: str, classes: tuple[str, ...]) -> tuple[str, Accuracy] | None:
    """Return the name of the released model in a file, and its accuracies.

    Args:
        path: The file, named after the model.
        model: The architecture in the file, such as XCiT-S12/16.
        classes: The names of the folders. They have to be ImageNet's 1,000 synsets.

    Returns:
        None if the file has another name or architecture, or if the classes differ.
    """
    match = RELEASED.search(Path(path).name)
    is_imagenet = len(classes) == NUM_CLASSES and all(map(SYNSET.fullmatch, classes))
    if match is None or not is_imagenet:
        return None
    size, depth, patch = match.groups()
    name = f'xcit_{size}_{depth}_p{patch}_dino'
    if name not in TABLE_3 or model != f'XCiT-{size[0].upper()}{depth}/{patch}':
        return None
    return name, TABLE_3[name]
