"""What holds of every registered model, corrected for hubs or not, on the smallest shards: of no item and of one."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from made_up_pairs import make_task_of
from made_up_regions import MadeUpRegions
from made_up_regions import make_task as make_region_task
from made_up_settings import make_grid
from test_models import make_task

from pipeline.config.registry import MODELS, TRAININGS, made_by, model_spec
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
from pipeline.models.linear.ensemble import Ensemble, EnsembleMember
from pipeline.models.linear.hubness import Bank, Term
from pipeline.models.linear.views import ViewBlock
from pipeline.models.neural.task import train
from pipeline.multivectors import MultiVectors

NAMES = [spec.name for spec in MODELS]
FITTED = [spec.name for spec in made_by("fit")]
TRANSFERRED = [f"ncca, {training}" for training in TRAININGS if training != "target"]
CORRECTED = [f"{spec.name}-csls" for spec in MODELS if spec.made_by != "combine"]


@dataclass(frozen=True)
class Case:
    """A model and what it embeds: features, sentences in every form, and regions where it looks at these."""

    model: Any
    features: dict[str, np.ndarray]
    sentences: dict[str, Any]
    regions: MadeUpRegions | None = None

    def images(self, rows: np.ndarray) -> np.ndarray | MultiVectors:
        features = {name: self.features[name][rows] for name in self.model.encoders}
        if not self.model.multi_vector:
            return self.model.embed_images(features)
        return self.model.embed_images(features, MadeUpRegions([self.regions.images[row] for row in rows]))

    def texts(self, rows: np.ndarray) -> np.ndarray | MultiVectors:
        forms = {
            name: {"tfidf": form["tfidf"][rows]} if name == "vectors" else form.take(rows)
            for name, form in self.sentences.items()
        }
        view = self.model.sentence_view
        return self.model.embed_sentences(forms if view == "each" else forms[view])


@cache
def make_case(name: str) -> Case:
    """The registered model `name`, `NAME, TRAINING` of a linear one, or `NAME-csls`, made as `fit` or `train` would."""
    if name.endswith("-csls"):
        return scale(make_case(name.removesuffix("-csls")))
    if model_spec(name.partition(",")[0]).made_by == "combine":
        return combine(name)
    if model_spec(name.partition(",")[0]).made_by == "adopt":
        sides = np.random.default_rng(0).standard_normal((2, 40, 6)).astype(np.float32)
        return Case(model_spec(name).load()("eyes", "tfidf"), {"eyes": sides[0]}, {"vectors": {"tfidf": sides[1]}})
    name, _, training = name.partition(", ")
    if name in FITTED:
        task, dev = make_task(name, training or "target")
        return Case(model_spec(name).load().fit(task).model, dev.features, {"vectors": dev.sentences})
    task = (
        make_region_task(name, train=40, dev=12, epochs=1)
        if model_spec(name).multi_vector
        else make_task_of(name, train=40, dev=12, epochs=1)
    )
    model = train(model_spec(name).load(), task, None, lambda training: None).model
    return Case(model, task.dev.features, {model.sentence_view: task.dev.sentences}, task.dev.regions)


def scale(case: Case) -> Case:
    images, texts = case.images(np.arange(12)), case.texts(np.arange(12))
    comparison = case.model.rule if case.model.multi_vector else "inner_product"
    terms = {"images": [Term(0.5, "nearest", 3)], "sentences": [Term(1, "balanced", 2.0)]}
    correction = HubnessCorrection(Bank(images, texts, comparison), terms)
    return replace(case, model=HubCorrected(case.model, correction))


def combine(kind: str) -> Case:
    """Of two models that read tokens, one of them of sets for the ensemble of these."""
    members = ("lstm", "bow") if kind == "ensemble" else ("bow", "dvsa")
    cases = [make_case(name) for name in members]
    joined = [EnsembleMember(name, case.model, 0.5) for name, case in zip(members, cases, strict=True)]
    return replace(cases[1], model=Ensemble(joined))


def parts(found: np.ndarray | MultiVectors) -> list[np.ndarray]:
    """The arrays of what was embedded."""
    if isinstance(found, MultiVectors):
        return [np.asarray(one) for one in (found.vectors, found.globals) if one is not None]
    return [found]


@pytest.mark.parametrize("side", ["images", "texts"])
@pytest.mark.parametrize("name", [*NAMES, *TRANSFERRED, *CORRECTED])
def test_no_row_is_an_empty_block_and_one_is_what_it_is_among_many(name: str, side: str) -> None:
    case = make_case(name)
    embed = getattr(case, side)
    many, one, none = embed(np.arange(5)), embed(np.arange(2, 3)), embed(np.arange(0))
    assert [len(found) for found in (many, one, none)] == [5, 1, 0]
    for empty, single, full in zip(parts(none), parts(one), parts(many), strict=True):
        assert empty.shape == (0, full.shape[1]) and empty.dtype == single.dtype == full.dtype == np.float32
        assert np.isfinite(single).all()
    if isinstance(many, MultiVectors):
        many = many.between(2, 3)
        np.testing.assert_allclose(one.vectors, many.vectors, atol=1e-4)
    else:
        np.testing.assert_allclose(one, many[2:3], atol=1e-4)  # rounding differs with the size of a product


@pytest.mark.parametrize("name", [*FITTED, *TRANSFERRED])
def test_blocks_without_images_or_sentences_change_no_fit(name: str) -> None:
    """As the shards of a collection whose train split is not in all of them."""
    name, _, training = name.partition(", ")
    task, dev = make_task(name, training or "target")

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
        np.testing.assert_allclose(found, expected, atol=1e-3)  # sums of single precision in another order
