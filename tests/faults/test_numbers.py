"""Numbers that no sound encoder gives, through a model of every family: a message with the cause, or unit vectors."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from small_settings import make_grid
from synthetic_tasks import SyntheticRegions, make_fit_task, make_task_of

from pipeline.config.registry import model_spec
from pipeline.errors import JointspaceError
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import train

VIEW = ImageView(("one", "two"), (10, 6), ())
GRID = make_grid([4], [0.1], [0.1], [1])


def degenerate(features: np.ndarray) -> np.ndarray:
    """With a constant column, rows of zeros, and columns that are there twice."""
    features = features.copy()
    features[:, 2] = 1
    features[:20] = 0
    features[:, 5:] = features[:, :5]
    return features


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda features: np.where(np.arange(len(features))[:, None] == 3, value, features).astype(np.float32)


FAMILIES = ("ncca", "kcca", "wsabie-sgd", "gru", "dvsa")
"""A model of each family of computations: moments, kernels, descent, trained, trained on sets."""
FEATURES = {
    "nan": put(np.nan),
    "infinite": put(np.inf),
    "degenerate": degenerate,
    "huge": lambda x: x * np.float32(1e30),
    "denormal": lambda x: x * np.float32(1e-42),
}


def embed_fitted(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Fit on spoilt pairs, embed sound and spoilt ones."""
    task, sound = make_fit_task(name, view=VIEW, change=change)
    fitted = model_spec(name).load().fit(replace(task, grid=GRID)).model
    spoilt = {**sound.features, "one": change(np.asarray(sound.features["one"], np.float32))}
    images = [fitted.embed_images(features) for features in (sound.features, spoilt)]
    return [*images, fitted.embed_sentences(sound.sentences)]


def embed_trained(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Train two epochs on images, and regions, that are spoilt, embed sound and spoilt ones."""
    task = make_task_of(name, train=90, dev=30, epochs=2, patience=2)
    features = {**task.train.features, "one": change(np.asarray(task.train.features["one"], np.float32))}
    images = task.train.regions.images
    rows = np.concatenate(images)
    rows[:, :10] = change(rows[:, :10].astype(np.float32))
    regions = SyntheticRegions(np.split(rows, np.cumsum([len(image) for image in images])[:-1]))
    spoilt = replace(task.train, features=features, regions=regions)
    trained = train(model_spec(name).load(), replace(task, train=spoilt), None, lambda training: None).model
    more = [(task.dev.regions,), (regions,)] if trained.multi_vector else [(), ()]
    found = [trained.embed_images(x, *own) for x, own in zip((task.dev.features, features), more, strict=True)]
    found.append(trained.embed_sentences(task.dev.sentences))
    return [np.asarray(one.vectors) for one in found] if trained.multi_vector else found


def embed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {"train": embed_trained, "fit": embed_fitted}[model_spec(name).made_by](name, change)


NOT_FINITE = {
    "ncca": "the moments of the image view are not finite",
    "kcca": "the training rows of a view are not finite",
    "wsabie-sgd": "the features of training image 3 .counted from 0. are not finite",
    "gru": r"the loss is nan in epoch 0, batch \d+ .* check the features of these sentences",
    "dvsa": r"the loss is nan in epoch 0, batch \d+ .* check the features of these sentences",
}
"""Family -> its message for features that are no numbers."""
MESSAGES = {
    **{(name, case): message for name, message in NOT_FINITE.items() for case in ("nan", "infinite")},
    ("wsabie-sgd", "huge"): "diverged at the learning rate .* scale the features to unit length",
}
"""Family and case -> its message. All others are learned from."""


@pytest.mark.parametrize("case", FEATURES)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_case_is_learned_from_or_refused_by_its_cause(name: str, case: str) -> None:
    if (name, case) in MESSAGES:
        with pytest.raises(JointspaceError, match=MESSAGES[name, case]):
            embed(name, FEATURES[case])
        return
    for block in embed(name, FEATURES[case]):
        assert np.isfinite(block).all(), case
        assert name == "dvsa" or np.linalg.norm(block, axis=1).min() > 0.99, "vectors of no length"
