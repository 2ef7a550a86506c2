"""Text views with sparse and dense vectors side by side: views and moments are compared with dense matrices in float64,
and all fitted models accept such views."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import sparse
from small_settings import TRANSFER, make_grid, own_settings
from test_feature_maps import assert_same, dense_moments

from pipeline.config.registry import TRAININGS, made_by, model_spec
from pipeline.errors import IntegrityError
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.sets import Restriction
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, TextView, ViewBlock, as_sparse, one_matrix

DIMS = {"terms": 30, "words": 7, "more": 5, "rare": 11}
SPARSE = {"terms", "rare"}
VIEW = ImageView(("one",), (9,), ())


def make_texts(count: int, names: tuple[str, ...], seed: int = 0) -> dict:
    """Draw the vectors of `count` texts by the text encoders `names`, text encoder -> (count, dim). The encoders in
    SPARSE have sparse vectors. The means of dense vectors are far from zero."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in names:
        if name in SPARSE:
            shape = (count, DIMS[name])
            found[name] = sparse.random_array(shape, density=0.2, rng=rng, dtype=np.float32, format="csr")
        else:
            found[name] = (rng.standard_normal((count, DIMS[name])) + 20).astype(np.float32)
    return found


def dense(texts: dict, view: TextView) -> np.ndarray:
    """Compute the rows (n, dim) of the text view `view` for the vectors `texts`, as a dense float64 matrix, from the
    definition of the view: the vectors of each encoder are normalised and weighted, and the results are put side by
    side."""
    columns = []
    for name, steps, weight in zip(view.encoders, view.steps, view.weights, strict=True):
        rows = texts[name].toarray() if name in SPARSE else texts[name]
        rows = rows.astype(float)
        for step in steps:
            length = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(length > 0, length, 1) if step == "l2" else np.sign(rows) * np.sqrt(np.abs(rows))
        columns.append(weight * rows)
    return np.hstack(columns)


@pytest.mark.parametrize("wide", [9, 1100], ids=["double", "single"])
@pytest.mark.parametrize(
    "names",
    [("words",), ("terms",), ("terms", "words"), ("words", "rare", "more", "terms"), ("words", "more")],
    ids="-".join,
)
def test_moments_of_blocks_equal_those_of_dense_rows_and_can_be_subtracted(names: tuple[str, ...], wide: int) -> None:
    rng = np.random.default_rng(1)
    dims = (wide, sum(map(DIMS.get, names)))
    accumulator = MomentsAccumulator(*dims, threads=2)
    last = MomentsAccumulator(*dims, threads=2)
    xs = []
    ys = []
    for seed, counts in enumerate(
        (np.zeros(4, int), rng.integers(0, 4, 300), np.ones(90, int), np.zeros(4, int), np.full(200, 2))
    ):
        owners = np.repeat(np.arange(len(counts)), counts)
        x = (rng.standard_normal((len(counts), wide)) - 4).astype(np.float32)
        texts = make_texts(len(owners), names, seed)
        view = TextView.from_vectors(texts)
        accumulator.add(x, view.stack(texts), owners)
        xs.append(x[owners].astype(float))
        ys.append(dense(texts, view))
    last.add(x, view.stack(texts), owners)
    moments = accumulator.result()
    assert_same(moments, dense_moments(np.concatenate(xs), np.concatenate(ys)), 3e-6)
    rest = dense_moments(np.concatenate(xs[:-1]), np.concatenate(ys[:-1]))
    assert_same(moments - last.result(), rest, 1e-5)


def test_moments_of_no_pairs_change_nothing() -> None:
    rng = np.random.default_rng(2)
    accumulator = MomentsAccumulator(3, 2, threads=1)
    accumulator.add(rng.random((9, 3), np.float32), rng.random((9, 2), np.float32), np.arange(9))
    some = accumulator.result()
    none = MomentsAccumulator(3, 2, threads=1).result()
    for total in (some + none, none + some, some - none, none.absorb(some), some.absorb(none)):
        assert_same(total, some, 0)
    assert some + none is some and some - none is some  # The result is the same object, not a copy.
    for nothing in (none + none, none - none, some - some):
        assert nothing.n == 0 and not any(part.any() for part in (nothing.mean_x, nothing.xx, nothing.xy, nothing.yy))


