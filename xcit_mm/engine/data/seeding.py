"""Randomness that follows from the position in a run, not from what was drawn before.

The state of a generator, and of those of all workers, would have to be saved while no batch is on
its way. Nothing is saved here: before every step, and before every sample that is loaded, all
generators are seeded with the position of the run.
"""

import hashlib
import random

import numpy as np
import torch


def seed_all(*position: int) -> None:
    """Seed Python, NumPy and PyTorch, on all devices, for one position of a run.

    Args:
        *position: Integers such as the seed of the run, the rank and the iteration. Positions that
            differ in any number, or in how many there are, give unrelated random numbers.
    """
    digest = hashlib.blake2b(repr(position).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, 'little')
    random.seed(seed)
    np.random.seed(seed % 2**32)  # its largest seed
    torch.manual_seed(seed % 2**63)
