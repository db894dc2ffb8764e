"""The maps of a backbone, freed as soon as they are used: gigabytes of a large image."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


class MapsOnce(Sequence):
    """Maps of which each is handed out once, and forgotten."""

    def __init__(self, maps: Sequence[Tensor]) -> None:
        self._maps: list[Tensor | None] = list(maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, index: int) -> Tensor | None:
        taken, self._maps[index] = self._maps[index], None
        return taken


@contextmanager
def maps_freed_once_used(model: nn.Module) -> Iterator[None]:
    """Have the feature pyramid network take the maps of the backbone one by one.

    It reads each once, at its beginning, but its caller would hold them to its end: a quarter
    of the memory at the peak. Other necks may read them again and are left as they are.

    Args:
        model: A detector or segmentor, in inference.
    """
    neck = getattr(model, 'neck', None)
    if type(neck).__name__ != 'FPN' or neck.add_extra_convs == 'on_input':
        yield
        return
    hook = model.backbone.register_forward_hook(lambda module, inputs, maps: MapsOnce(maps))
    try:
        yield
    finally:
        hook.remove()
