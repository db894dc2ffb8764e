"""Nearest images for queries, by vectors or by ASMK."""

from collections.abc import Sequence

import numpy as np

from .codebook import Codebook

# From Tolias et al., "Learning and aggregating deep local descriptors for instance-level
# recognition", arXiv 2007.13172.
ALPHA, THRESHOLD, QUERY_WORDS = 3.0, 0.0, 5


def nearest_vectors(
    vectors: np.ndarray, queries: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and cosines (q, top) of the vectors that are nearest to each query."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    scores, ranks = index.search(np.ascontiguousarray(queries), min(top, len(vectors)))
    return ranks, scores


class AsmkIndex:
    """Image index of the package asmk, with binary descriptors and an inverted file.

    Args:
        codebook: The centers.
        images: The local descriptors (n, d) of each image.
    """

    def __init__(self, codebook: Codebook, images: Sequence[np.ndarray]) -> None:
        from asmk import asmk_method, index
        from asmk.codebook import Codebook as AsmkCodebook

        factory = index.initialize_index(gpu_id=None)
        words = AsmkCodebook(factory, size=codebook.size)
        words.index(codebook.centers)
        params = dict(
            index=dict(gpu_id=None),
            build_ivf=dict(
                kernel=dict(binary=True),
                ivf=dict(use_idf=False),
                quantize=dict(multiple_assignment=1),
                aggregate={},
            ),
            query_ivf=dict(
                quantize=dict(multiple_assignment=min(QUERY_WORDS, codebook.size)),
                aggregate={},
                search=dict(topk=len(images)),
                similarity=dict(similarity_threshold=THRESHOLD, alpha=ALPHA),
            ),
        )
        method = asmk_method.ASMKMethod(params, {}, codebook=words)
        self._method = method.build_ivf(*_columns(images))

    def search(self, queries: Sequence[np.ndarray], top: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices and scores (q, top) of the images that are nearest to each query."""
        _, _, ranks, scores = self._method.query_ivf(*_columns(queries))
        return ranks[:, :top], scores[:, :top]


def _columns(images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the local descriptors of all images, and the image index of each descriptor."""
    counts = [len(image) for image in images]
    return np.concatenate(images), np.repeat(np.arange(len(images)), counts)
