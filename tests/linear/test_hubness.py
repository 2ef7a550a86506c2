"""Hubness corrections are compared with the equations of the papers. Stored corrections and the choice of a correction
on dev are tested too."""

import numpy as np
import pytest
from scipy.special import logsumexp

from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.config.models import HUBNESS, HubnessSettings
from pipeline.config.stored import restore
from pipeline.errors import IntegrityError
from pipeline.metrics.ranks import count_ranks
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
from pipeline.models.linear.ensemble import ZeroShot
from pipeline.models.linear.hubness import Bank, Term, choose_correction
from pipeline.models.linear.projection import unit_rows

NOTHING = {"images": [], "sentences": []}


def draw(n: int, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng([seed, n]).standard_normal((n, 6), dtype=np.float32))


BANK = Bank(draw(40), draw(50))
QUERY_BANK = Bank(BANK.images, BANK.sentences, queries=draw(35))
"""A bank with logged queries, which replace its sentences as the texts that search for images."""


def queries_of(bank: Bank) -> np.ndarray:
    """Return the vectors (q, c) of the texts of `bank` that search for images: the queries of the bank, or the
    sentences if it has no queries."""
    return bank.sentences if bank.queries is None else bank.queries


def csls(scores: np.ndarray, x: np.ndarray, y: np.ndarray, bank: Bank) -> np.ndarray:
    """Compute half the CSLS score of Conneau et al. 2018 with k = 5 for each image of `x` (n, c) and sentence of `y`
    (m, c), from their inner products `scores` (n, m) and the nearest items of `bank`. Return (n, m)."""
    nearest_images = [np.mean(sorted(queries_of(bank) @ image)[-5:]) for image in x]
    nearest_sentences = [np.mean(sorted(bank.images @ sentence)[-5:]) for sentence in y]
    return scores - np.add.outer(nearest_images, nearest_sentences) / 2


def sinkhorn(scores: np.ndarray, x: np.ndarray, y: np.ndarray, bank: Bank) -> np.ndarray:
    """Compute the Sinkhorn scores of Pan et al. 2025 with beta = 7 for each image of `x` (n, c) and each sentence, from
    their inner products `scores` (n, m). `y` is not used. Return (n, m).

    The rows and the columns of the bank's matrix of exponentials are divided by their sums in turn. The result has a
    factor for each column. These factors then normalise each image of `x` as if it were one more row of the matrix.
    """
    queries = queries_of(bank)
    exponentials = np.exp(7 * bank.images.astype(float) @ queries.T)
    balanced = exponentials.copy()
    for _ in range(10):
        balanced /= balanced.sum(axis=1, keepdims=True)
        balanced /= balanced.sum(axis=0, keepdims=True)
    of_queries = balanced[0] / exponentials[0]
    return scores - np.log(np.exp(7 * x @ queries.T) @ of_queries)[:, None] / 7


@pytest.mark.parametrize("bank", [BANK, QUERY_BANK], ids=["train", "log"])
@pytest.mark.parametrize(
    ("terms", "paper"),
    [
        (([Term(1, "balanced", 7.0)], []), sinkhorn),
        (([Term(0.5, "nearest", 5)], [Term(0.5, "nearest", 5)]), csls),
    ],
    ids=["sinkhorn", "csls"],
)
def test_products_of_corrected_unit_vectors_equal_the_scores_of_the_papers(
    terms: tuple, paper: object, bank: Bank
) -> None:
    x = draw(9)
    y = draw(12)
    correction = HubnessCorrection(bank, dict(zip(NOTHING, terms, strict=True)))
    images = correction.extend("images", x)
    sentences = correction.extend("sentences", y)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(sentences, axis=1), 1, atol=1e-6)
    expected = paper(x.astype(float) @ y.T, x.astype(float), y.astype(float), bank)
    # The products and the expected scores are equal except for a factor and a constant.
    a = images @ sentences.T
    b = expected - expected.mean()
    a = (a - a.mean()) * (b.std() / a.std())
    np.testing.assert_allclose(a, b, atol=1e-5)
    model = HubCorrected(ZeroShot("eyes", "words"), correction)
    stored = HubCorrected.from_parts(ZeroShot, model.settings(), model.tensors())
    np.testing.assert_array_equal(stored.correction.extend("images", x), images)


