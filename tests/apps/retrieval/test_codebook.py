"""VLAD against a plain double loop and faiss, and ASMK against the package asmk."""

import numpy as np
import pytest

from xcit_mm import UserError

pytest.importorskip('faiss')
pytest.importorskip('asmk')

import faiss
from asmk import functional, hamming

from xcit_mm.apps.retrieval.codebook import Codebook, sample, vlad
from xcit_mm.apps.retrieval.nearest import ALPHA, QUERY_WORDS, AsmkIndex, nearest_vectors

K = 7


@pytest.fixture
def tokens():
    return np.random.default_rng(0).normal(2, 3, (400, 160)).astype(np.float32)


def test_vlad_is_that_of_a_double_loop(tokens):
    codebook = Codebook.learn(tokens, K)
    image = tokens[:50]
    local = (image.astype(np.float64) - codebook.mean) @ codebook.projection
    sums = np.zeros((K, local.shape[1]))
    for x in local:
        x = x / np.sqrt((x**2).sum())
        distances = [((x - center) ** 2).sum() for center in codebook.centers]
        sums[np.argmin(distances)] += x - codebook.centers[np.argmin(distances)]
    for part in sums:
        part[:] = np.sign(part) * np.sqrt(np.abs(part))
        part /= np.sqrt((part**2).sum()) or 1
    expected = sums.flatten() / np.sqrt((sums**2).sum())
    assert codebook.local(image).shape == (50, 128)
    np.testing.assert_allclose(vlad(codebook.residuals(image)), expected, atol=1e-5)
    halves = codebook.residuals(image[:13]) + codebook.residuals(image[13:])
    np.testing.assert_allclose(halves, codebook.residuals(image), atol=1e-6)


def test_projection_is_on_the_main_directions(tokens):
    codebook = Codebook.learn(tokens, K)
    _, _, directions = np.linalg.svd(tokens - tokens.mean(0, dtype=np.float64), full_matrices=False)
    cosines = np.abs((codebook.projection * directions[:128].T).sum(0))
    np.testing.assert_allclose(cosines, 1, atol=1e-3)


def test_codebooks_are_the_same_again_and_in_their_file(tokens, tmp_path):
    codebook, again = Codebook.learn(tokens, K), Codebook.learn(tokens.copy(), K)
    codebook.save(tmp_path / 'codebook.npz')
    read = Codebook.load(tmp_path / 'codebook.npz')
    for name in ('mean', 'projection', 'centers'):
        assert (getattr(codebook, name) == getattr(again, name)).all()
        assert (getattr(codebook, name) == getattr(read, name)).all()


def test_bad_codebooks_are_refused(tokens, tmp_path):
    with pytest.raises(UserError, match='8 centers need at least as many tokens'):
        Codebook.learn(tokens[:5], 8)
    path = tmp_path / 'codebook.npz'
    np.savez(path, mean=np.array([{}], object), projection=1, centers=1)
    for _ in range(2):
        with pytest.raises(UserError, match=f'^{path} is not a codebook'):
            Codebook.load(path)
        path.write_bytes(b'PK\3\4 broken')


def test_asmk_is_that_of_the_package(tokens):
    codebook = Codebook.learn(tokens, K)
    random = np.random.default_rng(1)
    images = [codebook.local(random.normal(2, 3, (n, 160)).astype(np.float32)) for n in (9, 14, 6)]
    query = (images[1] + random.normal(0, 0.01, images[1].shape)).astype(np.float32)  # planted
    ranks, scores = AsmkIndex(codebook, images).search([query, images[2]], 2)
    assert ranks.shape == scores.shape == (2, 2)
    assert ranks[0, 0] == 1 and ranks[1, 0] == 2

    def aggregated(local, assignments):
        _, words = faiss.knn(local, codebook.centers, assignments)
        return {
            word: hamming.binarize_and_pack_2D(
                (local[(words == word).any(1)] - codebook.centers[word]).sum(0)[None]
            )
            for word in np.unique(words)
        }

    asked, expected = aggregated(query, QUERY_WORDS), np.zeros(len(images))
    for number, image in enumerate(images):
        held = aggregated(image, 1)
        for word in asked.keys() & held.keys():
            similarity = 1 - 2 * hamming.hamming_cdist_packed(asked[word], held[word])[0]
            _, kernel = functional.asmk_kernel(
                similarity, np.array([number]), alpha=ALPHA, similarity_threshold=0.0
            )
            expected[number] += kernel.sum()
        expected[number] /= np.sqrt(len(held) * len(asked))
    order = np.argsort(-expected)[:2]
    assert (ranks[0] == order).all()
    np.testing.assert_allclose(scores[0], expected[order], atol=1e-6)


def test_a_sample_does_not_depend_on_tiles_and_covers_a_square_image():
    side, count = 48, 48
    place = np.arange(side * side, dtype=np.float32)
    tokens = np.stack((place // side, place % side), axis=1)
    whole = sample([tokens], count)
    assert len(whole) == count
    assert np.array_equal(whole, sample(np.split(tokens, (5, 700, 1900)), count))
    rows, columns = (len(set(axis.tolist())) for axis in whole.T)
    assert min(rows, columns) > 20
    assert np.array_equal(sample([tokens], 10**6), tokens)


def test_nearest_vectors_are_those_of_the_products():
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    ranks, scores = nearest_vectors(vectors, vectors[:3], 30)
    products = vectors[:3] @ vectors.T
    assert (ranks == np.argsort(-products, 1)).all()
    np.testing.assert_allclose(scores, -np.sort(-products, 1), rtol=1e-5)
