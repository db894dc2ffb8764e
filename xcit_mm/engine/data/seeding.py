"""Randomness that follows from the place in a run, not from what was drawn before it.

A generator that has been running for days would have to be saved, with those of every worker, at
a moment when nothing is on its way. Here nothing is saved: before every step, and before every
sample that is loaded, all generators are seeded with where the run is.
"""

import hashlib
import random

import numpy as np
import torch


def seed_all(*place: int) -> None:
    """Seed Python, NumPy and PyTorch, on all devices, for one place of a run.

    Args:
        *place: Whole numbers, such as the seed of the run, the rank and the iteration. Places
            that differ in one of them, or in how many there are, have nothing in common.
    """
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, 'little')
    random.seed(seed)
    np.random.seed(seed % 2**32)  # all that it takes
    torch.manual_seed(seed % 2**63)
