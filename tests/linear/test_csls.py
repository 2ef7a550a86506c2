"""Cross-domain similarity local scaling: its scores, its vectors, and the models that have it."""

import numpy as np
import pytest
from made_up_settings import text_view

from pipeline.config.registry.stored import restore
from pipeline.metrics.ranks import count_ranks
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.csls import Bank, Scaled, choose_scaling, extend, means_of_greatest
from pipeline.models.linear.ensemble import Ensemble, EnsembleMember
from pipeline.models.linear.projection import Directions, unit_rows
from pipeline.models.linear.views import ImageView

RNG = np.random.default_rng(0)


def draw(n: int, c: int = 6) -> np.ndarray:
    return unit_rows(RNG.standard_normal((n, c)).astype(np.float32))


BANK = Bank(draw(40), draw(50))


def make_model() -> NormalizedCCA:
    w, u = (RNG.standard_normal((d, 6)).astype(np.float32) for d in (6, 5))
    directions = Directions(w, u, np.ones(6, np.float32))
    return NormalizedCCA(
        ImageView(("one",), (6,), ()), text_view(5, sparse=False), np.zeros(6), np.zeros(5), directions
    )


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


@pytest.mark.parametrize("rows", [1, 3, 5000])
def test_means_of_nearest_do_not_depend_on_the_block(rows: int) -> None:
    vectors = draw(rows)
    found = BANK.near_images(vectors, [1, 7, 500])
    products = np.sort(vectors @ BANK.sentences.T, axis=1)[:, ::-1]
    expected = np.stack([products[:, :k].mean(axis=1) for k in (1, 7, 500)], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_fewer_than_k_are_all_taken() -> None:
    products = np.array([[3.0, 1.0, 2.0]])
    np.testing.assert_allclose(means_of_greatest(products, [1, 2, 3, 9]), [[3, 2.5, 2, 2]])


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
    trials = choose_scaling(x @ y.T, *near, owners, ks, (0, 0.5))
    assert len(trials) == 4 and trials[0]["recall_sum"] == max(trial["recall_sum"] for trial in trials)
    for trial in trials:
        column = ks.index(trial["neighbours"])
        images = extend(x, near[0][:, column], trial["weight"], own=0)
        sentences = extend(y, near[1][:, column], trial["weight"], own=1)
        ranks = count_ranks(images, sentences, owners, "inner_product")
        both = (ranks.image_to_sentence, ranks.sentence_to_image)
        reached = sum(100 * np.mean(one <= k) for one in both for k in (1, 5, 10))
        assert reached == pytest.approx(trial["recall_sum"], abs=4)  # ties of single precision


def test_parts_bring_a_scaled_model_back_alone_and_in_an_ensemble() -> None:
    model = Scaled(make_model(), 0.75, 5, BANK)
    features, sentences = {"one": RNG.random((7, 6), np.float32)}, {"tfidf": RNG.random((8, 5), np.float32)}
    twin = restore("ncca", model.settings(), model.tensors())
    assert isinstance(twin, Scaled) and twin.encoders == ("one",) and twin.metric == "inner_product"
    np.testing.assert_array_equal(twin.embed_images(features), model.embed_images(features))
    np.testing.assert_array_equal(twin.embed_sentences(sentences), model.embed_sentences(sentences))
    both = Ensemble([EnsembleMember("ncca", model, 0.4), EnsembleMember("ncca", make_model(), 0.6)])
    again = Ensemble.from_parts(both.settings(), both.tensors())
    np.testing.assert_array_equal(again.embed_images(features), both.embed_images(features))
    assert both.embed_images(features).shape == (7, 6 + 4 + 6)


def test_one_at_a_time_is_the_same() -> None:
    model = Scaled(make_model(), 0.5, 10, BANK)
    features = {"one": RNG.random((7, 6), np.float32)}
    whole = model.embed_images(features)
    each = np.concatenate([model.embed_images({"one": row[None]}) for row in features["one"]])
    np.testing.assert_allclose(each, whole, atol=1e-6)
