"""XCiT over an image of any size, in passes over tiles of its tokens.

The attention depends on an image only through two sums over its tokens. Everything else in a layer
acts on single tokens, except for two depthwise 3x3 convolutions, which together reach two tokens
away. Each layer is therefore one pass over a store of tokens: a tile is read with a halo of two
tokens, goes through the layer, and is written to another store. Its share of the sums of the next
layer is added in the same pass. The tokens equal the tokens of the whole image, up to rounding
(XCiT, arXiv 2106.09681, sections 3.2 and 3.3).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...base.device import dtype_name, pinned, release_memory, sent, trim_memory, widest_dtype
from ...base.errors import UserError
from ...base.free_memory import device_memory
from ...base.geometry import Window, around, grown, length, tiles
from ...base.progress import Progress, silent
from ...base.threads import prefetch
from ...network import XCiT
from ...network.fast.cpu import add_attention_and_interaction, add_mlp_
from ...network.fast.tracing import computed_dtype, without_autocast
from ...network.fast.xca_operator import largest_amplification
from ...network.layers import XCABlock
from ...network.ops.gram import (
    affine_map,
    map_of,
    map_tokens,
    queries_and_keys,
)
from ...network.ops.moments import to_widest
from ...network.ops.sums import from_sums, sums_of_products
from ...network.pyramid import covered_size
from ...network.rows import RowsWithGaps
from .shards import Borrowed, Shards
from .streamable import require_streamable
from .token_files import LateWrites, TokenFile
from .workspace import Workspace

HALO = 2  # tokens to each side that the local interaction reads
TILE_TOKENS = 2**14  # tokens of a tile, for the caches of a CPU
GPU_TILE_TOKENS = 2**18  # so that kernels take longer than it takes to start them
GPU_TILE_SHARE = 8  # a tile takes at most this fraction of the memory of a GPU
TILE_TENSORS = 14  # tensors of that size that a tile needs at most, including the heads
PATCH_TILE = 64, 64  # tokens; the first convolutions have few channels but many pixels
GPU_PATCH_TILE = 128, 128
MAX_COLUMNS = 256  # tokens; wider images are also cut into columns
PASSES = 'passes'  # the stage of a workspace


class Image(Protocol):
    """A normalized image (channels, H, W) that is read by windows, such as an array.

    It may have ``max_rows`` and ``valid`` of an :class:`.ImageSource`, and a method ``cells(side)``
    that returns the :class:`.Cells` of an image in which pixels have no data, or None. A GPU uses
    ``unnormalized`` and ``normalize`` of a :class:`.NormalizedImage` if it has them.
    """

    shape: tuple[int, int, int]

    def __getitem__(self, window: tuple[slice, slice, slice]) -> Tensor: ...


class Unread(NamedTuple):
    """An image that is never read, to learn what its passes need."""

    shape: tuple[int, int, int]


def tile_scale(memory: int | None, of_tile: int) -> int:
    """Return how many times as many tokens as for a CPU a tile has, a power of 2.

    It does not depend on what is free, so that an unfinished run continues with the same tiles.

    Args:
        memory: The bytes that a GPU has, or None for a CPU.
        of_tile: The most bytes that computing a tile of a CPU takes.
    """
    if memory is None:
        return 1
    fitting = max(1, memory // GPU_TILE_SHARE // of_tile)
    return min(GPU_TILE_TOKENS // TILE_TOKENS, 2 ** (fitting.bit_length() - 1))


class Passes:
    """The passes of a backbone over an image: one for the patch embedding and one for each layer.

    If ``torch.distributed`` is initialized, each process computes a block of rows of the image.

    Patches without data have the value 0 in each layer. They do not enter the sums of the
    attention, and the local interaction reads zeros there, as beyond the border of the image.

    Args:
        backbone: The backbone, in evaluation mode.
        image: The image, which only the first pass reads.
        rows: Height of the tiles in tokens; the tiles are then as wide as the image. Default:
            tiles of about ``TILE_TOKENS`` tokens, or of more on a GPU; see :func:`tile_scale`.
        statistics_window: Side, in pixels, of the window around a tile over which the attention
            computes the moments of the tokens. Default: the whole image.
        group: The processes that share the image: all of them, which is the default, or this
            process alone (:func:`~xcit_mm.base.processes.own_group`).

    Attributes:
        size: (H, W) of the image in tokens.
        cells: The patches of the image, or None if all of them have data.
        shards: The rows of tokens of each process.
        count: The number of passes.
        workspace: The place where the tokens are kept, in memory unless it is replaced.
        scale: How many times as many tokens as for a CPU a tile has.

    Raises:
        ArgumentError: If the backbone or the image cannot be streamed.
    """

    def __init__(
        self,
        backbone: XCiT,
        image: Image,
        rows: int | None = None,
        statistics_window: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._require(backbone)
        backbone.check_size((1, *image.shape))
        self.backbone, self.image, self.workspace = backbone, image, Workspace()
        self.size = tuple(-(-n // backbone.patch_size) for n in image.shape[1:])
        self.shards = Shards(self.size[0], group)
        weight = next(backbone.parameters())
        self.dtype, self.device = weight.dtype, weight.device
        self.statistics_window = None
        if statistics_window is not None:
            self.statistics_window = max(1, statistics_window // backbone.patch_size)
        self.scale = 1
        of_tile = self._bytes_of_tokens(self._tokens_of_tile)
        scale = tile_scale(device_memory(self.device), of_tile)
        self.scale = self.shards.min(scale)  # tiles are the same for all processes
        self.tile = self._tile(rows)
        self.count = backbone.out_indices[-1] + 2
        self.cells = image.cells(backbone.patch_size) if hasattr(image, 'cells') else None
        self._normalizes = self.device.type == 'cuda' and hasattr(image, 'unnormalized')
        self._stores: dict[int, TokenFile] = {}

    @staticmethod
    def _require(backbone: nn.Module) -> None:
        require_streamable(backbone)

    def _tile(self, rows: int | None) -> tuple[int, int]:
        W = self.size[1]
        if rows is not None:
            return rows, W
        if self.statistics_window is not None:
            side = max(1, min(self.statistics_window // 2, math.isqrt(self.scale * TILE_TOKENS)))
            return side, side
        limit = MAX_COLUMNS * math.isqrt(self.scale)
        columns = W if limit >= W else -(-W // -(-W // (limit // 2)))
        return max(1, self._tokens_of_tile // columns), columns

    @property
    def _tokens_of_tile(self) -> int:
        return self.scale * TILE_TOKENS

    def tiles(self) -> list[Window]:
        """Return the tiles of the layers, in the rows of this process."""
        return self._own_tiles(self.tile)

    def _own_tiles(self, tile: tuple[int, int]) -> list[Window]:
        return list(tiles(Window(self.shards.rows, slice(0, self.size[1])), tile))

    @property
    def bytes_needed(self) -> int:
        """Bytes of the stores of this process: the input and output of a pass, and kept maps."""
        tokens = length(self.shards.rows) * self.size[1]
        return (len(self.backbone.levels) + 1) * tokens * self._channels * self.dtype.itemsize

    @property
    def bytes_of_tile(self) -> int:
        """The most bytes that computing a tile takes."""
        tokens = min(math.prod(self.size), max(self._tokens_of_tile, math.prod(self.tile)))
        return self._bytes_of_tokens(tokens)

    def _bytes_of_tokens(self, tokens: int) -> int:
        """The most bytes that computing a number of tokens takes."""
        return TILE_TENSORS * tokens * self._channels * max(4, self.dtype.itemsize)

    @property
    def _channels(self) -> int:
        return self.backbone.blocks[0].norm1.normalized_shape[0]

    @torch.inference_mode()
    def run(self, progress: Progress = silent) -> None:
        """Run the passes that are not finished."""
        self._run(progress)

    def _run(self, progress: Progress) -> None:
        done = self.shards.min(self.workspace.finished[PASSES])
        if done < self.count:  # other processes may have finished fewer passes than this one
            self.workspace.rewind(PASSES, done)
        progress.expect(self.count - done)
        sums = self._sums_of_store(done - 1) if 0 < done < self.count else None
        for number in range(done, self.count):
            store = self.store(number)
            if number:
                source = self.store(number - 1)
                borrowed = self.shards.borrow(source, self._rows_read)
                sums = self._layer(number, source, borrowed, store, sums, progress)
            else:
                sums = self._embed(store, progress)
            sums = self._summed(number, sums)
            self.workspace.finish(PASSES, number + 1, store)
            if not number:
                trim_memory()  # layers cannot reuse it: their tensors have other sizes
            self.shards.barrier()  # no process repeats this pass, which needs the store before it
            if number and number - 1 not in self._kept:
                self._free(number - 1)
        release_memory()

    @property
    def _rows_read(self) -> slice:
        """The rows that the tiles of a layer read."""
        margin = max(HALO, self.statistics_window or 0)
        return grown(self.shards.rows, margin, self.size[0])

    @property
    def _kept(self) -> set[int]:
        """The passes whose stores are needed later, for the pyramid."""
        return {index + 1 for index, *_ in self.backbone.levels}

    def _free(self, number: int) -> None:
        self._stores.pop(number).free()

    def store(self, number: int) -> TokenFile:
        """Return the store that a pass writes."""
        if number not in self._stores:
            is_finished = number < self.workspace.finished[PASSES]
            self._stores[number] = self._open(f'layer_{number}', self.dtype, is_finished)
        return self._stores[number]

    def _open(self, name: str, dtype: torch.dtype, is_finished: bool = False) -> TokenFile:
        shape = self.size[1], self._channels
        rows = self.shards.rows
        return self.workspace.open(name, rows, shape, dtype, is_finished, are_tokens=True)

    def _summed(self, number: int, sums: Tensor) -> Tensor:
        """Add up the sums of all processes after a pass.

        Raises:
            UserError: If a token is not finite, on all processes.
        """
        sums = self.shards.sum(sums)
        if not sums.isfinite().all():
            what = f'layer {number}' if number else 'the patch embedding'
            remedy = '' if self.dtype == torch.float32 else '; in float32, values can be larger'
            raise UserError(
                f'{what} of the backbone computes values that are not finite in '
                f'{dtype_name(self.dtype)}: check the image and the checkpoint{remedy}'
            )
        return sums

    def _sums_of_store(self, number: int) -> Tensor:
        """Compute the sums of a finished pass again, bit for bit, from the tokens that it wrote."""
        store, sums = self.store(number), self._no_sums()
        for window in self._own_tiles(self.tile if number else self._patch_tile):
            sums += self._sums_of(number, window, store.read(window).to(self.device))
        return self._summed(number, sums)

    @property
    def _patch_tile(self) -> tuple[int, int]:
        rows, columns = map(min, self.tile, PATCH_TILE if self.scale == 1 else GPU_PATCH_TILE)
        max_rows = getattr(self.image, 'max_rows', None)
        if max_rows is not None:  # which include the rows above and below the tile
            reach = sum(self.backbone.patch_embed.reach)
            rows = max(1, min(rows, max_rows // self.backbone.patch_size - reach))
        return rows, columns

    def _embed(self, store: TokenFile, progress: Progress) -> Tensor:
        """Embed the patches, and read the pixels of the next tile meanwhile."""
        sums, own_tiles = self._no_sums(), self._own_tiles(self._patch_tile)
        computed_parts = [self._with_data(window) for window in own_tiles]
        to_read = (part for part in computed_parts if part is not None)
        with closing(prefetch(map(self._read_pixels, to_read))) as read:
            pairs = list(zip(own_tiles, computed_parts, strict=True))
            for window, computed in progress(pairs, 'patches'):
                tokens = computed and self._embedded(computed, next(read))
                self._write(store, window, computed, tokens)
                sums += self._sums_of(0, computed, tokens)
        return sums

    def _with_data(self, window: Window) -> Window | None:
        """Return the smallest part of a tile that has all of its tokens with data, if any."""
        return window if self.cells is None else self.cells.part_with_data(window)

    def pixels_with_data(self, window: Window) -> np.ndarray | None:
        """Return which pixels of a window have data, (h, w) bool; None if all of them have."""
        if self.cells is None:
            return None
        P = self.backbone.patch_size
        cells = Window(*(slice(s.start // P, -(-s.stop // P)) for s in window))
        if self.cells.are_complete(cells):
            return None
        if self.cells.part_with_data(cells) is None:
            return np.zeros(window.size, bool)
        return self.image.valid(window)

    def _write(
        self, store: TokenFile, window: Window, computed: Window | None, tokens: Tensor | None
    ) -> None:
        """Write the tokens that were computed for a tile, and zeros around them."""
        for rest in [window] if computed is None else around(computed, window):
            shape = *rest.size, self._channels
            store.write(rest, torch.zeros(shape, dtype=self.dtype, device=store.device))
        if computed is not None:
            store.write(computed, tokens)

    def _masked(self, window: Window, tokens: Tensor) -> Tensor:
        """Return tokens (h, w, C) with zeros where there are no data."""
        valid = self._valid(window)
        return tokens if valid is None else tokens * valid[..., None]

    def _valid(self, window: Window) -> Tensor | None:
        valid = None if self.cells is None else self.cells.valid(window)
        return None if valid is None else sent(torch.from_numpy(valid), self.device)

    def _window_of_pixels(self, window: Window) -> Window:
        """Return the pixels that a window of patches reads.

        A token reads 15 pixels (7 for patch size 8) above and left of its patch. For patch size 4,
        it reads 5, and 2 below and right of it.
        """
        P = self.backbone.patch_size
        spans = zip(self._patches_read(window), self.image.shape[1:], strict=True)
        return Window(*(slice(span.start * P, min(n, span.stop * P)) for span, n in spans))

    def _patches_read(self, window: Window) -> Window:
        """Return the patches that hold all pixels which a window of patches reads."""
        before, after = self.backbone.patch_embed.reach
        spans = zip(window, self.size, strict=True)
        return Window(*(slice(max(0, s.start - before), min(s.stop + after, n)) for s, n in spans))

    def _read_pixels(self, window: Window) -> list[Tensor]:
        """Read the pixels (channels, h, w) of a window of patches, or what they are made of."""
        pixels = self._window_of_pixels(window)
        if self._normalizes:
            return [pinned(part, self.device) for part in self.image.unnormalized(pixels)]
        values = self.image[(slice(None), *pixels)]
        if not isinstance(values, Tensor):
            values = torch.from_numpy(np.array(values))  # memory maps may be read-only
        return [pinned(values, self.device)]

    def _embedded(self, window: Window, parts: list[Tensor]) -> Tensor:
        """Embed a window of patches from what was read, and return its tokens (h, w, C)."""
        parts = [sent(part, self.device) for part in parts]
        if self._normalizes:
            pixels = self.image.normalize(self._window_of_pixels(window), *parts)
        else:
            (pixels,) = parts
        x = self.backbone.patch_embed(pixels[None].to(self.dtype))
        x = x[(..., *window.within(self._patches_read(window)))]
        x = x + self.backbone.pos_embeder(*self.size, window)
        return self._masked(window, x[0].permute(1, 2, 0).contiguous())

    def _layer(
        self,
        number: int,
        source: TokenFile,
        borrowed: Borrowed,
        store: TokenFile,
        sums: Tensor,
        progress: Progress,
    ) -> Tensor:
        block, attention = self.backbone.blocks[number - 1], None
        if self.statistics_window is None:
            attention = self._attention(number, sums, partial(self._precise_sums, block, source))
        sums = self._no_sums()
        own_tiles = self._own_tiles(self.tile)
        parts = [self._with_data(window) for window in own_tiles]
        late_writes = LateWrites(partial(self._write, store), self.device, store.device)
        with closing(self._with_halos(source, parts, borrowed)) as read, late_writes as write:
            pairs = list(zip(own_tiles, parts, strict=True))
            for window, computed in progress(pairs, f'layer {number} of {self.count - 1}'):
                tokens = None
                if computed is not None:
                    if self.statistics_window is not None:
                        area = self._window_around(window)
                        near = self.tokens_with_data(area, source.read(area, borrowed))
                        precise = partial(_precise_sums_of, block, near)
                        near_sums = sums_of_products(block.norm1(near))
                        attention = self._attention(number, near_sums, precise)
                    x, outer = next(read)
                    x_on_device = sent(x, self.device)
                    tokens = self._layer_on_tile(number, x_on_device, attention, outer, computed)
                write(window, computed, tokens)
                sums += self._sums_of(number, computed, tokens)
        return sums

    def _with_halos(
        self, source: TokenFile, windows: Iterable[Window | None], borrowed: Borrowed
    ) -> Iterator[tuple[Tensor, Window]]:
        """Yield the tokens of windows with their halos, and the windows of them.

        Tokens that a GPU gets from the CPU are read ahead of it.
        """
        parts = (self._with_halo(source, window, borrowed) for window in windows if window)
        return prefetch(parts) if source.device != self.device else parts

    def _with_halo(
        self, source: TokenFile, window: Window, borrowed: Borrowed
    ) -> tuple[Tensor, Window]:
        """Return the tokens of a window with its halo, and the window of them."""
        outer = window.grown(HALO, self.size)
        return pinned(source.read(outer, borrowed), self.device), outer

    def _attention(
        self, number: int, sums: Tensor, precise: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of a layer, the affine map M, m of its tokens."""
        _, *matrices = self._matrices(number, sums, precise)
        return tuple(matrix.to(self.dtype) for matrix in matrices)

    def _matrices(
        self, number: int, sums: Tensor, precise: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums that the attention of a layer depends on, and its affine map."""
        weights = self.backbone.blocks[number - 1].attn.weights()
        sums = sums.to(self.device)
        G, s, N = from_sums(sums)
        qk = queries_and_keys(G, s, *weights[:2])
        if qk.are_in_range(G, N, weights[0], largest_amplification(self.dtype)):
            return sums, *map_of(qk, N, *weights)
        sums = precise().to(self.device)  # products in the dtype of the tokens lose many digits
        return sums, *affine_map(*from_sums(sums), *weights)

    def _layer_on_tile(
        self,
        number: int,
        x: Tensor,
        attention: tuple[Tensor, Tensor],
        outer: Window,
        window: Window,
    ) -> Tensor:
        """Compute a layer for the tokens (h, w, C) of an ``outer`` window, exact in ``window``."""
        block, (h, w, C) = self.backbone.blocks[number - 1], x.shape
        M, m = attention
        attend, valid, inner = (
            partial(map_tokens, M=M, m=m),
            self._valid(outer),
            window.within(outer),
        )
        x = x.view(1, h * w, C)
        if valid is None:
            y = add_attention_and_interaction(block, x, h, w, attend)
            return add_mlp_(block, y.view(h, w, C)[tuple(inner)].contiguous())
        attend = partial(apply_where, attend, valid.flatten())
        y = add_attention_and_interaction(block, x, h, w, attend, RowsWithGaps(valid))
        y, has_data = y.view(h, w, C)[tuple(inner)], valid[tuple(inner)]
        tokens = torch.zeros_like(y)
        tokens[has_data] = add_mlp_(block, y[has_data])
        return tokens

    def _precise_sums(self, block: XCABlock, source: TokenFile) -> Tensor:
        """Compute the sums over all tokens again, with products in float64."""
        sums = self._no_sums()
        for window in self._own_tiles(self.tile):
            tokens = self.tokens_with_data(window, source.read(window))
            if len(tokens):
                sums += _precise_sums_of(block, tokens)
        return self.shards.sum(sums)

    def tokens_with_data(self, window: Window, tokens: Tensor) -> Tensor:
        """Return the tokens (h, w, C) or (n, C) of a window that have data."""
        valid = self._valid(window)
        tokens = tokens.to(self.device)
        return tokens if valid is None else tokens[valid]

    def _window_around(self, window: Window) -> Window:
        """Return the window of the statistics of a tile, shifted to lie within the image."""
        spans = []
        for span, n, tile in zip(window, self.size, self.tile, strict=True):
            side = min(n, self.statistics_window)
            # The window surrounds the whole tile, of which this process may hold only a part.
            start = span.start // tile * tile + (tile - side) // 2
            start = max(0, min(start, n - side))
            spans.append(slice(start, start + side))
        return Window(*spans)

    def _no_sums(self) -> Tensor:
        C = self._channels
        dtype = widest_dtype(self.device)
        return torch.zeros(1, C + 1, C + 1, dtype=dtype, device=self.device)

    def _sums_of(self, number: int, window: Window | None, tokens: Tensor | None) -> Tensor:
        """Return the share of a tile that a pass writes in the sums of the layer after it.

        They are zero if that layer needs none or the tile has no data (None), and not finite if a
        token is not.
        """
        if window is None:
            return self._no_sums()
        if self.statistics_window is not None or number == self.count - 1:
            return 0 * tokens.sum(dtype=torch.promote_types(self.dtype, torch.float32))
        tokens = self.tokens_with_data(window, tokens)
        if not len(tokens):
            return self._no_sums()
        z = self.backbone.blocks[number].norm1(tokens)
        with without_autocast(z):
            return sums_of_products(z.to(computed_dtype(tokens)))

    @property
    def covered(self) -> tuple[int, int]:
        """The pixels (H, W) that the maps cover."""
        H, W = (n * self.backbone.patch_size for n in self.size)
        return covered_size((H, W)) if self.backbone.pad_maps else (H, W)

    @property
    def map_shapes(self) -> list[tuple[int, int, int]]:
        """The shapes (C, H_i, W_i) of the maps."""
        H, W = self.covered
        strides = [stride for _, stride, _, _ in self.backbone.levels]
        return [(self._channels, H // stride, W // stride) for stride in strides]


def apply_where(function: Callable[[Tensor], Tensor], are_computed: Tensor, x: Tensor) -> Tensor:
    """Return a function of some of the tokens (1, N, C), and 0 for the others."""
    y = torch.zeros_like(x)
    y[:, are_computed] = function(x[:, are_computed])
    return y


def _precise_sums_of(block: XCABlock, tokens: Tensor) -> Tensor:
    return sums_of_products(to_widest(block.norm1(tokens)))
