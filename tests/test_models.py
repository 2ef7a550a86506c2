"""One contract for every registered model."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_settings import TRANSFER, make_grid, own_settings, text_view
from scipy import sparse

from pipeline.config.registry import MODELS, TRAININGS, made_by, model_spec
from pipeline.config.stored import restore
from pipeline.errors import IntegrityError, UsageError
from pipeline.metrics.ranks import count_ranks
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, ViewBlock

VIEW = ImageView(("one", "two"), (10, 6), (("sqrt", "l2"), ("l2",)))


def make_collection():
    """460 images of two encoders, with one to three sentences each that say what is in the first one's features."""
    rng = np.random.default_rng(0)
    hidden = rng.random((460, 5))
    features = {
        name: (hidden @ rng.random((5, dim)) ** 3).astype(np.float16) for name, dim in (("one", 10), ("two", 6))
    }
    owners = np.repeat(np.arange(460), rng.integers(1, 4, 460))
    words = np.maximum(hidden[owners] @ rng.standard_normal((5, 20)) + 0.2 * rng.standard_normal((len(owners), 20)), 0)
    return features, sparse.csr_array(words.astype(np.float32)), owners


def moments_of(block: ViewBlock) -> Moments:
    accumulator = MomentsAccumulator(VIEW.dim, 20, threads=1)
    accumulator.add(block.x, block.y, block.owners)
    return accumulator.result()


def make_task(name: str, training: str) -> tuple[FitTask, PairArrays]:
    """250 target images, 150 auxiliary ones whose words are blurred, and the 60 that nothing has seen."""
    features, sentences, owners = make_collection()

    def block(first: int, last: int, noise: float) -> ViewBlock:
        rows = np.flatnonzero((owners >= first) & (owners < last))
        words = sentences[rows].toarray() + noise * np.random.default_rng(1).random((len(rows), 20))
        x = VIEW.stack({name: part[first:last] for name, part in features.items()})
        return ViewBlock(x, sparse.csr_array(words.astype(np.float32)), owners[rows] - first)

    target, weak = block(0, 250, 0), block(250, 400, 1)
    dev = np.flatnonzero(owners >= 400)
    held_out = PairArrays(
        {name: part[400:] for name, part in features.items()}, {"tfidf": sentences[dev]}, owners[dev] - 400
    )
    sets = Sets(moments_of(target), moments_of(weak), lambda: [target], lambda: [weak])
    grid = make_grid([4], [0.01, 0.1], [0.01, 0.1], [0, 1])
    return FitTask(training, VIEW, text_view(20), sets, held_out, grid, TRANSFER, own_settings(name), seed=0), held_out


FITTED = [spec.name for spec in made_by("fit")]
ROWS = [(name, "target") for name in FITTED] + [("ncca", training) for training in TRAININGS if training != "target"]


@pytest.fixture(scope="module", params=ROWS, ids="-".join)
def fitted(request: pytest.FixtureRequest):
    """A registered model by one training, and the 60 images it has not seen."""
    name, training = request.param
    task, held_out = make_task(name, training)
    return model_spec(name).load().fit(task).model, held_out


def test_embeddings_are_finite_rows_of_one_space(fitted) -> None:
    model, pairs = fitted
    images, sentences = model.embed_images(pairs.features), model.embed_sentences(pairs.sentences)
    assert images.dtype == sentences.dtype == np.float32
    assert images.shape == (60, 4) and sentences.shape == (len(pairs.owners), 4)
    assert np.isfinite(images).all() and np.isfinite(sentences).all()
    if model.metric == "inner_product":
        np.testing.assert_allclose(np.linalg.norm(np.vstack([images, sentences]), axis=1), 1, atol=1e-5)
    else:
        assert model.metric == "euclidean"


def test_it_beats_chance_by_far_on_unseen_pairs(fitted) -> None:
    model, pairs = fitted
    ranks = count_ranks(
        model.embed_images(pairs.features), model.embed_sentences(pairs.sentences), pairs.owners, model.metric
    )
    assert np.median(ranks.sentence_to_image) < 10  # chance: 30


def test_inputs_are_left_as_they_were_and_nothing_to_go_by_is_a_finite_vector(fitted) -> None:
    model, pairs = fitted
    before = {name: block.copy() for name, block in pairs.features.items()}
    words = pairs.sentences["tfidf"].toarray()
    model.embed_images(pairs.features)
    model.embed_sentences(pairs.sentences)
    for name, block in pairs.features.items():
        np.testing.assert_array_equal(block, before[name])
    np.testing.assert_array_equal(pairs.sentences["tfidf"].toarray(), words)
    blank = {"one": np.zeros((1, 10), np.float16), "two": np.zeros((1, 6), np.float16)}
    assert np.isfinite(model.embed_images(blank)).all()
    assert np.isfinite(model.embed_sentences({"tfidf": sparse.csr_array((1, 20), dtype=np.float32)})).all()


def test_parts_bring_it_back(fitted) -> None:
    model, pairs = fitted
    twin = type(model).from_parts(model.settings(), model.tensors())
    np.testing.assert_array_equal(twin.embed_images(pairs.features), model.embed_images(pairs.features))
    np.testing.assert_array_equal(twin.embed_sentences(pairs.sentences), model.embed_sentences(pairs.sentences))
    assert twin.encoders == model.encoders == ("one", "two") and twin.metric == model.metric


def test_missing_or_misshapen_features_are_named(fitted) -> None:
    model, pairs = fitted
    with pytest.raises(IntegrityError, match="encoder two are missing"):
        model.embed_images({"one": pairs.features["one"]})
    with pytest.raises(IntegrityError, match="encoder two have shape"):
        model.embed_images({"one": pairs.features["one"], "two": pairs.features["one"]})


@pytest.mark.parametrize(("name", "training"), ROWS)
def test_what_was_chosen_makes_the_same_model_again(name: str, training: str) -> None:
    task, _ = make_task(name, training)
    tuned = model_spec(name).load().fit(task)
    again = model_spec(name).load().fit(replace(task, chosen=tuned.chosen))
    assert len(again.trials) == 1
    for part, tensor in tuned.model.tensors().items():
        np.testing.assert_allclose(again.model.tensors()[part], tensor, rtol=1e-5, atol=1e-6, err_msg=part)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown model nca; did you mean ncca[?] there are ridge, cca, ncca"):
        model_spec("nca").load()


def test_a_stored_model_of_another_form_is_refused_with_the_command_that_makes_it() -> None:
    for spec in MODELS:
        with pytest.raises(IntegrityError, match=f"{spec.name} .*(fit|train|adopt|combine)"):
            restore(spec.name, {}, {})