def test_absorbing_moments_equals_adding_them_to_the_last_bit() -> None:
    rng = np.random.default_rng(3)
    sums = []
    for count in (9, 14):
        accumulator = MomentsAccumulator(3, 2, threads=1)
        accumulator.add(rng.random((count, 3), np.float32), rng.random((count, 2), np.float32), np.arange(count))
        sums.append(accumulator.result())
    first, second = sums
    total = first + second
    assert total.n == 23
    assert_same(first.absorb(second), total, 0)


def test_a_distant_mean_does_not_cost_the_variance() -> None:
    rng = np.random.default_rng(9)
    accumulator = MomentsAccumulator(3, 2, threads=1)
    x = (100 + 0.1 * rng.standard_normal((10, 500, 3))).astype(np.float32)
    for block in x:
        accumulator.add(block, sparse.csr_array(rng.random((500, 2), dtype=np.float32)), np.arange(500))
    variance = x.reshape(-1, 3).astype(float).var(axis=0)
    np.testing.assert_allclose(np.diag(accumulator.result().xx) / 5000, variance, rtol=1e-4)


def test_a_view_is_its_blocks_normalised_weighted_and_side_by_side() -> None:
    texts = make_texts(40, ("terms", "words", "more"))
    texts["terms"] = sparse.csr_array(texts["terms"] * np.sign(np.arange(30) - 15))
    view = TextView.from_vectors(texts, {"terms": ("sqrt", "l2"), "words": ("l2",)}).weighted(
        {"words": 0.5, "more": 3.0}
    )
    before = {name: block.copy() for name, block in texts.items()}
    np.testing.assert_allclose(as_sparse(view.stack(texts)).toarray(), dense(texts, view), rtol=1e-5)
    for name, block in texts.items():
        assert (abs(block - before[name])).sum() == 0
    some = view.select(["more", "terms"])
    assert some.encoders == ("terms", "more") and some.weights == (1.0, 3.0)
    assert TextView.from_dict(view.to_dict()) == view
    with pytest.raises(ValueError, match="unknown step whiten"):  # A file of another program may have such a step.
        TextView.from_dict({**view.to_dict(), "steps": [["whiten"], *view.to_dict()["steps"][1:]]})
    assert view.columns(some).tolist() == [*range(30), *range(37, 42)]
    with pytest.raises(IntegrityError, match="vectors of text encoder words are missing"):
        view.stack({"terms": texts["terms"]})
    with pytest.raises(IntegrityError, match="vectors of text encoder more have the shape"):
        view.stack({**texts, "more": texts["words"]})
    with pytest.raises(IntegrityError, match="does not use the vectors of text encoder other, but only"):
        view.select(["other"])


def test_image_view_without_any_features_names_the_missing_encoder() -> None:
    with pytest.raises(IntegrityError, match="features of encoder eyes are missing"):
        ImageView(("eyes",), (3,), ("l2",)).stack({})


def test_features_of_another_number_of_images_are_refused() -> None:
    """A model embeds images in blocks, so that a block could end where the features of the first encoder end."""
    view = ImageView(("eyes", "ears"), (3, 2), ())
    features = {"eyes": np.zeros((4, 3), np.float16), "ears": np.zeros((5, 2), np.float16)}
    assert view.count_rows({**features, "ears": features["ears"][:4]}) == 4
    with pytest.raises(IntegrityError, match="features of encoder ears have the shape"):
        view.count_rows(features)


def test_steps_of_a_view_multiply_by_a_weight() -> None:
    features = {"one": np.array([[3.0, -4.0]], np.float32), "two": np.array([[4.0]], np.float32)}
    weighted = ImageView(("one", "two"), (2, 1), (("l2", "times 1.5"), ("sqrt", "times 1e-05")))
    np.testing.assert_allclose(weighted.stack(features), [[0.9, -1.2, 2e-5]], rtol=1e-6)
    assert ImageView.from_dict(json.loads(json.dumps(asdict(weighted)))) == weighted
    texts = {"terms": sparse.csr_array(features["one"]), "words": features["two"]}
    view = TextView.from_vectors(texts, {"terms": ("l2", "times 2.5"), "words": ("times 3",)})
    np.testing.assert_allclose(as_sparse(view.stack(texts)).toarray(), [[1.5, -2.0, 12.0]], rtol=1e-6)
    for step in ("times", "times x", "times -1", "times nan", "times 1 2", "times 1\n"):
        with pytest.raises(ValueError, match="unknown step"):
            ImageView.from_dict({**asdict(weighted), "steps": [[step], []]})


