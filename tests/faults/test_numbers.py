"""Numbers that no sound encoder gives, through a model of every family: an error that says so, or finite vectors."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from made_up_settings import TRANSFER, make_grid, own_settings, text_view
from scipy import sparse

from pipeline.config.registry import model_spec
from pipeline.errors import JointspaceError
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, ViewBlock

DIM, TERMS, TRAIN, DEV = 10, 12, 90, 30
VIEW = ImageView(("one",), (DIM,), ())
GRID = make_grid([4], [0.1], [0.1], [1])


def spoil(function: Callable[[np.ndarray], None]) -> Callable[[np.ndarray], np.ndarray]:
    def spoilt(features: np.ndarray) -> np.ndarray:
        features = features.copy()
        function(features)
        return features

    return spoilt


def put(rows: slice, value: float | np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return spoil(lambda features: features.__setitem__(rows, value))


FAMILIES = ("ncca", "kcca", "wsabie-sgd", "gru", "dvsa")
"""A model of each family of computations: moments, kernels, descent, trained, trained on sets."""
FEATURES = {
    "nan": put(slice(3, 4), np.nan),
    "infinite": put(slice(3, 4), np.inf),
    "constant column": spoil(lambda x: x[:, 2].fill(1)),
    "zero rows": put(slice(0, 20), 0),
    "duplicate columns": spoil(lambda x: x.__setitem__((slice(None), slice(5, None)), x[:, :5])),
    "huge": lambda x: x * np.float32(1e30),
    "denormal": lambda x: x * np.float32(1e-42),
}


def make_pairs(change: Callable[[np.ndarray], np.ndarray], n: int, seed: int) -> tuple[np.ndarray, sparse.csr_array]:
    rng = np.random.default_rng(seed)
    hidden = rng.random((n, 4))
    x = (hidden @ np.random.default_rng(9).random((4, DIM))).astype(np.float32)
    words = np.maximum(hidden @ np.random.default_rng(8).standard_normal((4, TERMS)), 0)
    return change(x), sparse.csr_array(words.astype(np.float32))


def embed_fitted(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Fit on spoilt pairs, embed sound and spoilt ones."""
    model = model_spec(name).load()
    x, words = make_pairs(change, TRAIN, seed=0)
    own = np.arange(TRAIN)
    block = ViewBlock(VIEW.stack({"one": x}), words, own)
    accumulator = MomentsAccumulator(DIM, TERMS, threads=1)
    accumulator.add(block.x, block.y, block.owners)
    sound, dev_words = make_pairs(lambda features: features, DEV, seed=1)
    dev_texts = {"tfidf": dev_words}
    dev = PairArrays({"one": sound}, dev_texts, np.arange(DEV))
    sets = Sets(accumulator.result(), None, lambda: [block], None)
    task = FitTask("target", VIEW, text_view(TERMS), sets, dev, GRID, TRANSFER, own_settings(name), seed=0)
    fitted = model.fit(task).model
    return [fitted.embed_images({"one": sound}), fitted.embed_images({"one": x}), fitted.embed_sentences(dev_texts)]


def embed_trained(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Train two epochs on spoilt pairs, embed sound and spoilt ones."""
    from made_up_pairs import make_task_of

    from pipeline.models.neural.task import train

    model = model_spec(name).load()
    task = make_task_of(name, train=TRAIN, dev=DEV, epochs=2, patience=2)
    first, *others = task.view.encoders
    features = task.train.features
    spoilt = {first: change(np.asarray(features[first], np.float32)), **{other: features[other] for other in others}}
    task = replace(task, train=replace(task.train, features=spoilt))
    trained = train(model, task, None, lambda training: None).model
    dev = task.dev
    return [trained.embed_images(dev.features), trained.embed_images(spoilt), trained.embed_sentences(dev.sentences)]


def embed_sets(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Train two epochs on images and regions that are spoilt, embed sound and spoilt ones."""
    from made_up_regions import MadeUpRegions, make_task

    from pipeline.models.neural.task import train

    model, task = model_spec(name).load(), make_task(name, train=TRAIN, dev=DEV, epochs=2, sum="mean-words")
    features = {**task.train.features, "one": change(np.asarray(task.train.features["one"], np.float32))}
    images = task.train.regions.images
    rows = np.concatenate(images)
    rows[:, :DIM] = change(rows[:, :DIM].astype(np.float32))
    regions = MadeUpRegions(np.split(rows, np.cumsum([len(image) for image in images])[:-1]))
    task = replace(task, train=replace(task.train, features=features, regions=regions))
    trained = train(model, task, None, lambda training: None).model
    dev = task.dev
    sets = [trained.embed_images(dev.features, dev.regions), trained.embed_images(features, regions)]
    return [np.asarray(one.vectors) for one in (*sets, trained.embed_sentences(dev.sentences))]


def embed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    spec = model_spec(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if spec.multi_vector:
            return embed_sets(name, change)
        return {"train": embed_trained, "fit": embed_fitted}[spec.made_by](name, change)


@pytest.mark.parametrize("case", FEATURES)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_error_that_says_so_or_finite_vectors(name: str, case: str) -> None:
    try:
        vectors = embed(name, FEATURES[case])
    except JointspaceError as error:
        assert str(error)
        assert case not in ("zero rows", "duplicate columns", "constant column"), error
        return
    for block in vectors:
        assert np.isfinite(block).all(), case
    assert case not in ("nan", "infinite"), "what is no number was learned from"
