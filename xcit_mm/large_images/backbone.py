"""Compute XCiT over an image of any size, in passes over tiles of its tokens.

Attention sees an image only through two sums over its tokens. Everything else in a layer acts on
single tokens, except for two depthwise 3x3 convolutions, which together reach two tokens away.
Each layer is therefore one pass over a store of tokens: a tile is read with a halo of two tokens,
goes through the layer, and is written to another store. Its share of the sums of the next layer is
added in the same pass. The result is that of the whole image, up to rounding (XCiT, arXiv
2106.09681, sections 3.2 and 3.3).
"""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..device import release_memory
from ..errors import ArgumentError
from ..models import XCiT
from ..models.convolutions import flat_layers
from ..models.layers import XCABlock
from ..models.plain import PYTORCH_LAYERS, is_plain
from ..ops.xca import MAX_AMPLIFICATION, mixing
from .bands import Bands
from .lazy_maps import LazyMap
from .moments import covariance_and_mean, sums_of_products
from .progress import Progress, silent
from .store import TokenStore
from .windows import Window, grown, tiles
from .workspace import Workspace

COARSEST = 32  # stride of the last map
HALO = 2  # tokens to each side that the local interaction reads
TILE_TOKENS = 2**14  # tokens of a tile
TILE_TENSORS = 14  # tensors of that size that a tile needs at most, including the heads
PATCH_TILE = 64, 64  # tokens; the first convolutions have few channels but many pixels
MAX_COLUMNS = 256  # tokens; wider images are also cut into columns


class Image(Protocol):
    """A normalised image (channels, H, W) that is read by windows, such as an array."""

    shape: tuple[int, int, int]

    def __getitem__(self, window: tuple[slice, slice, slice]) -> Tensor: ...


