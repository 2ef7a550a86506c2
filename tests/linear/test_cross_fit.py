"""Which captions are wrong, on pairs of a latent vector of which some were exchanged."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.models.linear.cross_fit import FOLDS, cross_fit, deal_folds
from pipeline.models.linear.views import ImageView, TextView

IMAGES, CAPTIONS, SHARE = 500, 3, 0.1


def make_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Photographs (n, 30) and captions (3 n, 20), three of each photograph after another."""
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((IMAGES, 8))
    x = latent @ rng.standard_normal((8, 30)) + rng.standard_normal((IMAGES, 30))
    y = np.repeat(latent, CAPTIONS, axis=0) @ rng.standard_normal((8, 20)) + rng.standard_normal((len(latent) * 3, 20))
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize("whole", [True, False], ids=["all captions", "single ones"])
def test_exchanged_captions_come_first_and_are_counted(whole: bool) -> None:
    x, y = make_pairs()
    owners, rng = np.repeat(np.arange(IMAGES), CAPTIONS), np.random.default_rng(1)
    size = CAPTIONS if whole else 1
    moved = rng.choice(len(y) // size, int(SHARE * len(y) / size), replace=False)
    groups = np.arange(len(y)).reshape(-1, size)
    groups[moved] = groups[np.roll(moved, 1)]
    y, folds = y[groups.ravel()], deal_folds(np.array([[0, 1], [1, 2]]), IMAGES, seed=0)

    def blocks(fold: int) -> Iterator[Any]:
        image_id, sentence_id = np.flatnonzero(folds == fold), np.flatnonzero(folds[owners] == fold)
        places = np.searchsorted(image_id, owners[sentence_id])
        shown = {"features": {"eyes": x[image_id]}, "sentences": {"words": y[sentence_id]}, "owners": places}
        yield SimpleNamespace(image_id=image_id, sentence_id=sentence_id, **shown)

    scores = cross_fit(blocks, ImageView(("eyes",), (30,), ()), TextView.of({"words": y}), threads=1)[not whole]
    assert len(set(folds[:3])) == 1 and set(folds) == set(range(FOLDS))
    assert sorted(scores.image_id if whole else scores.sentence_id) == list(range(len(y) // size))
    wrong = np.isin(scores.image_id if whole else scores.sentence_id, moved)
    suspects = np.argsort(scores.scores)[: scores.wrong]
    assert wrong[suspects].mean() > 0.8 and abs(len(suspects) / len(moved) - 1) < 0.3
    assert np.median(scores.rank[~wrong]) == 1 and np.median(scores.rank[wrong] / scores.rivals[wrong]) > 0.3
    others = {image: set(np.flatnonzero(owners == image)) for image in range(IMAGES)}
    assert not any(rather in others[image] for image, rather in zip(scores.image_id, scores.rather, strict=True))
