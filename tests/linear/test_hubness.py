"""Cross-domain similarity local scaling: its scores, its vectors, and the models that have it."""

import numpy as np
import pytest

from pipeline.metrics.ranks import count_ranks
from pipeline.models.linear.hubness import Bank, choose_correction, extend
from pipeline.models.linear.projection import unit_rows

RNG = np.random.default_rng(0)


def draw(n: int, c: int = 6) -> np.ndarray:
    return unit_rows(RNG.standard_normal((n, c)).astype(np.float32))


BANK = Bank(draw(40), draw(50))


def slow_scores(x: np.ndarray, y: np.ndarray, bank: Bank, k: int) -> np.ndarray:
    """CSLS as the paper writes it, pair by pair."""
    scores = np.empty((len(x), len(y)))
    for i, image in enumerate(x.astype(float)):
        near_image = np.mean(sorted(bank.sentences @ image)[-k:])
        for j, sentence in enumerate(y.astype(float)):
            near_sentence = np.mean(sorted(bank.images @ sentence)[-k:])
            scores[i, j] = 2 * image @ sentence - near_image - near_sentence
    return scores


def test_products_of_extended_unit_vectors_are_the_papers_scores() -> None:
    x, y, k = draw(9), draw(12), 5
    images = extend(x, BANK.near_images(x, [k])[:, 0], 0.5, own=0)
    sentences = extend(y, BANK.near_sentences(y, [k])[:, 0], 0.5, own=1)
    np.testing.assert_allclose(np.linalg.norm(np.vstack([images, sentences]), axis=1), 1, atol=1e-6)
    expected = slow_scores(x, y, BANK, k)
    np.testing.assert_allclose(images @ sentences.T * 2 * (2 + 0.5**2), expected, atol=1e-5)


def test_how_images_compare_with_images_hardly_changes() -> None:
    x = draw(200)
    images = extend(x, BANK.near_images(x, [5])[:, 0], 0.75, own=0)
    before, after = x @ x.T, images @ images.T
    above = np.triu_indices(len(x), 1)
    assert np.corrcoef(before[above], after[above])[0, 1] > 0.99


def test_a_hub_no_longer_hides_what_is_meant() -> None:
    c = 16
    queries = np.eye(c, dtype=np.float32)
    right = unit_rows(queries + 0.7 * np.roll(queries, 1, axis=0))
    hub = unit_rows(np.ones((1, c), np.float32))
    spread = unit_rows(queries + 0.3)  # everything leans towards the hub
    gallery = np.vstack([hub, right])
    bank = Bank(gallery, spread)
    before = spread @ gallery.T
    assert (before.argmax(axis=1) == 0).all()
    images = extend(gallery, bank.near_images(gallery, [8])[:, 0], 0.5, own=0)
    sentences = extend(spread, bank.near_sentences(spread, [8])[:, 0], 0.5, own=1)
    np.testing.assert_array_equal((sentences @ images.T).argmax(axis=1), np.arange(c) + 1)


def test_the_best_trial_comes_first_and_is_what_its_vectors_reach() -> None:
    x, y = draw(30), draw(60)
    owners, ks = np.repeat(np.arange(30), 2), (3, 9)
    near = BANK.near_images(x, ks), BANK.near_sentences(y, ks)
    trials = choose_correction(x @ y.T, *near, owners, ks, (0, 0.5))
    assert len(trials) == 4 and trials[0]["recall_sum"] == max(trial["recall_sum"] for trial in trials)
    for trial in trials:
        column = ks.index(trial["neighbours"])
        images = extend(x, near[0][:, column], trial["weight"], own=0)
        sentences = extend(y, near[1][:, column], trial["weight"], own=1)
        ranks = count_ranks(images, sentences, owners, "inner_product")
        both = (ranks.image_to_sentence, ranks.sentence_to_image)
        reached = sum(100 * np.mean(one <= k) for one in both for k in (1, 5, 10))
        assert reached == pytest.approx(trial["recall_sum"], abs=4)  # ties of single precision