def test_sharp_exponentials_neither_overflow_nor_vanish() -> None:
    """The balance of a bank with beta = 400 is finite, although exp(400) overflows in single precision. For most
    queries the balance equals the expected balance, which is computed with logarithms in double precision."""
    beta, (terms, side) = 400.0, ([Term(1, "balanced", 400.0)], "images")
    logs = beta * BANK.images.astype(float) @ BANK.sentences.T.astype(float)
    of_queries = np.zeros(logs.shape[1])
    for _ in range(10):
        of_images = -logsumexp(logs + of_queries, axis=1)
        of_queries = -logsumexp(logs + of_images[:, None], axis=0)
    expected = -of_queries / beta
    balance = HubnessCorrection(BANK, {**NOTHING, side: terms}).bank.balance[side]
    assert np.isfinite(balance).all()
    close = np.abs(balance - (expected - expected.mean())) < 0.02
    assert close.mean() > 0.8  # Others differ, because exponents below LOWEST_EXPONENT become LOWEST_EXPONENT.


def test_a_bias_that_unit_vectors_cannot_have_is_reported_with_its_row(caplog: pytest.LogCaptureFixture) -> None:
    """`extend` logs a warning that names row 4 of the sentences. One image of the bank has length 3, so the bias of
    this row is 1.5, but a unit vector has a bias of at most 0.5. An empty array of sentences causes no warning. Images
    cause no warning either, because they have no correction."""
    x = draw(9)
    bank = Bank(np.vstack([BANK.images, 3 * x[4:5]]), BANK.sentences)
    correction = HubnessCorrection(bank, {"images": [], "sentences": [Term(0.5, "nearest", 1)]})
    correction.extend("sentences", x)
    assert (
        "bias of row 4 of the sentences is 1.5, but a vector of unit length has a bias of at most 0.5, so"
        in caplog.text
    )
    caplog.clear()
    correction.extend("sentences", x[:0])
    correction.extend("images", x)
    assert not caplog.text


def test_auto_corrects_sets_of_vectors_by_the_better_method_of_each_direction() -> None:
    rng = np.random.default_rng(4)
    rule = ScoreRule("words", 0.0)

    def sets(count: int) -> MultiVectors:
        return MultiVectors(rng.standard_normal((2 * count, 5)).astype(np.float32), 2 * np.arange(count + 1))

    bank = Bank(sets(12), sets(15), rule)
    images = sets(8)
    grid = HubnessSettings(neighbours=(3,), weight=(0.5,), sharpness=(1,))
    _, log = choose_correction("auto", bank, images, images, np.arange(8), grid)
    assert {trial["method"] for trial in log["trials"]} == {"none", "nnn", "sinkhorn"}
    for direction in ("image_to_sentence", "sentence_to_image"):
        assert log["chosen"][direction] == max(trial[direction] for trial in log["trials"])


@pytest.mark.parametrize("statistic", ["softmax", "gallery"])
def test_error_for_a_stored_model_of_a_removed_method_names_the_command_to_rerun(statistic: str) -> None:
    model = HubCorrected(ZeroShot("eyes", "words"), HubnessCorrection(BANK, NOTHING))
    settings = {**model.settings(), "hubness": {"images": [[1.0, statistic, 7.0]], "sentences": []}}
    with pytest.raises(
        IntegrityError, match=rf"{statistic}.* removed methods .* Set hubness: csls .*jointspace run CONFIG"
    ):
        restore("zero-shot", settings, model.tensors())


