"""Features with extreme values: every family of models names the cause in an error, or gives finite vectors. The
vectors have unit length, except the vectors of a multi-vector model."""

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
    """Return a copy of the features (n, 10) after three changes: column 2 becomes 1, then the first 20 rows become 0,
    and then the last five columns become copies of the first five columns."""
    features = features.copy()
    features[:, 2] = 1
    features[:20] = 0
    features[:, 5:] = features[:, :5]
    return features


def fill_row(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that returns a float32 copy of features (n, D) with `value` at every place of row 3."""
    return lambda features: np.where(np.arange(len(features))[:, None] == 3, value, features).astype(np.float32)


FAMILIES = ("ncca", "kcca", "wsabie-sgd", "gru", "dvsa")
"""One model per family: from moments, kernels, gradient descent, a trained network, and a trained region model."""
CHANGES = {
    "nan": fill_row(np.nan),
    "infinite": fill_row(np.inf),
    "degenerate": degenerate,
    "huge": lambda x: x * np.float32(1e30),
    "denormal": lambda x: x * np.float32(1e-42),
}
"""Name of a case -> the function that changes the features."""


def embed_fitted(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Fit the model `name` on features that `change` has changed.

    Returns the embeddings of the original images, of the images with changed features, and of the sentences.
    """
    task, sound = make_fit_task(name, view=VIEW, change=change)
    fitted = model_spec(name).load().fit(replace(task, grid=GRID)).model
    changed = {**sound.features, "one": change(np.asarray(sound.features["one"], np.float32))}
    images = [fitted.embed_images(features) for features in (sound.features, changed)]
    return [*images, fitted.embed_sentences(sound.sentences)]


def embed_trained(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Train a model for two epochs on changed features of images and regions.

    Returns the embeddings of the original dev images, the changed training images, and the dev sentences.
    """
    task = make_task_of(name, train=90, dev=30, epochs=2, patience=2)
    features = {**task.train.features, "one": change(np.asarray(task.train.features["one"], np.float32))}
    images = task.train.regions.images
    rows = np.concatenate(images)
    rows[:, :10] = change(rows[:, :10].astype(np.float32))
    regions = SyntheticRegions(np.split(rows, np.cumsum([len(image) for image in images])[:-1]))
    changed = replace(task.train, features=features, regions=regions)
    trained = train(model_spec(name).load(), replace(task, train=changed), None, lambda training: None).model
    more = [(task.dev.regions,), (regions,)] if trained.multi_vector else [(), ()]
    found = [trained.embed_images(x, *own) for x, own in zip((task.dev.features, features), more, strict=True)]
    found.append(trained.embed_sentences(task.dev.sentences))
    return [np.asarray(one.vectors) for one in found] if trained.multi_vector else found


def embed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Fit or train the model `name` on features that `change` has changed, without warnings.

    Returns three arrays: the embeddings of original images, of images with changed features, and of sentences.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {"train": embed_trained, "fit": embed_fitted}[model_spec(name).made_by](name, change)


NOT_FINITE = {
    "ncca": "the moments of the image view are not finite",
    "kcca": "or the training captions, have features that are not finite",
    "wsabie-sgd": "the features of training image 3 .counted from 0. are not finite",
    "gru": r"the loss is nan in epoch 0, batch \d+ .* check the features of these sentences",
    "dvsa": r"the loss is nan in epoch 0, batch \d+ .* check the features of these sentences",
}
"""Model -> a pattern of its error for features that are not finite."""
MESSAGES = {
    **{(name, case): message for name, message in NOT_FINITE.items() for case in ("nan", "infinite")},
    ("wsabie-sgd", "huge"): "diverged at the learning rate .* scale the features to unit length",
}
"""Model and case -> a pattern of the error. In all other cases, the model must give finite vectors."""


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_extreme_features_give_unit_vectors_or_an_error_with_the_cause(name: str, case: str) -> None:
    if (name, case) in MESSAGES:
        with pytest.raises(JointspaceError, match=MESSAGES[name, case]):
            embed(name, CHANGES[case])
        return
    for block in embed(name, CHANGES[case]):
        assert np.isfinite(block).all(), case
        assert name == "dvsa" or np.linalg.norm(block, axis=1).min() > 0.99, "a vector does not have unit length"
