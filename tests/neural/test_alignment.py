"""Alignments are compared with the best of all assignments. Segments and lengths of vectors are compared with examples
that were calculated by hand."""

import itertools

import numpy as np
import pytest

from pipeline.models.neural.alignment import align, decode_chain, longest_vectors, word_magnitudes


def energy(scores: np.ndarray, regions: tuple[int, ...], beta: float) -> float:
    unary = sum(float(scores[j, a]) for j, a in enumerate(regions))
    return unary + beta * sum(a == b for a, b in itertools.pairwise(regions))


@pytest.mark.parametrize("beta", [0, 0.3, 1, 10])
def test_decoding_finds_the_best_assignment(beta: float) -> None:
    rng = np.random.default_rng(0)
    for n, m in zip(rng.integers(1, 6, 40), rng.integers(1, 5, 40), strict=True):
        scores = rng.standard_normal((n, m))
        every = itertools.product(range(m), repeat=n)
        best = max(every, key=lambda assignment: energy(scores, assignment, beta))
        assert tuple(decode_chain(scores, beta)) == best


def test_segments_are_runs_with_the_sum_of_their_products() -> None:
    regions = np.eye(3, dtype=np.float32)
    words = np.array([[0, 2, 0], [0, 1, 0], [0.4, 0.5, 0], [3, 0, 0]], np.float32)
    segments = align(words, regions, 0)
    assert [(s.first, s.last, s.region) for s in segments] == [(0, 3, 1), (3, 4, 0)]
    assert [s.score for s in segments] == pytest.approx([3.5, 3])
    smooth = align(words, regions, 10)
    # With `beta` 10, one segment is best, because it has one more pair of equal neighbours than two segments. Its
    # products sum to 3.5 in region 1, and to 3.4 in region 0.
    assert [(s.first, s.last, s.region) for s in smooth] == [(0, 4, 1)]
    assert smooth[0].score == pytest.approx(3.5)


def test_magnitudes_are_means_over_all_occurrences_of_a_word() -> None:
    lengths = np.array([5, 1, 10, 2, 9], np.float32)
    words = ["man", "a", "man", "a", "dog"]
    found = word_magnitudes(words, lengths, least_count=2)
    a = {"word": "a", "magnitude": 1.5, "count": 2}
    man = {"word": "man", "magnitude": 7.5, "count": 2}
    assert found == [a, man]
    assert [row["word"] for row in word_magnitudes(words, lengths, least_count=1)] == ["a", "man", "dog"]


def test_the_longest_vectors_are_of_different_owners() -> None:
    vectors = np.array([[1.0], [-7], [6], [5], [2]])
    assert longest_vectors(vectors, np.array([0, 1, 1, 2, 0]), 3).tolist() == [1, 3, 4]
    assert longest_vectors(vectors, np.array([0, 1, 1, 2, 0]), 9).tolist() == [1, 3, 4]
