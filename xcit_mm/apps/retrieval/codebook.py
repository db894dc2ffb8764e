"""Codebooks for local descriptors: a projection and k-means centers."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...base.errors import UserError, reason
from ...base.files import write_whole

LOCAL_DIM = 128  # width of local descriptors; wider tokens are projected (section D.3.2)
SEED = 0
ITERATIONS = 20
TRAIN_TOKENS = 2**18  # most tokens that a codebook is learned from
# A shorter sum of residuals is only rounding error, such as for a center with a single token.
ROUNDING = 1e-4
FIELDS = 'mean', 'projection', 'centers'


class Codebook:
    """A projection from tokens to local descriptors, and k centers that quantize them.

    Args:
        mean: (C), subtracted from the tokens.
        projection: (C, d), onto the main directions of the tokens.
        centers: (k, d).
    """

    def __init__(self, mean: np.ndarray, projection: np.ndarray, centers: np.ndarray) -> None:
        import faiss

        self.mean, self.projection, self.centers = mean, projection, centers
        self._index = faiss.IndexFlatL2(centers.shape[1])
        self._index.add(np.ascontiguousarray(centers, np.float32))

    @classmethod
    def learn(cls, tokens: np.ndarray, k: int) -> 'Codebook':
        """Learn a codebook from tokens (n, C). Equal tokens give equal codebooks.

        Raises:
            UserError: If there are fewer than k tokens.
        """
        import faiss

        if len(tokens) < k:
            raise UserError(
                f'{k} centers need at least as many tokens, but the images have {len(tokens)}: '
                'name more or larger images (--train), or fewer centers (--k)'
            )
        mean = tokens.mean(0, dtype=np.float64)
        centered = tokens - mean
        _, directions = np.linalg.eigh(centered.T @ centered)
        directions = directions[:, ::-1][:, :LOCAL_DIM]
        # The sign of an eigenvector is arbitrary: make its largest entry positive.
        largest = np.abs(directions).argmax(0)
        directions = directions * np.sign(directions[largest, range(directions.shape[1])])
        if tokens.shape[1] <= LOCAL_DIM:
            directions = np.eye(tokens.shape[1])
        local = _normalized(centered @ directions)
        means = faiss.Kmeans(
            local.shape[1],
            k,
            niter=ITERATIONS,
            seed=SEED,
            min_points_per_centroid=1,
            max_points_per_centroid=len(local),
        )
        means.train(local)
        return cls(mean.astype(np.float32), directions.astype(np.float32), means.centroids)

    @property
    def size(self) -> int:
        return len(self.centers)

    def local(self, tokens: np.ndarray) -> np.ndarray:
        """Return the local descriptors (n, d) of tokens (n, C), of length 1."""
        return _normalized((tokens - self.mean) @ self.projection)

    def words(self, local: np.ndarray) -> np.ndarray:
        """Return the index of the nearest center for each local descriptor."""
        return self._index.search(local, 1)[1][:, 0]

    def residuals(self, tokens: np.ndarray) -> np.ndarray:
        """Return the summed differences (k, d) between local descriptors and their centers."""
        local = self.local(tokens)
        words = self.words(local)
        sums = np.zeros(self.centers.shape)
        np.add.at(sums, words, local.astype(np.float64) - self.centers[words])
        return sums

    def require_width(self, width: int, path: str) -> None:
        """Refuse a model whose tokens have a different width."""
        if len(self.mean) != width:
            raise UserError(
                f'the codebook {path} is for tokens of {len(self.mean)} channels, but the model '
                f'has {width}: name another file with --codebook'
            )

    def save(self, path: Path) -> None:
        """Write the codebook to an ``.npz`` file without pickles, whole or not at all."""
        with write_whole(path) as file:
            np.savez(file, **{name: getattr(self, name) for name in FIELDS})

    @classmethod
    def load(cls, path: Path) -> 'Codebook':
        """Read a codebook.

        Raises:
            UserError: If the file is not a codebook.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(*(file[name].astype(np.float32) for name in FIELDS))
        except Exception as error:  # of the system, zipfile, NumPy or faiss
            raise UserError(
                f'{path} is not a codebook ({reason(error)}): name a file that --codebook has '
                'written, or a new one'
            ) from None


def vlad(residuals: np.ndarray) -> np.ndarray:
    """Return the VLAD descriptor (k * d) for summed residuals (k, d).

    The signed square root is applied first. Then the part of each center is normalized to length 1,
    and finally the whole vector.
    """
    lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
    residuals = np.where(lengths > ROUNDING, residuals, 0)
    rooted = np.sign(residuals) * np.sqrt(np.abs(residuals))
    return _normalized(_normalized(rooted).reshape(1, -1))[0]


def sample(tiles: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Return at most ``count`` tokens of an image, drawn with a fixed seed.

    No more than these and a tile are in memory. Tiles of whole rows give the same tokens as the
    image in one part. Evenly spaced tokens of a square image could all be from one column.
    """
    rng = np.random.default_rng(SEED)
    tokens, keys = np.zeros((0, 0), np.float32), np.zeros(0)
    for tile in tiles:
        tokens = np.concatenate((tokens, tile)) if len(tokens) else tile
        keys = np.concatenate((keys, rng.random(len(tile))))
        smallest = np.sort(keys.argsort(kind='stable')[:count])  # in the order of the image
        tokens, keys = tokens[smallest], keys[smallest]
    return tokens


def _normalized(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
