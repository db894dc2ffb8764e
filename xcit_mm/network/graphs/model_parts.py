"""The parts of a model that are functions of tensors of a fixed size."""

from collections.abc import Callable, Iterator
from typing import Any

from mmengine.dist import get_world_size
from torch import nn

from .graphed_part import GraphedPart
from .recorder import recorder_for

MAX_SIZES = 16
# Dense heads, whose convolutions are called with maps alone.
HEADS = 'rpn_head', 'bbox_head', 'mask_head', 'decode_head', 'auxiliary_head'


class GraphedModel:
    """A model whose backbone, neck and dense heads replay CUDA graphs while it is attached.

    Any detector of mmdet and any segmentor of mmseg has such parts. What needs the objects of a
    batch, such as losses, proposals and the heads of regions, runs eagerly.

    Args:
        model: The model, on its device.
        note: Called with a sentence about each part that runs without graphs.
        max_sizes: The largest number of captured sizes of batches.
    """

    def __init__(
        self, model: nn.Module, note: Callable[[str], None], max_sizes: int = MAX_SIZES
    ) -> None:
        device = next(model.parameters()).device
        self.parts: list[GraphedPart] = []
        self._owners: list[tuple[nn.Module, str, Callable[..., Any] | None]] = []
        for name, owner, method in _functions(model):
            recorder = recorder_for(device)
            if recorder is None:
                note(f'CUDA graphs need a GPU: everything runs without them on the {device.type}')
                return
            communicates = get_world_size() > 1 and any(
                isinstance(module, nn.SyncBatchNorm) for module in owner.modules()
            )
            function = getattr(owner, method)
            arguments = device, recorder, max_sizes, communicates, note, self._forget
            self.parts.append(GraphedPart(name, function, owner, *arguments))
            self._owners.append((owner, method, vars(owner).get(method)))

        if not self.parts:
            note(f'CUDA graphs: a {type(model).__name__} has no backbone that could be captured')

    @property
    def num_sizes(self) -> int:
        return max((part.num_sizes for part in self.parts), default=0)

    @property
    def counts(self) -> tuple[int, int]:
        """The calls of all parts so far, and those of them that replayed graphs."""
        return sum(part.calls for part in self.parts), sum(part.replays for part in self.parts)

    def attach(self) -> None:
        """Call the parts with graphs. A copy of the model would call those of the model itself."""
        for part, (owner, method, _) in zip(self.parts, self._owners, strict=True):
            setattr(owner, method, part)

    def detach(self) -> None:
        for owner, method, own in self._owners:
            delattr(owner, method)
            if own is not None:  # its forward was replaced before
                setattr(owner, method, own)

    def _forget(self) -> None:
        for part in self.parts:
            part.forget()


def _functions(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the functions of a model: a name, the module that has it, and the name of its method.

    ``extract_feat`` calls backbone and neck, and is called by losses and predictions.
    """
    if hasattr(model, 'extract_feat'):
        yield 'the backbone with the neck', model, 'extract_feat'
    elif hasattr(model, 'backbone'):
        yield 'the backbone', model.backbone, 'forward'
    for name in HEADS:
        head = getattr(model, name, None)
        for module in head if isinstance(head, nn.ModuleList) else (head,):
            if module is not None:
                yield name, module, 'forward'