class Passes:
    """The passes of a backbone over an image: one for the patch embedding and one for each layer.

    Args:
        backbone: The backbone, in evaluation mode.
        image: The image, which only the first pass reads.
        workspace: The place where the tokens are kept.
        bands: The rows of this process, in tokens. Default: all rows.
        rows: Height of the tiles in tokens; the tiles are then as wide as the image. Default:
            tiles of about ``TILE_TOKENS`` tokens.
        statistics_window: Side, in pixels, of the window around a tile over which the attention
            computes the moments of the tokens. Default: the whole image.

    Raises:
        ArgumentError: If the backbone or the image cannot be streamed.
    """

    def __init__(
        self,
        backbone: XCiT,
        image: Image,
        workspace: Workspace,
        bands: Bands | None = None,
        rows: int | None = None,
        statistics_window: int | None = None,
    ) -> None:
        require_streamable(backbone)
        self.backbone, self.image, self.workspace = backbone, image, workspace
        backbone.check_size((1, *image.shape))
        self.size = grid_size(backbone, image.shape)
        self.bands = bands or Bands(self.size[0])
        weight = next(backbone.parameters())
        self.dtype, self.device = weight.dtype, weight.device
        self.statistics_window = None
        if statistics_window is not None:
            self.statistics_window = max(1, statistics_window // backbone.patch_size)
        self.tile = self._tile(rows)
        self.count = backbone.out_indices[-1] + 2
        self._stores: dict[str, TokenStore] = {}
        self._rows_read: list[slice] | None = None

    def _tile(self, rows: int | None) -> tuple[int, int]:
        W = self.size[1]
        if rows is not None:
            if rows < 1:
                raise ArgumentError(f'rows={rows!r} is not a positive number of rows of tokens')
            return rows, W
        if self.statistics_window is not None:
            side = max(1, min(self.statistics_window // 2, math.isqrt(TILE_TOKENS)))
            return side, side
        columns = W if W <= MAX_COLUMNS else -(-W // -(-W // (MAX_COLUMNS // 2)))
        return max(1, TILE_TOKENS // columns), columns

    def _own_tiles(self, tile: tuple[int, int]) -> list[Window]:
        return list(tiles(Window(self.bands.rows, slice(0, self.size[1])), tile))

    @property
    def bytes_needed(self) -> int:
        """Bytes of the stores of all processes: the input and output of a pass, and kept maps."""
        H, W = self.size
        kept = len(self.backbone.out_indices[self.backbone.start_level :])
        return (kept + 1) * H * W * self._channels * self.dtype.itemsize

    @property
    def bytes_of_tile(self) -> int:
        """The most bytes that computing a tile takes."""
        tokens = max(TILE_TOKENS, math.prod(self.tile))
        return TILE_TENSORS * tokens * self._channels * self.dtype.itemsize

    @property
    def _channels(self) -> int:
        return self.backbone.blocks[0].norm1.normalized_shape[0]

    @torch.inference_mode()
    def run(self, progress: Progress = silent) -> None:
        """Run the passes that are not finished."""
        done = self.bands.lowest(min(self.workspace.finished, self.count))
        self.workspace.finished = min(done, self.workspace.finished)
        progress.expect(self.count - done)
        sums = self.workspace.sums(done) if 0 < done < self.count else None
        for number in range(done, self.count):
            store = self._store(number)
            if number:
                source = self._store(number - 1)
                margin = HALO if self.statistics_window is None else self._reach
                self.bands.borrow(source, grown(self.bands.rows, margin, self.size[0]))
                sums = self._layer(number, source, store, sums, progress)
            else:
                sums = self._embed(store, progress)
            sums = self.bands.total(sums)
            self.workspace.finish(number + 1, store, sums)
            self.bands.wait()  # no process repeats this pass, which needs the store before it
            name = self._name(number - 1)
            if number and name.startswith('tokens'):
                self._stores.pop(name).free()
        release_memory()

    def _name(self, number: int) -> str:
        """Return the name of the store that a pass writes: one for the pyramid, or one of two."""
        indices = self.backbone.out_indices[self.backbone.start_level :]
        return f'layer_{number}' if number - 1 in indices else f'tokens_{number % 2}'

    def _store(self, number: int) -> TokenStore:
        name = self._name(number)
        if name not in self._stores:
            shape = self.size[1], self._channels
            has_to_exist = number < self.workspace.finished
            self._stores[name] = self.workspace.store(
                name, self.bands.rows, shape, self.dtype, has_to_exist
            )
        return self._stores[name]

    def _embed(self, store: TokenStore, progress: Progress) -> Tensor:
        """Embed the patches; a token reads 15 pixels (7 for patch size 8) above and left of it."""
        sums = self._no_sums()
        P, (_, height, width) = self.backbone.patch_size, self.image.shape
        tile = tuple(map(min, self.tile, PATCH_TILE))
        for window in progress(self._own_tiles(tile), 'patches'):
            outer = Window(*(slice(max(0, span.start - 1), span.stop) for span in window))
            rows = slice(outer.rows.start * P, min(height, outer.rows.stop * P))
            columns = slice(outer.columns.start * P, min(width, outer.columns.stop * P))
            pixels = self.image[:, rows, columns]
            if not isinstance(pixels, Tensor):
                pixels = torch.from_numpy(np.array(pixels))  # memory maps may be read-only
            x = self.backbone.patch_embed(pixels[None].to(self.device, self.dtype))
            x = x[(..., *window.within(outer))]
            x = x + self.backbone.pos_embeder(*self.size, *window)
            tokens = x[0].permute(1, 2, 0).contiguous()
            store.write(window, tokens)
            sums += self._sums_of(0, tokens)
        return sums

    def _layer(
        self,
        number: int,
        source: TokenStore,
        store: TokenStore,
        sums: Tensor,
        progress: Progress,
    ) -> Tensor:
        block = self.backbone.blocks[number - 1]
        matrices = None
        if self.statistics_window is None:
            matrices = self._mixing(block, sums, lambda: self._precise_sums(block, source))
        sums = self._no_sums()
        for window in progress(self._own_tiles(self.tile), f'layer {number} of {self.count - 1}'):
            if self.statistics_window is None:
                M, m = matrices
            else:
                M, m = self._local_mixing(block, source, window)
            outer = window.grown(HALO, self.size)
            x = source.read(outer).to(self.device)
            tokens = _layer_on_tile(block, x, M, m, window.within(outer))
            store.write(window, tokens)
            if number < self.count - 1:
                sums += self._sums_of(number, tokens)
        return sums

    def _mixing(
        self, block: XCABlock, sums: Tensor, precise: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of a layer as an affine map of its tokens."""
        G, s, N = covariance_and_mean(sums.to(self.device))
        attn = block.attn
        parameters = attn.qkv.weight, attn.qkv.bias, attn.temperature
        parameters = G[None], s[None], N, *parameters, attn.proj.weight, attn.proj.bias
        limit = MAX_AMPLIFICATION * torch.finfo(self.dtype).eps
        wide = torch.promote_types(self.dtype, torch.float32)
        matrices = mixing(*parameters, limit / torch.finfo(wide).eps)
        if matrices is None:  # products in the dtype of the tokens lose too many digits
            G, s, N = covariance_and_mean(precise().to(self.device))
            matrices = mixing(G[None], s[None], N, *parameters[3:])
        M, m = matrices
        return M.mT.to(self.dtype), m.to(self.dtype)

    def _precise_sums(self, block: XCABlock, source: TokenStore) -> Tensor:
        """Compute the sums over all tokens again, with products in float64."""
        sums = self._no_sums()
        for window in self._own_tiles(self.tile):
            sums += sums_of_products(block.norm1(source.read(window).to(self.device)).double())
        return self.bands.total(sums)

    @property
    def _reach(self) -> int:
        return max(HALO, self.statistics_window)

    def _local_mixing(
        self, block: XCABlock, source: TokenStore, window: Window
    ) -> tuple[Tensor, Tensor]:
        """Return the attention over a window around a tile, shifted to lie within the image."""
        spans = []
        for span, n, tile in zip(window, self.size, self.tile, strict=True):
            side = min(n, self.statistics_window)
            # The window surrounds the whole tile, of which this process may hold only a part.
            start = span.start // tile * tile + (tile - side) // 2
            start = max(0, min(start, n - side))
            spans.append(slice(start, start + side))
        tokens = block.norm1(source.read(Window(*spans)).to(self.device))
        return self._mixing(
            block, sums_of_products(tokens), lambda: sums_of_products(tokens.double())
        )

    def _no_sums(self) -> Tensor:
        C = self._channels
        return torch.zeros(C + 1, C + 1, dtype=torch.float64, device=self.device)

    def _sums_of(self, number: int, tokens: Tensor) -> Tensor | float:
        """Return the share of a tile in the sums of a layer."""
        if self.statistics_window is not None:
            return 0.0
        return sums_of_products(self.backbone.blocks[number].norm1(tokens))

    @property
    def level_shapes(self) -> list[tuple[int, int, int]]:
        """The shapes (C, H_i, W_i) of the maps."""
        b = self.backbone
        strides = (4, 8, 16, 32)[b.start_level :]
        return [(self._channels, *(n * b.patch_size // s for n in self.size)) for s in strides]

    def levels(self) -> tuple[LazyMap, ...]:
        """Return the maps of the backbone, which are computed from the stores when they are read.

        Each process can read the rows of its band, and :meth:`borrow` copies more rows. All
        processes have to call this method.
        """
        b, own = self.backbone, self.bands.rows
        for index in b.out_indices[b.start_level :]:
            self._store(index + 1)
        reach = COARSEST // b.patch_size  # a map at stride 32 pools several tokens
        self.borrow(slice(own.start - reach, own.stop + reach))
        levels = (b.fpn1, b.fpn2, b.fpn3, b.fpn4)[b.start_level :]
        indices = b.out_indices[b.start_level :]
        strides = (4, 8, 16, 32)[b.start_level :]
        return tuple(
            self._level(self._store(index + 1), level, norm, stride)
            for index, level, norm, stride in zip(
                indices, levels, b.out_norms, strides, strict=True
            )
        )

    def _level(self, store: TokenStore, level, norm, stride: int) -> LazyMap:
        patch = self.backbone.patch_size
        size = tuple(n * patch // stride for n in self.size)

        def read(window: Window) -> Tensor:
            inner, crops = [], []
            for span in window:
                start, stop = span.start * stride // patch, -(-span.stop * stride // patch)
                inner.append(slice(start, stop))
                first = start * patch // stride
                crops.append(slice(span.start - first, span.stop - first))
            if self._rows_read is None:
                x = store.read(Window(*inner)).to(self.device)
            else:  # in FakeTensorMode
                self._rows_read.append(inner[0])
                x = torch.empty(*Window(*inner).size, self._channels, dtype=self.dtype)
            x = x.permute(2, 0, 1)[None]
            return norm(level(x))[(..., *crops)]

        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return LazyMap(self._channels, size, like, self.bands, read)

    def rows_read(self, read: Callable[[], object]) -> slice:
        """Return the rows of tokens that a function reads, without computing its result."""
        self._rows_read = []
        with FakeTensorMode(allow_non_fake_inputs=True):
            read()
        rows, self._rows_read = self._rows_read, None
        return slice(min(span.start for span in rows), max(span.stop for span in rows))

    def borrow(self, needed: slice) -> None:
        """Copy the rows of tokens that maps need from other processes; all have to call it."""
        needed = grown(needed, 0, self.size[0])
        for store in self._stores.values():
            self.bands.borrow(store, needed)


def _layer_on_tile(block: XCABlock, x: Tensor, M: Tensor, m: Tensor, inner: Window) -> Tensor:
    """Compute a layer for tokens (h, w, C), and return the ``inner`` window, which is exact."""
    h, w, C = x.shape
    y = block.attend(x.view(1, h * w, C), lambda tokens: torch.baddbmm(m, tokens, M), h, w)
    return block.mix_channels(y.view(h, w, C)[tuple(inner)].contiguous())


def grid_size(backbone: XCiT, shape: Iterable[int]) -> tuple[int, int]:
    """Return the size in tokens of an image of shape (..., H, W)."""
    return tuple(-(-n // backbone.patch_size) for n in tuple(shape)[-2:])


def require_streamable(backbone: nn.Module) -> None:
    """Refuse a backbone that is in training, or whose layers have hooks or were replaced."""
    if getattr(type(backbone), 'forward', None) is not XCiT.forward:
        raise ArgumentError(f'a {type(backbone).__name__} cannot be streamed: only an XCiT can')
    if backbone.training:
        raise ArgumentError('the backbone is in training: call backbone.eval() first')
    for i, block in enumerate(backbone.blocks[: backbone.out_indices[-1] + 1]):
        if not (block.can_infer_in_place() and is_plain(block, (XCABlock,))):
            raise _not_plain(f'blocks.{i}')
    require_known_reach(backbone)


def require_known_reach(backbone: XCiT) -> None:
    """Refuse replaced convolutions, which may reach further than those of XCiT."""
    blocks = backbone.blocks[: backbone.out_indices[-1] + 1]
    parts = {f'blocks.{i}.local_mp': [*b.local_mp.children()] for i, b in enumerate(blocks)}
    for name in ('patch_embed.proj', 'fpn1', 'fpn2', 'fpn3', 'fpn4'):
        parts[name] = list(flat_layers(backbone.get_submodule(name)))
    for name, layers in parts.items():
        for layer in layers:
            convolves = isinstance(layer, nn.Conv2d)
            is_known = is_plain(layer, (*PYTORCH_LAYERS, nn.Identity, nn.MaxPool2d))
            if not is_known or (convolves and layer.kernel_size + layer.dilation != (3, 3, 1, 1)):
                raise _not_plain(name)


def _not_plain(name: str) -> ArgumentError:
    return ArgumentError(
        f'{name} of the backbone has hooks or replaced layers, whose reach is not known: merge '
        'them into its weights first'
    )