def test_stored_model_of_an_unknown_statistic_names_the_known_ones() -> None:
    model = HubCorrected(ZeroShot("eyes", "words"), HubnessCorrection(BANK, NOTHING))
    settings = {**model.settings(), "hubness": {"images": [[1.0, "median", 7.0]], "sentences": []}}
    with pytest.raises(IntegrityError, match="statistic median. Known are nearest, balanced"):
        restore("zero-shot", settings, model.tensors())


@pytest.mark.parametrize("bank", [BANK, QUERY_BANK], ids=["train", "log"])
@pytest.mark.parametrize("statistic", ["nearest", "balanced"])
def test_corrections_on_a_device_equal_those_on_the_cpu(statistic: str, bank: Bank, device) -> None:
    terms = dict.fromkeys(NOTHING, [Term(0.75, statistic, 7), Term(0.25, "nearest", 3)])
    model = HubCorrected(ZeroShot("eyes", "words"), HubnessCorrection(bank, terms))
    x = draw(9)
    expected = model.embed_images({"eyes": x}), model.embed_sentences({"words": x})
    model.to(device)
    found = model.embed_images({"eyes": x}), model.embed_sentences({"words": x})
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert all(type(tensor) is np.ndarray for tensor in model.tensors().values())


@pytest.mark.parametrize("method", [*HUBNESS, "auto"])
def test_a_hub_no_longer_hides_the_right_images(method: str) -> None:
    c = 16
    queries = np.eye(c, dtype=np.float32)
    right = unit_rows(queries + 0.7 * np.roll(queries, 1, axis=0))
    hub = unit_rows(np.ones((1, c), np.float32))
    spread = unit_rows(queries + 0.3)  # Each sentence is closer to the hub than to its own image.
    gallery = np.vstack([right, hub])
    bank = Bank(gallery, spread)
    before = spread @ gallery.T
    assert (before.argmax(axis=1) == c).all()
    owners = np.append(np.arange(c), c)  # The hub is an image of dev, so it needs a sentence of its own.
    sentences = np.vstack([spread, unit_rows(np.ones((1, c), np.float32))])
    terms, log = choose_correction(method, bank, gallery, sentences, owners, HubnessSettings(neighbours=(4, 8)))
    correction = HubnessCorrection(bank, terms)
    images = correction.extend("images", gallery)
    asked = correction.extend("sentences", spread)
    np.testing.assert_array_equal((asked @ images.T).argmax(axis=1), np.arange(c))
    assert log["chosen"]["sentence_to_image"] > 290


@pytest.mark.parametrize("method", [*HUBNESS, "auto"])
def test_the_reported_recall_is_reached_and_not_below_the_recall_without_correction(method: str) -> None:
    x = draw(30)
    y = draw(60)
    owners = np.repeat(np.arange(30), 2)
    grid = HubnessSettings(neighbours=(3, 9), weight=(0, 0.5), sharpness=(1, 3))
    terms, log = choose_correction(method, BANK, x, y, owners, grid)
    correction = HubnessCorrection(BANK, terms)
    nothing = next(trial for trial in log["trials"] if trial["method"] == "none")
    assert len(log["trials"]) == (5 if method == "auto" else 3)
    ranks = count_ranks(correction.extend("images", x), correction.extend("sentences", y), owners, "inner_product")
    for direction in ("image_to_sentence", "sentence_to_image"):
        reached = sum(100 * np.mean(getattr(ranks, direction) <= k) for k in (1, 5, 10))
        # The extended vectors are in single precision, whose ties change the recalls a little.
        assert reached == pytest.approx(log["chosen"][direction], abs=4)
        assert method == "csls" or log["chosen"][direction] == max(trial[direction] for trial in log["trials"])
    assert method != "csls" or log["chosen"]["images"] == log["chosen"]["sentences"], "one trial for both directions"
    assert log["chosen"]["recall_sum"] >= nothing["recall_sum"]
