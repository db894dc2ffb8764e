"""Gradients of an XCiT for an image of any size, in passes over tiles of its tokens.

The forward passes are the passes of :mod:`.passes`, and keep the input of each layer, or of every
n-th layer. The backward passes go from the last layer to the first. Each pass recomputes the tiles
of a layer, with the affine map of the attention as a leaf, and adds up the gradients of the tiles,
their halos, the map and the parameters. After the pass, the affine map is differentiated once,
which gives the gradients of the parameters of the attention and of the moments of the tokens. With
Z the normalized tokens (N, C), s their mean, and dG and ds the gradients of the covariance and the
mean, the moments contribute to each token

    dZ = Z S + v,  S = (dG + dG^T) / N,  v = ds / N - s S,

which depends on no other token. The next pass adds it, because it recomputes these tokens anyway.
BatchNorm is in evaluation mode, in which it also computes each token separately.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ...base.device import sent, widest_dtype
from ...base.files import require_writable
from ...base.geometry import Window
from ...base.progress import Progress, silent
from ...base.threads import prefetch
from ...network.fast.tracing import computed_dtype, without_autocast
from ...network.ops.gram import affine_map, map_tokens
from ...network.ops.moments import to_widest
from ...network.ops.sums import from_sums
from ...network.rows import ALONE, RowsWithGaps
from .passes import TILE_TENSORS, Passes
from .shards import Shards
from .streamable import require_trainable
from .tape import Tape, TokenGradients
from .workspace import Demand, free_disk, memory_limit, open_workspace

Result = TypeVar('Result')

TRAINED_TILE_TENSORS = 40  # the most tensors of its size that the graph of a tile needs


class MomentGradients(NamedTuple):
    """The gradient that the moments of the normed tokens contribute to each token."""

    norm: nn.Module
    S: Tensor  # (1, C, C)
    v: Tensor  # (1, 1, C)

    def add(
        self,
        tokens: Tensor,
        valid: Tensor | None,
        outputs: list[Tensor],
        gradients: list[Tensor],
    ) -> None:
        """Add the normed tokens (h, w, C) to the outputs of a tile, and their gradients.

        ``valid`` (h, w) tells which tokens have data; None if all of them have.
        """
        z = self.norm(tokens)
        x = z.detach().to(computed_dtype(tokens))
        with without_autocast(x):
            back = map_tokens(x.view(1, -1, x.shape[-1]), self.S, self.v)
        back = back.to(z.dtype).view(z.shape)
        outputs.append(z)
        gradients.append(back if valid is None else back * valid[..., None])


class TrainedPasses(Passes):
    """Passes over an image that keep what the backward passes need; see :class:`.Passes`.

    Call :meth:`run`, then :meth:`backward`. The workspace must not continue an earlier run.

    Args:
        backbone: The backbone, whose BatchNorm is in evaluation mode.
        image: The image, which the first and the last pass read.
        rows: See :class:`.Passes`.
        group: See :class:`.Passes`.
        every: The input of every n-th layer is kept, and the others are recomputed.
    """

    def __init__(
        self,
        backbone: nn.Module,
        image: Any,
        rows: int | None = None,
        group: Any = None,
        every: int = 1,
    ) -> None:
        super().__init__(backbone, image, rows, group=group)
        self.every = every
        self._sums: dict[int, Tensor] = {}  # that the attention of each layer depends on

    _require = staticmethod(require_trainable)

    @property
    def _kept(self) -> set[int]:
        return super()._kept | {*range(0, self.count, self.every)}

    @property
    def bytes_needed(self) -> int:
        of_tokens = super().bytes_needed // (len(self.backbone.levels) + 1)
        of_gradients = of_tokens * self._gradient_dtype.itemsize // self.dtype.itemsize
        kept = sorted({*self._kept, self.count - 1})
        again = max(b - a for a, b in pairwise(kept)) - 1
        stores = len(kept) + again
        return stores * of_tokens + (len(self.backbone.levels) + 1) * of_gradients

    @property
    def _tokens_of_tile(self) -> int:
        return super()._tokens_of_tile // 2  # because the graph takes several times the memory

    def _bytes_of_tokens(self, tokens: int) -> int:
        return super()._bytes_of_tokens(tokens) * TRAINED_TILE_TENSORS // TILE_TENSORS

    @property
    def demand(self) -> Demand:
        return Demand(self.bytes_needed, self.bytes_of_tile, self.bytes_needed, self.device)

    @property
    def _gradient_dtype(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    @torch.no_grad()
    def run(self, progress: Progress = silent) -> None:
        """Run the forward passes, with one draw of stochastic depth for the image."""
        token = torch.empty(1, 1, 1, dtype=self.dtype)
        draws = [block.drop_path.draw(token) for block in self.backbone.blocks]
        if self.shards.count > 1:
            draws = self.shards.broadcast(draws)
        self._draws = [[d if d is None else d.to(self.device) for d in ds] for ds in draws]
        self._run(progress)

    def gradients(self) -> list[TokenGradients]:
        """Return gradients of the tokens of each level, which are still 0."""
        return [self._zeros(index + 1) for index, *_ in self.backbone.levels]

    def _zeros(self, number: int) -> TokenGradients:
        file = self._open(f'gradient_{number}', self._gradient_dtype)
        return TokenGradients(file.zero_(), self.shards)

    def _matrices(self, number: int, *sums: Any) -> tuple[Tensor, Tensor, Tensor]:
        self._sums[number], *matrices = super()._matrices(number, *sums)
        return self._sums[number], *matrices

    def _layer_on_tile(
        self,
        number: int,
        x: Tensor,
        attention: tuple[Tensor, Tensor],
        outer: Window,
        window: Window,
    ) -> Tensor:
        block, (h, w, C) = self.backbone.blocks[number - 1], x.shape
        (M, m), (draw1, draw3, draw2) = attention, self._draws[number - 1]
        valid, drop_path = self._valid(outer), block.drop_path
        rows = ALONE if valid is None else RowsWithGaps(valid)
        x = x.reshape(1, h * w, C)
        z = block.norm1(x)
        z = z.to(computed_dtype(z))
        with without_autocast(z):
            z = map_tokens(z, M, m)
        x = x + drop_path(block.gamma1 * z, draw1)
        y = block.local_mp(block.norm3(x), h, w, *rows.passed)
        x = x + drop_path(block.gamma3 * y, draw3)
        x = x.view(h, w, C)[tuple(window.within(outer))]
        y = x + drop_path(block.gamma2 * block.mlp(block.norm2(x)), draw2)
        return self._masked(window, y)

    @torch.no_grad()
    def backward(self, of_levels: Sequence[TokenGradients], progress: Progress = silent) -> None:
        """Add the gradients of the parameters of the layers to their ``grad``.

        Args:
            of_levels: The gradients of the tokens of each level, which are consumed. Layers after
                the last level with a gradient get none.
            progress: The display of the progress.
        """
        indices = [index + 1 for index, *_ in self.backbone.levels]
        gradients = dict(zip(indices, of_levels, strict=True))
        last = max((n for n, g in gradients.items() if self.shards.max(g.is_used)), default=0)
        first = next((i for i, layer in enumerate(self.trunk) if _trained(layer)), self.count)
        if last < max(1, first):
            return
        progress.expect(last + 1 - first + (first > 0))
        of_moments = None
        for number in range(last, max(1, first) - 1, -1):
            self._compute_again(number - 1)
            if number - 1 >= first and number - 1 not in gradients:
                gradients[number - 1] = self._zeros(number - 1)
            output, of_input = gradients.pop(number), gradients.get(number - 1)
            of_moments = self._layer_backward(number, output, of_input, of_moments, progress)
            output.file.free()
            self._free(number)
        if first == 0:
            self._embed_backward(gradients.pop(0), of_moments, progress)
        else:
            self._norm_backward(first - 1, of_moments, progress)

    @property
    def trunk(self) -> list[nn.Module]:
        """The layers of each pass."""
        backbone = self.backbone
        embedding = nn.ModuleList([backbone.patch_embed, backbone.pos_embeder])
        return [embedding, *backbone.blocks[: self.count - 1]]

    def _compute_again(self, number: int) -> None:
        """Compute the tokens of a pass again, from the last tokens before it that were kept."""
        start = max(n for n in self._stores if n <= number)
        for n in range(start + 1, number + 1):
            matrices = affine_map(
                *from_sums(self._sums[n]), *self.backbone.blocks[n - 1].attn.weights()
            )
            attention = tuple(matrix.to(self.dtype) for matrix in matrices)
            source = self._stores[n - 1]
            self._stores[n] = store = self._open(f'layer_{n}', self.dtype)
            borrowed = self.shards.borrow(source, self._rows_read)
            for window in self._own_tiles(self.tile):
                computed, tokens = self._with_data(window), None
                if computed is not None:
                    x, outer = self._with_halo(source, computed, borrowed)
                    x = sent(x, self.device)
                    tokens = self._layer_on_tile(n, x, attention, outer, computed)
                self._write(store, window, computed, tokens)

    def _layer_backward(
        self,
        number: int,
        output: TokenGradients,
        of_input: TokenGradients | None,
        of_moments: MomentGradients | None,
        progress: Progress,
    ) -> MomentGradients:
        """Compute the gradients of a layer, and return what its moments contribute to its input.

        ``of_moments`` is what the moments of the next layer contribute to the output.
        """
        block = self.backbone.blocks[number - 1]
        with torch.enable_grad(), without_autocast(self._sums[number]):
            G, s, N = from_sums(self._sums[number])
            G, s = G.requires_grad_(), s.requires_grad_()
            matrices = affine_map(G, s, N, *block.attn.weights())
        attention = [m.detach().to(self.dtype).requires_grad_() for m in matrices]
        attended = _trained(block.attn)
        own = [p for p in _trained(block) if all(p is not q for q in attended)]
        own += _trained(of_moments.norm) if of_moments else []
        total = _Sums([*attention, *own])
        self._tiles_backward(number, total, output, of_input, of_moments, progress)
        dM, dm, *of_own = total.over(self.shards)
        accumulate(own, of_own)
        dG, ds, *of_attended = torch.autograd.grad(
            matrices, [G, s, *attended], [dM, dm], allow_unused=True
        )
        accumulate(attended, of_attended)
        S = (dG + dG.mT) / N
        return MomentGradients(block.norm1, S, (ds / N - s.detach() @ S[0])[:, None])

    def _tiles_backward(
        self,
        number: int,
        total: '_Sums',
        output: TokenGradients,
        of_input: TokenGradients | None,
        of_moments: MomentGradients | None,
        progress: Progress,
    ) -> None:
        """Compute the gradients of the tiles of a layer; the first two leaves are M and m."""
        source = self.store(number - 1)
        borrowed = self.shards.borrow(source, self._rows_read)
        if of_input is not None:
            of_input.expect(self._rows_read)
        for tile in progress(self._own_tiles(self.tile), f'gradients of layer {number}'):
            window = self._with_data(tile)
            if window is None:
                continue
            x, outer = self._with_halo(source, window, borrowed)
            x = sent(x, self.device).requires_grad_(of_input is not None)
            with torch.enable_grad():
                y = self._layer_on_tile(number, x, total.leaves[:2], outer, window)
                outputs, gradients = [y], [sent(output.file.read(window), y.device).to(y)]
                if of_moments is not None:
                    of_moments.add(y, self._valid(window), outputs, gradients)
            leaves = [*total.leaves, *([x] if of_input is not None else [])]
            of_leaves = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
            total.add(of_leaves[: len(total.leaves)])
            if of_input is not None:
                of_input.add(outer, of_leaves[-1])
        if of_input is not None:
            of_input.settle()

    def _embed_backward(
        self, output: TokenGradients, of_moments: MomentGradients, progress: Progress
    ) -> None:
        """Compute the gradients of the embedding of the patches."""
        layers = self.backbone.patch_embed, self.backbone.pos_embeder, of_moments.norm
        total = _Sums([p for layer in layers for p in _trained(layer)])
        windows = [*filter(None, map(self._with_data, self._own_tiles(self._patch_tile)))]
        with closing(prefetch(map(self._read_pixels, windows))) as read:
            for window in progress(windows, 'gradients of patches'):
                with torch.enable_grad():
                    x = self._embedded(window, next(read))
                    outputs, gradients = [x], [sent(output.file.read(window), x.device).to(x)]
                    of_moments.add(x, self._valid(window), outputs, gradients)
                total.add(torch.autograd.grad(outputs, total.leaves, gradients, allow_unused=True))
        accumulate(total.leaves, total.over(self.shards))

    def _norm_backward(self, number: int, of_moments: MomentGradients, progress: Progress) -> None:
        """Compute the gradients of the norm of the first layer that is trained."""
        total = _Sums(_trained(of_moments.norm))
        tiles = self._own_tiles(self.tile) if total.leaves else []
        for window in progress(tiles, 'gradients of the first norm'):
            outputs, gradients = [], []
            with torch.enable_grad():
                tokens = sent(self.store(number).read(window), self.device)
                of_moments.add(tokens, self._valid(window), outputs, gradients)
            total.add(torch.autograd.grad(outputs, total.leaves, gradients, allow_unused=True))
        accumulate(total.leaves, total.over(self.shards))


def pass_back(
    passes: TrainedPasses,
    parameters: Sequence[nn.Parameter],
    compute: Callable[[Tape, list[TokenGradients]], Result],
    memory: int | None = None,
    store: str | Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Run passes, compute gradients from their tokens, and pass them back through all layers.

    ``compute`` adds gradients to the tokens of each level, and to the ``grad`` of ``parameters``,
    which are those outside the layers of the passes. For ``memory`` and ``store``, see
    :func:`.stream_backward`.
    """
    with workspace_of(passes, memory, store):
        passes.run(progress)
        of_levels = passes.gradients()
        with added_up(parameters, passes.shards):
            result = compute(Tape(), of_levels)
        for of_level in of_levels:
            of_level.settle()
        passes.backward(of_levels, progress)
    return result