def make_task(name: str, training: str, weights: dict[str, float], names: tuple[str, ...]) -> FitTask:
    """Make the task of fitting the model `name` to 200 target and 100 auxiliary images, with 40 dev images.

    Each image has one sentence. The vectors of the sentence and the features of the image depend on the same five
    hidden factors. `names` are the text encoders in order, and `weights` maps each of them to its weight.
    """
    rng = np.random.default_rng(3)
    texts = {}
    hidden = rng.random((340, 5))
    x = (hidden @ rng.random((5, 9))).astype(np.float32)
    for one in names:
        # Each encoder has its own seed, so that its vectors do not depend on which other encoders are in `names`.
        own = np.random.default_rng(list(DIMS).index(one))
        dim = DIMS[one]
        rows = np.maximum(hidden @ own.standard_normal((5, dim)) + 0.1 * own.standard_normal((340, dim)), 0)
        texts[one] = sparse.csr_array(rows, dtype=np.float32) if one in SPARSE else rows.astype(np.float32)
    stored = TextView.from_vectors(texts)
    restriction = Restriction(("one",), weights)
    text = restriction.text(stored)

    def block(rows: slice) -> ViewBlock:
        part = {one: texts[one][rows] for one in names}
        return ViewBlock(x[rows], text.stack(restriction.cut(part)), np.arange(rows.stop - rows.start))

    def moments(rows: slice) -> Moments:
        accumulator = MomentsAccumulator(9, stored.dim, 1)
        accumulator.add(
            x[rows], stored.stack({one: texts[one][rows] for one in names}), np.arange(rows.stop - rows.start)
        )
        total = accumulator.result().select_y(stored.columns(text))
        return total.scaled_y(text.factors())

    target = slice(0, 200)
    weak = slice(200, 300)
    dev = slice(300, 340)
    rows = PairArrays({"one": x[dev]}, {one: texts[one][dev] for one in names}, np.arange(40))
    sets = Sets(moments(target), moments(weak), lambda: [block(target)], lambda: [block(weak)])
    grid = make_grid([4], [0.01, 0.1], [0.1, 1], [1])
    return FitTask(
        training, VIEW, text, sets, replace(rows, sentences=restriction.cut(rows.sentences)), grid, TRANSFER,
        own_settings(name), seed=0,
    )  # fmt: skip


BOTH = ("terms", "words")
CASES = [
    *((spec.name, "target", BOTH) for spec in made_by("fit")),
    *(("ncca", training, BOTH) for training in TRAININGS if training != "target"),
    ("ncca", "sae", ("words", "more")),
]


@pytest.mark.parametrize(("name", "training", "names"), CASES)
def test_every_model_and_training_accepts_sparse_and_dense_blocks(
    name: str, training: str, names: tuple[str, ...]
) -> None:
    task = make_task(name, training, dict(zip(names, (1.0, 2.0), strict=False)), names)
    model = model_spec(name).load().fit(task).model
    sentences = model.embed_sentences(task.dev.sentences)
    # csa adds two columns to the four of the grid, and asif has one column for each training pair.
    dimensions = {"csa": 6, "asif": 200}.get(name, 4)
    assert sentences.shape == (40, dimensions) and np.isfinite(sentences).all()
    twin = type(model).from_parts(model.settings(), model.tensors())
    assert twin.text == task.text and twin.text_encoders == names
    np.testing.assert_array_equal(twin.embed_sentences(task.dev.sentences), sentences)


@pytest.mark.parametrize("training", ["target", "joint", "sae-linear"])
def test_weighting_moments_equals_weighting_the_columns(training: str) -> None:
    """An ncca with weights of text encoders embeds sentences like an ncca whose stored vectors are already multiplied
    by these weights."""
    weighted = make_task("ncca", training, {"terms": 1.0, "words": 3.0}, ("terms", "words"))
    named = {
        name: one_matrix(weighted.text.select([name]).stack(weighted.dev.sentences)) for name in ("terms", "words")
    }
    # The moments of both tasks are the same, because `make_task` has weighted them already.
    plain = replace(weighted, text=TextView.from_vectors(named), dev=replace(weighted.dev, sentences=named), memory={})
    ours, theirs = (model_spec("ncca").load().fit(task) for task in (weighted, plain))
    assert ours.chosen.recall_sum == theirs.chosen.recall_sum
    np.testing.assert_allclose(
        ours.model.embed_sentences(weighted.dev.sentences), theirs.model.embed_sentences(named), atol=1e-5
    )
