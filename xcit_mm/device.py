"""Where a model computes."""

import torch

from .errors import ArgumentError, reason


def choose_device(name: str | None) -> torch.device:
    """The device of a name, such as 'cpu', 'cuda' or 'cuda:1'; None: a GPU where there is one.

    Raises:
        ValueError: If there is none of that name.
    """
    if name is None:
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(
            f'device={name!r} cannot be used ({reason(error)}); cpu always can'
        ) from None
    return device