@contextmanager
def workspace_of(
    passes: TrainedPasses, memory: int | None, store: str | Path | None
) -> Iterator[None]:
    """Open the workspace of passes within a ``with`` block; see :func:`.stream_backward`."""
    shards = passes.shards
    folder = Path(store, f'training_{shards.part}') if store else None

    def fits(limit: int) -> bool:
        return shards.min(passes.demand.of_memory <= limit)

    # On a GPU, computing a layer again takes about as long as copying its tokens there and back.
    every, is_on_gpu = passes.every, shards.min(passes.demand.is_on_gpu)
    if not (is_on_gpu and _recomputes_until(passes, lambda: shards.min(passes.demand.fits_device))):
        passes.every = every
        if not fits(memory_limit(memory)):
            if folder is not None:
                require_writable(folder)
            limit = memory_limit(memory) if folder is None else free_disk(folder)
            _recomputes_until(passes, lambda: fits(limit))
    passes.workspace = open_workspace(passes.demand, shards, memory, folder)
    try:
        yield
    finally:
        passes.workspace.remove()


def _recomputes_until(passes: TrainedPasses, fits: Callable[[], bool]) -> bool:
    """Keep fewer inputs of layers until they fit, and return whether they do."""
    while not fits():
        if passes.every == passes.count:
            return False
        passes.every += 1
    return True


