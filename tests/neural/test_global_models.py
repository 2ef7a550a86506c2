"""Tests of the behaviour of models with one vector per image. The behaviour that all models share is tested in
tests/test_models.py."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic_tasks import VIEW, WORDS, make_task, make_task_of

from pipeline.config.registry import model_spec
from pipeline.encoders.averaged import AveragedEncoder
from pipeline.encoders.tfidf import TfidfEncoder
from pipeline.models.linear.projection import WordStart, unit_rows
from pipeline.models.linear.views import TextView, one_matrix
from pipeline.models.neural.task import train
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import Tokens, build_vocabulary
from pipeline.text.wordvectors import WordVectors


def test_fixed_word_vectors_are_not_trained() -> None:
    task = replace(make_task_of("lstm", train=40, epochs=1), train_words=False)
    model = train(model_spec("lstm").load(), task, None, lambda training: None).model
    np.testing.assert_array_equal(model.tensors()["sentences.words"], task.words)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [({"loss": "squared"}, "euclidean"), ({"loss": "ranking", "score": "product"}, "inner_product")],
)
def test_image_vectors_without_normalisation_are_a_linear_map_of_uncentred_features(changes: dict, metric: str) -> None:
    """Socher et al. 2014 map images by W z. If z were centred, this map without a bias could not reach the mean
    sentence."""
    task = make_task_of("bow", train=40, epochs=1, encoder_dropout=0.0, **changes)
    model = train(model_spec("bow").load(), task, None, lambda training: None).model
    expected = VIEW.stack(task.dev.features) @ model.tensors()["image_map"].T
    twin = type(model).from_parts(model.settings(), model.tensors())
    for one in (model, twin):
        np.testing.assert_allclose(one.embed_images(task.dev.features), expected, atol=1e-5)
        assert one.metric == metric and np.linalg.norm(one.embed_sentences(task.dev.sentences), axis=1).std() > 0.01


def test_the_forget_gates_of_an_lstm_start_with_the_configured_bias() -> None:
    model = model_spec("lstm").load().untrained(make_task_of("lstm", train=40, forget_bias=2.0))
    np.testing.assert_array_equal(model.tensors()["sentences.bias"], np.repeat([0.0, 2.0, 0.0, 0.0], 16))


def test_a_refinement_starts_where_ncca_ends() -> None:
    task = make_task("vectors")
    trainer = model_spec("ncca-refined").load().trainer(task)
    start = task.start
    images = (VIEW.stack(task.dev.features) - start.mean_x) @ (start.directions.w * start.directions.values)
    expected = images / np.linalg.norm(images, axis=1, keepdims=True)
    np.testing.assert_allclose(trainer.finish().embed_images(task.dev.features), expected, atol=1e-5)


def test_a_recurrent_refinement_starts_where_ncca_ends_on_words_alone() -> None:
    task = make_task_of("ncca-recurrent")
    model = model_spec("ncca-recurrent").load().trainer(task).finish()
    start = task.start.model
    images = (VIEW.stack(task.dev.features) - start.mean_x) @ (start.directions.w * start.directions.values)
    np.testing.assert_allclose(model.embed_images(task.dev.features), unit_rows(images), atol=1e-4)
    words = start.directions.u * start.directions.values
    sums = [words[pairs.sentences.ids.reshape(-1, 4)].sum(axis=1) for pairs in (task.dev, task.train)]
    expected = unit_rows(sums[0] - sums[1].mean(axis=0))
    np.testing.assert_allclose(model.embed_sentences(task.dev.sentences), expected, atol=1e-4)


def test_word_vectors_of_a_start_have_the_weights_of_its_text_view() -> None:
    """The sum of the words of a sentence has almost the direction of the sentence's vector in the text view, although
    the word vectors are long."""
    names = [f"w{number}" for number in range(WORDS)]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(names, rng.integers(3, 9))) for _ in range(200)]
    plain = TermSettings(False, (), 1)
    vectors = WordVectors(tuple(names), 50 * rng.standard_normal((WORDS, 8)).astype(np.float32))
    idf = rng.uniform(1, 5, WORDS).astype(np.float32)
    encoders = {
        "tfidf": TfidfEncoder(build_vocabulary(texts, plain, size=WORDS, min_count=1, idf=True, normalise=True)),
        "words": AveragedEncoder(plain, vectors, idf),
    }
    stored = {name: one.encode(texts) for name, one in encoders.items()}
    view = TextView.from_vectors(stored, {"words": ("l2",)}).weighted({"words": 2.0})
    start = WordStart.encode_words(SimpleNamespace(text=view), encoders, [*names, ""], texts)
    terms, expected = (one_matrix(rows).toarray() for rows in (start.terms, view.stack(stored)))
    assert not terms[-1].any()
    sums = np.stack([terms[[names.index(word) for word in text.split()]].sum(axis=0) for text in texts])
    cosines = (unit_rows(sums) * unit_rows(expected)).sum(axis=1)
    assert cosines.mean() > 0.97


def test_only_a_trained_recurrent_refinement_depends_on_the_order_of_words() -> None:
    task = make_task_of("ncca-recurrent", epochs=2)
    ids = task.dev.sentences.ids.reshape(-1, 4)
    offsets = task.dev.sentences.offsets
    fresh = model_spec("ncca-recurrent").load().trainer(task).finish()
    trained = train(model_spec("ncca-recurrent").load(), task, None, lambda training: None).model
    for model, differs in ((fresh, False), (trained, True)):
        forwards, backwards = (model.embed_sentences(Tokens(order.ravel(), offsets)) for order in (ids, ids[:, ::-1]))
        assert (np.abs(forwards - backwards).max() > 1e-3) == differs
