"""How well phrases and regions find each other within their image and among those of a whole split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.evaluate.phrases import Similarities, judge_pairs, named_boxes, pairs_within, rank_among_all, rank_within
from pipeline.metrics.retrieval import Bootstrap, measure

CHANCE_DIM = 16
"""Dimensions of the random vectors that the chance level is measured with."""


@dataclass(frozen=True)
class PhraseSet:
    """p noun phrases: their words, their heads, the image of each (p,), ascending, and unit `vectors` (p, c)."""

    texts: Sequence[str]
    heads: Sequence[str]
    images: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class RegionSet:
    """r regions, none a whole image: the image of each (r,), ascending, `boxes` (r, 4), unit `vectors` (r, c)."""

    images: np.ndarray
    boxes: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class Gold:
    """g boxes (g, 4) with the image (g,) and the label of each, and what each label may be called."""

    images: np.ndarray
    boxes: np.ndarray
    labels: Sequence[str]
    names: Mapping[str, frozenset[str]]


def measure_phrases(
    phrases: PhraseSet, regions: RegionSet, gold: Gold, least: float, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The share of right correspondences, and the ranking in both directions, each beside its chance level; and the
    ranks that these are measured from, as `ranked_names` names them.

    A phrase is named where a gold box of its image has a label for it; a region is right for it that overlaps such a
    box by at least `least`. `correspondence`: of the named phrases, those whose most similar region is right.
    `image`: ranks among the regions, or noun phrases, of the image. `split`: among all regions, or all named phrases
    of different words, where those of one image or another that were called so are right (Niu et al. 2017, Table 4).
    Raises UsageError where no phrase is named.
    """
    named = named_boxes(phrases.texts, phrases.heads, phrases.images, gold.labels, gold.images, gold.names)
    within = pairs_within(phrases.images, regions.images)
    right = judge_pairs(within, regions.boxes, named, gold.boxes, least)
    if not right.any():
        raise UsageError(
            "no region is right for any noun phrase: no box's label names one, or no region overlaps such a box;"
            " correct phrases.names, or give boxes with labels as --boxes"
        )
    owning = np.unique(named[:, 0])
    texts, first, text_of = np.unique(np.array(phrases.texts)[owning], return_index=True, return_inverse=True)
    place = np.full(len(phrases.texts), -1)
    place[owning] = text_of
    matched = within[right]
    together = np.unique(np.stack([place[matched[:, 0]], matched[:, 1]], axis=1), axis=0)
    task = _Task(within, right, owning[first], together)
    owners = {
        ("phrase_to_region", "image"): phrases.images,
        ("phrase_to_region", "split"): np.arange(len(texts)),
        ("region_to_phrase", "image"): regions.images,
        ("region_to_phrase", "split"): regions.images,
    }

    rng = np.random.default_rng(bootstrap.seed)
    random = task.ranks(*(rng.standard_normal((len(side), CHANCE_DIM)) for side in (phrases.texts, regions.images)))
    ranks = task.ranks(phrases.vectors, regions.vectors)
    measured: dict[str, dict[str, Any]] = {}
    kept: dict[str, np.ndarray] = {}
    for (direction, scope), own in owners.items():
        chance = _measure(random[direction, scope], own, Bootstrap(0, bootstrap.seed))
        found = _measure(ranks[direction, scope], own, bootstrap)
        measured.setdefault(direction, {})[scope] = {**found, "chance": chance}
        ranked = ranks[direction, scope] > 0
        for name, array in zip(ranked_names(direction, scope), (ranks[direction, scope], own), strict=True):
            kept[name] = array[ranked].astype(np.int32)

    right_of, all_of = (
        np.bincount(part, minlength=len(phrases.texts))[owning] for part in (matched[:, 0], within[:, 0])
    )
    first_right = ranks["phrase_to_region", "image"][owning] == 1
    value = {
        "n_phrases": len(phrases.texts),
        "n_named": len(owning),
        "n_without_right_region": int((right_of == 0).sum()),
        "n_texts": len(texts),
        "n_regions": len(regions.images),
        "correspondence": {
            "right": 100 * float(first_right.mean()),
            "chance": 100 * float((right_of / np.maximum(all_of, 1)).mean()),
        },
        **measured,
    }
    return value, kept


def ranked_names(direction: str, scope: str) -> tuple[str, str]:
    """What the ranks (k,) of a direction are called, and the images (k,) of what was ranked: of a phrase in the split,
    which may be of several, its own number."""
    return f"{direction}.{scope}", f"{direction}.{scope}.images"


@dataclass(frozen=True)
class _Task:
    """What is ranked: pairs `within` (k, 2) an image, of a phrase and a region, and which of them are `right` (k,); the
    phrases `distinct` (t,) that stand for the different words, and the pairs `together` of one of these and a region.
    """

    within: np.ndarray
    right: np.ndarray
    distinct: np.ndarray
    together: np.ndarray

    def ranks(self, phrases: np.ndarray, regions: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
        """(direction, scope) -> ranks of all that asks; 0 where nothing is right."""
        scores, chosen = Similarities(phrases, regions).of(self.within), phrases[self.distinct]
        near = (rank_within(scores, self.right, self.within[:, i], len(x)) for i, x in enumerate((phrases, regions)))
        return {
            **dict(zip((("phrase_to_region", "image"), ("region_to_phrase", "image")), near, strict=True)),
            ("phrase_to_region", "split"): rank_among_all(Similarities(chosen, regions), self.together),
            ("region_to_phrase", "split"): rank_among_all(Similarities(regions, chosen), self.together[:, ::-1]),
        }


def _measure(ranks: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """The measures of the ranks that there are, of `n` that asked; `owners` are the units that are resampled."""
    ranked = ranks > 0
    units = np.unique(owners[ranked], return_inverse=True)[1]
    return {"n": int(ranked.sum()), **measure(ranks[ranked], units, bootstrap)}
