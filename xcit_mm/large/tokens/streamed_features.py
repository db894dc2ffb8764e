"""The tokens and the class token of an image of any size, tile by tile.

The class token reads the other tokens by attention, whose softmax is summed up over tiles with the
largest logit so far subtracted. A block changes the other tokens one by one, so that each class
attention block is one pass over the tokens that the trunk has written, and the second block
computes the change by the first one again.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...network.models.class_attention import ClassAttention
from ...network.models.image_xcit import ImageXCiT, XCiTTrunk
from ...network.ops.moments import to_widest
from .passes import Image, Passes
from .workspace import Demand, Workspace


class StreamedFeatures:
    """The features of one image, whose trunk runs when the object is made.

    Args:
        model: The network in evaluation mode. Without class attention, only :meth:`tokens` exists.
        image: The normalized image (channels, H, W).
        rows: See :class:`.Passes`.

    Raises:
        ArgumentError: If the network cannot be streamed.
        UserError: If a layer computes values that are not finite.
    """

    def __init__(
        self,
        model: XCiTTrunk,
        image: Image,
        rows: int | None = None,
    ) -> None:
        self._model = model
        self._passes = passes = Passes(model, image, rows)
        tokens = passes.bytes_needed
        if Demand(tokens, passes.bytes_of_tile, tokens, passes.device).fits_device:
            passes.workspace = Workspace(device=passes.device)
        passes.run()

    @torch.inference_mode()
    def tokens(self) -> Iterator[Tensor]:
        """Yield the tokens (n, C) of each tile before the class attention.

        Those without data are left out.
        """
        passes = self._passes
        store = passes.store(passes.count - 1)
        ((_, _, _, norm),) = self._model.levels
        for window in passes.tiles():
            x = passes.tokens_with_data(window, store.read(window)).flatten(0, -2)
            if len(x):
                yield norm(x.T[None, :, :, None])[0, :, :, 0].T

    @torch.inference_mode()
    def token(self) -> Tensor:
        """Return the class token (C) after the last norm, as ``ImageXCiT.features`` does."""
        model: ImageXCiT = self._model
        token = model.cls_token
        for number, block in enumerate(model.cls_attn_blocks):
            query = block.norm1(token)
            softmax = _Softmax(block.attn, query)
            for x in self.tokens():
                x = x[None]
                for earlier in model.cls_attn_blocks[:number]:
                    x = earlier.next_tokens(x)
                softmax.add(block.norm1(x))
            token = block.next_token(token, softmax.read())
        return model.norm(token)[0, 0]


class _Softmax:
    """What a class token (1, 1, C) reads from itself and from tiles of tokens."""

    def __init__(self, attention: ClassAttention, token: Tensor) -> None:
        self._attention, self._token = attention, token
        # The token itself is the first key; each tile is computed with it and drops it again.
        query, keys, values = attention.queries(token, token[:, :0])
        self._query = query
        self._largest = self._logits(keys).amax(-1, keepdim=True)
        self._weight = torch.ones_like(self._largest)
        self._sum = to_widest(values)

    def _logits(self, keys: Tensor) -> Tensor:
        query = to_widest(self._query) * self._query.shape[-1] ** -0.5
        return query @ to_widest(keys).transpose(-1, -2)

    def add(self, x: Tensor) -> None:
        """Add a tile of normed tokens (1, n, C)."""
        _, keys, values = self._attention.queries(self._token, x)
        logits = self._logits(keys[:, :, 1:])
        largest = torch.maximum(self._largest, logits.amax(-1, keepdim=True))
        scale, weights = (self._largest - largest).exp(), (logits - largest).exp()
        self._weight = self._weight * scale + weights.sum(-1, keepdim=True)
        self._sum = self._sum * scale + weights @ to_widest(values[:, :, 1:])
        self._largest = largest

    def read(self) -> Tensor:
        """Return what the token reads, (1, 1, C)."""
        mean = (self._sum / self._weight).to(self._token.dtype)
        return self._attention.proj(mean.transpose(1, 2).flatten(2))