@contextmanager
def new_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor | None]]:
    """Collect the gradients of parameters in a ``with`` block, and restore the earlier ones.

    After the block, the list holds the gradients; after an error, it is empty.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    gradients: list[Tensor | None] = []
    try:
        yield gradients
        gradients += [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


@contextmanager
def added_up(parameters: Sequence[nn.Parameter], shards: Shards) -> Iterator[None]:
    """Add up the gradients from a ``with`` block over all processes.

    A parameter that no process uses remains without a gradient, so that an optimizer skips it.
    """
    with new_gradients(parameters) as gradients:
        yield
    are_used = shards.sum(torch.tensor([gradient is not None for gradient in gradients]).long())
    pairs = [*zip(parameters, gradients, strict=True)]
    used = [pair for pair, is_used in zip(pairs, are_used.tolist(), strict=True) if is_used]
    own = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in used]
    accumulate([parameter for parameter, _ in used], summed(own, shards))


class _Sums:
    """The gradients of leaves, added up in float64 over tiles and processes."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.leaves = leaves
        self._values = [torch.zeros_like(leaf, dtype=widest_dtype(leaf.device)) for leaf in leaves]

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        for value, gradient in zip(self._values, gradients, strict=True):
            if gradient is not None:
                value += gradient

    def over(self, shards: Shards) -> list[Tensor]:
        """Return the sums over all processes."""
        return summed(self._values, shards)


def summed(tensors: Sequence[Tensor], shards: Shards) -> list[Tensor]:
    """Return the sums of tensors over all processes, exchanged in a single transfer."""
    if shards.count == 1 or not tensors:
        return [*tensors]
    flat = shards.sum(torch.cat([to_widest(t).flatten() for t in tensors]))
    parts = flat.split([t.numel() for t in tensors])
    return [part.view_as(t).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def accumulate(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients to the ``grad`` of parameters, as ``backward()`` does."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        gradient = gradient.to(parameter.dtype)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient
