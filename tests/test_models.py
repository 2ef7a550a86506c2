"""Every registered model keeps one contract, whichever stage makes it, with and without hubness correction."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from small_settings import make_grid
from synthetic_tasks import WORDS, SyntheticRegions, make_fit_task, make_task_of

from pipeline.compute.multivectors import MultiVectors
from pipeline.config.registry import MODELS, TRAININGS, made_by, model_spec
from pipeline.config.stored import restore
from pipeline.errors import IntegrityError
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.metrics.ranks import count_ranks, rank_scores
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
from pipeline.models.linear.ensemble import Ensemble, EnsembleMember
from pipeline.models.linear.hubness import Bank, Term
from pipeline.models.linear.views import ViewBlock
from pipeline.models.neural.task import train
from pipeline.text.trees import pack
from pipeline.text.vocabulary import Tokens

FITTED = [spec.name for spec in made_by("fit")]
TRANSFERRED = [f"ncca, {training}" for training in TRAININGS if training != "target"]
TRAINED = [spec.name for spec in made_by("train")]
LEARNED = [*FITTED, *TRANSFERRED, *TRAINED]
CORRECTED = [f"{spec.name}-csls" for spec in MODELS if spec.made_by != "combine"]
SETS = {"loss": "ranking", "margin": 1.0, "epochs": 6}
"""Settings of the trainings of all multi-vector models except `fragments`."""


@dataclass(frozen=True)
class Case:
    """A model, and data with which it was not trained: features by encoder, sentences in each form that the model
    takes, the image of each sentence, and regions if the model needs them.
    """

    model: Any
    features: dict[str, np.ndarray]
    sentences: dict[str, Any]
    owners: np.ndarray
    regions: SyntheticRegions | None = None

    def images(self, rows: np.ndarray | None = None) -> np.ndarray | MultiVectors:
        rows = np.arange(len(next(iter(self.features.values())))) if rows is None else rows
        features = {name: self.features[name][rows] for name in self.model.encoders}
        if not self.model.multi_vector:
            return self.model.embed_images(features)
        return self.model.embed_images(features, SyntheticRegions([self.regions.images[row] for row in rows]))

    def texts(self, rows: np.ndarray | None = None) -> np.ndarray | MultiVectors:
        rows = np.arange(len(self.owners)) if rows is None else rows
        forms = {
            name: {"tfidf": form["tfidf"][rows]} if name == "vectors" else form.take(rows)
            for name, form in self.sentences.items()
        }
        view = self.model.sentence_view
        return self.model.embed_sentences(forms if view == "each" else forms[view])


@cache
def make_case(name: str) -> Case:
    """Make a model as its stage does, and return the model with data that it has not seen.

    `name` is a registered model, `NAME, TRAINING` for a linear model with another kind of training, or NAME-csls for a
    model with hubness correction.
    """
    if name.endswith("-csls"):
        return correct(make_case(name.removesuffix("-csls")))
    stage = model_spec(name.partition(", ")[0]).made_by
    if stage == "fit":
        _, unseen = make_fit_task(name.partition(", ")[0])
        return Case(fitted(name).model, unseen.features, {"vectors": unseen.sentences}, unseen.owners)
    if stage == "adopt":
        sides = np.random.default_rng(0).standard_normal((2, 40, 6)).astype(np.float32)
        owners = np.arange(40)
        model = model_spec(name).load()("eyes", "tfidf")
        return Case(model, {"eyes": sides[0]}, {"vectors": {"tfidf": sides[1]}}, owners)
    if stage == "combine":
        members = ("bow", "dvsa") if model_spec(name).multi_vector else ("ncca", "bow")
        cases = [make_case(member) for member in members]
        joined = [EnsembleMember(one, case.model, 0.5) for one, case in zip(members, cases, strict=True)]
        rng = np.random.default_rng(0)
        shape = (len(cases[1].owners), WORDS)
        vectors = {"tfidf": sparse.random_array(shape, density=0.2, rng=rng, dtype=np.float32, format="csr")}
        return replace(cases[1], model=Ensemble(joined), sentences={**cases[1].sentences, "vectors": vectors})
    own = {"learning_rate": 0.02}
    if model_spec(name).multi_vector:
        own = {"sum": "mean-words", "global_weight": 1.0, "epochs": 3} if name == "fragments" else SETS
    task = make_task_of(name, **own)
    model = train(model_spec(name).load(), task, None, lambda training: None).model
    dev = task.dev
    return Case(model, dev.features, {model.sentence_view: dev.sentences}, dev.owners, dev.regions)


@cache
def fitted(name: str) -> Any:
    """Fit the linear model `NAME` or `NAME, TRAINING` to synthetic data. Return the model together with its trials and
    the parameters that were chosen.
    """
    name, _, training = name.partition(", ")
    return model_spec(name).load().fit(make_fit_task(name, training or "target")[0])


def correct(case: Case) -> Case:
    images = case.images(np.arange(12))
    texts = case.texts(np.arange(12))
    comparison = case.model.rule if case.model.multi_vector else "inner_product"
    terms = {"images": [Term(0.5, "nearest", 3)], "sentences": [Term(1, "balanced", 2.0)]}
    correction = HubnessCorrection(Bank(images, texts, comparison), terms)
    return replace(case, model=HubCorrected(case.model, correction))


def parts(found: np.ndarray | MultiVectors) -> list[np.ndarray]:
    """Return the arrays of embedded images or sentences: one array, or the item vectors and any global vectors of a
    multi-vector model.
    """
    if isinstance(found, MultiVectors):
        return [np.asarray(one) for one in (found.vectors, found.globals) if one is not None]
    return [found]


@pytest.fixture(params=[spec.name for spec in MODELS] + TRANSFERRED)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture(params=LEARNED)
def learned(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_images_and_sentences_are_finite_rows_of_one_space(case: Case) -> None:
    images = case.images()
    texts = case.texts()
    assert len(texts) == len(case.owners)
    for x, y in zip(parts(images), parts(texts), strict=True):
        assert x.dtype == y.dtype == np.float32 and x.shape[1] == y.shape[1]
        assert np.isfinite(x).all() and np.isfinite(y).all()
        if case.model.metric == "inner_product" and not case.model.multi_vector:
            np.testing.assert_allclose(np.linalg.norm(np.vstack([x, y]), axis=1), 1, atol=1e-5)
    assert case.model.metric in ("inner_product", "euclidean")
    if case.model.multi_vector:
        assert set(images.lengths) == {5} and (images.globals is not None) == bool(case.model.rule.global_weight)


def test_ranks_of_unseen_pairs_are_far_better_than_chance(learned: Case) -> None:
    """With random vectors, the median rank from sentence to image would be about 20 for multi-vector models and 30 for
    all other models. From image to sentence, it would be about 24 for multi-vector models.
    """
    images = learned.images()
    texts = learned.texts()
    if learned.model.multi_vector:
        ranks = rank_scores(multivector_scores(images, texts, learned.model.rule).numpy(), learned.owners)
        assert np.median(ranks.sentence_to_image) < 3 and np.median(ranks.image_to_sentence) < 3
    else:
        ranks = count_ranks(images, texts, learned.owners, learned.model.metric)
        assert np.median(ranks.sentence_to_image) < 10


def test_a_model_is_restored_from_its_parts(case: Case) -> None:
    twin = type(case.model).from_parts(case.model.settings(), case.model.tensors())
    again = replace(case, model=twin)
    for ours, theirs in zip([*parts(again.images()), *parts(again.texts())],
                            [*parts(case.images()), *parts(case.texts())], strict=True):  # fmt: skip
        np.testing.assert_array_equal(ours, theirs)
    assert (twin.encoders, twin.metric) == (case.model.encoders, case.model.metric)
    for name in ("rule", "region_view"):
        assert getattr(twin, name, None) == getattr(case.model, name, None)


def test_empty_and_long_inputs_become_finite_vectors(learned: Case) -> None:
    """The inputs are images whose features are zero, and captions of no word, of unknown words, and of 500 words."""
    before = {name: block.copy() for name, block in learned.features.items()}
    learned.images()
    assert all(np.array_equal(block, before[name]) for name, block in learned.features.items())
    blank = {name: np.zeros_like(block[:1]) for name, block in learned.features.items()}
    if not learned.model.multi_vector:
        assert np.isfinite(learned.model.embed_images(blank)).all()
    ids = np.concatenate([np.random.default_rng(0).integers(WORDS, size=500), [WORDS] * 3]).astype(np.int32)
    tokens = Tokens(ids, np.array([0, 500, 500, 503]))
    chains = [[(place - 1, word, 1) for place, word in enumerate(words.tolist())] for words in tokens]
    odd = {
        "vectors": {"tfidf": sparse.csr_array((3, WORDS), dtype=np.float32)},
        "tokens": tokens,
        "dependency-trees": pack(chains),
        "phrase-trees": pack([[]] * 3),
    }[learned.model.sentence_view]
    found = learned.model.embed_sentences(odd)
    assert len(found) == 3 and all(np.isfinite(part).all() for part in parts(found))


@pytest.mark.parametrize("name", [*FITTED, *TRANSFERRED, "lstm", "ncca-refined"])
def test_missing_or_misshapen_features_are_named(name: str) -> None:
    case = make_case(name)
    one = case.features["one"]
    with pytest.raises(IntegrityError, match="encoder two are missing"):
        case.model.embed_images({"one": one})
    with pytest.raises(IntegrityError, match="encoder two have the shape"):
        case.model.embed_images({"one": one, "two": one})


@pytest.mark.parametrize("name", [*(spec.name for spec in MODELS), *TRANSFERRED, *CORRECTED])
def test_no_rows_give_an_empty_block_and_a_row_does_not_depend_on_others(name: str) -> None:
    case = make_case(name)
    for embed in (case.images, case.texts):
        many = embed(np.arange(5))
        one = embed(np.arange(2, 3))
        none = embed(np.arange(0))
        assert [len(found) for found in (many, one, none)] == [5, 1, 0]
        for empty, single, full in zip(parts(none), parts(one), parts(many), strict=True):
            assert empty.shape == (0, full.shape[1]) and empty.dtype == single.dtype == full.dtype == np.float32
            assert np.isfinite(single).all()
        among = many.between(2, 3).vectors if isinstance(many, MultiVectors) else many[2:3]
        np.testing.assert_allclose(parts(one)[0], among, atol=1e-4)  # Rounding depends on the number of rows.


# --- models that `fit` makes


@pytest.mark.parametrize("name", [*FITTED, *TRANSFERRED])
def test_blocks_without_images_or_sentences_change_no_fit(name: str) -> None:
    """The blocks of the training data are divided, and blocks without images are put between them. Such blocks occur
    because a shard of a collection may have no image of the train split.
    """
    name, _, training = name.partition(", ")
    task, dev = make_fit_task(name, training or "target")

    def around(blocks: list[ViewBlock]) -> list[ViewBlock]:
        (block,) = blocks
        none = ViewBlock(block.x[:0], block.y[:0], block.owners[:0])
        cut = int((block.owners < 1).sum())
        one = ViewBlock(block.x[:1], block.y[:cut], block.owners[:cut])
        rest = ViewBlock(block.x[1:], block.y[cut:], block.owners[cut:] - 1)
        return [none, one, none, rest, none]

    sets = task.sets
    divided = replace(
        sets,
        target_blocks=lambda: around(list(sets.target_blocks())),
        auxiliary_blocks=lambda: around(list(sets.auxiliary_blocks())),
    )
    task = replace(task, grid=make_grid([4], [0.1], [0.1], [1]))
    whole, same = (model_spec(name).load().fit(replace(task, sets=one)).model for one in (sets, divided))
    for found, expected in (
        (same.embed_images(dev.features), whole.embed_images(dev.features)),
        (same.embed_sentences(dev.sentences), whole.embed_sentences(dev.sentences)),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-3)  # The sums in single precision have another order.


@pytest.mark.parametrize("name", [*FITTED, *TRANSFERRED])
def test_the_chosen_parameters_make_the_same_model_again(name: str) -> None:
    tuned = fitted(name)
    name, _, training = name.partition(", ")
    again = model_spec(name).load().fit(replace(make_fit_task(name, training or "target")[0], chosen=tuned.chosen))
    assert len(again.trials) == 1
    for part, tensor in tuned.model.tensors().items():
        np.testing.assert_allclose(again.model.tensors()[part], tensor, rtol=1e-5, atol=1e-6, err_msg=part)


def test_a_stored_model_of_another_form_is_refused_with_the_command_that_makes_it() -> None:
    for spec in MODELS:
        with pytest.raises(IntegrityError, match=f"{spec.name} .*(fit|train|adopt|combine)"):
            restore(spec.name, {}, {})
