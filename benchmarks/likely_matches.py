"""Measures the line of likely matches that `jointspace calibrate` sets with captions of 50 photos.

    python benchmarks/likely_matches.py results/flickr8k ncca
    python benchmarks/likely_matches.py results/flickr8k ncca ncca-csls --scores

The index has the photos of dev and test, which did not train the model. Each draw calibrates with one caption for each
of 50 random photos, and counts how often the photo of another caption is a likely match. For further lines, the photos
are divided into kinds by k-means on their vectors. The index is calibrated, and then one or several kinds are added to
the index or removed from it. The coverage is measured on all photos of the changed index.

With `--scores`, dev sets the line for the photos of test. Several normalised scores take the place of the standardised
score of pipeline.index.calibration.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402

from pipeline.config.results import IndexSettings  # noqa: E402
from pipeline.index.calibration import Calibration, compare  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.run.reading.calibration_pairs import choose_background  # noqa: E402

PAIRS = 50
TESTED = 1000
"""Maximum number of captions with which a draw is tested. If the photos have fewer captions, all are used."""
KINDS = 5
"""Number of kinds into which the photos are divided. A kind is a cluster of k-means."""
CHANGED_KINDS = (1, 2, 3)
"""Numbers of kinds that are added to the index together, or removed from it together."""
SOFTNESS = 0.8
"""Temperature of the soft maximum, in standard deviations of the scores of a query. The value was chosen on dev."""
PROMISED = 0.835
"""The coverage that nine out of ten draws should reach. Coverage is the share of captions whose photo is a likely
match.
"""


class Photos:
    """The vectors of the `images` (n, c) and `sentences` (m, c) of an index. `owners` (m,) has the row of the image of
    each sentence, and `metric` is the metric of the model.
    """

    def __init__(self, images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str) -> None:
        self.images = images
        self.sentences = sentences
        self.owners = owners
        self.metric = metric

    def calibrate(self, among: np.ndarray, rng: np.random.Generator) -> tuple[Calibration, np.ndarray]:
        """Calibrate an index of the images `among` (k,), which are row numbers, with one random caption of each of
        PAIRS random images among them.

        Return the calibration and the row numbers of the PAIRS images.
        """
        described = np.intersect1d(among, self.owners)
        drawn = np.sort(rng.choice(described, PAIRS, replace=False))
        sentences = np.array([rng.choice(np.flatnonzero(self.owners == image)) for image in drawn])
        images = self.images[choose_background(drawn, among, rng)]
        coverage = IndexSettings().coverage
        return Calibration.fit(images, self.sentences[sentences], np.arange(PAIRS), self.metric, coverage), drawn

    def test(self, calibration: Calibration, among: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
        """Return the coverage (from 0 to 1), the mean number of likely matches, and the share of captions, from 0 to 1,
        that are judged to be out of domain.

        All three are measured with at most TESTED random captions of the images `among` (k,), in an index of these
        images.
        """
        asked = np.flatnonzero(np.isin(self.owners, among))
        asked = rng.choice(asked, min(TESTED, len(asked)), replace=False)
        found = []
        for sentence in asked:
            query = self.sentences[sentence : sentence + 1]
            scores = np.sort(compare(query, self.images[among], self.metric)[0])[::-1].tolist()
            right = compare(query, self.images[self.owners[[sentence]]], self.metric)[0].tolist()
            judged = calibration.judge(query, scores, None, (0, 0))
            found.append((calibration.judge(query, right, None, (0, 0)).likely, judged.likely, judged.off_topic))
        coverage, size, off_topic = np.mean(found, axis=0).tolist()
        return coverage, size, off_topic


def read(run: Run, model: str, splits: Sequence[str] = ("dev", "test")) -> Photos:
    """Read the vectors in the space of `model` of all photos with captions in `splits`, and of the captions of these
    photos.
    """
    embeddings = run.embeddings(model)
    images = []
    sentences = []
    owners = []
    for split in splits:
        pairs = run.pairs(split)
        owners.append(pairs.owners + sum(map(len, images)))
        images.append(embeddings.read("images", pairs.image_id))
        sentences.append(embeddings.read("sentences", pairs.sentence_id))
    return Photos(np.concatenate(images), np.concatenate(sentences), np.concatenate(owners), embeddings.metric)


def make_synthetic_photos(seed: int = 0) -> Photos:
    """Make 240 synthetic photos with one caption each. The vector of a caption is the vector of its photo with added
    noise.
    """
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((240, 8)).astype(np.float32)
    sentences = images + rng.standard_normal(images.shape).astype(np.float32)
    return Photos(images, sentences, np.arange(len(images)), "inner_product")


def measure_draws(photos: Photos, draws: int) -> dict[str, float]:
    """Calibrate `draws` times with captions of random photos, and test each calibration with captions of the other
    photos.

    Return the mean `coverage` over the draws and its `tenth_percentile`, both in percent, and the share of draws that
    reach PROMISED (`draws_above_83.5`, from 0 to 1). Also return the mean number of likely matches of a caption
    (`size`), and the percentage of captions that are judged to be out of domain (`out_of_domain`).
    """
    rng = np.random.default_rng(0)
    every = np.arange(len(photos.images))
    found = []
    for _ in range(draws):
        calibration, drawn = photos.calibrate(every, rng)
        found.append(photos.test(calibration, np.setdiff1d(every, drawn), rng))
    coverage, size, off_topic = np.array(found).T
    return {
        "coverage": round(100 * coverage.mean(), 1),
        "tenth_percentile": round(100 * float(np.quantile(coverage, 0.1)), 1),
        "draws_above_83.5": round(float(np.mean(coverage >= PROMISED)), 3),
        "size": round(size.mean(), 1),
        "out_of_domain": round(100 * off_topic.mean(), 1),
    }


def measure_changes(photos: Photos, count: int, draws: int) -> dict[str, dict[str, object]]:
    """Calibrate an index before `count` of the KINDS kinds of photos are added or removed, and test the calibration
    after the change.

    Return `added` and `removed`, each with the `coverage` after this change, and the share of all photos that belong to
    the changed kinds (`changed`), both in percent. Coverage and share are given as [minimum, mean, maximum] over all
    choices of `count` kinds. The coverage of a choice is the mean over `draws` random draws.
    """
    rng = np.random.default_rng(0)
    clusters = faiss.Kmeans(photos.images.shape[1], KINDS, seed=1)
    clusters.train(photos.images)
    labels = clusters.index.search(photos.images, 1)[1][:, 0]
    every = np.arange(len(photos.images))
    changes: dict[str, dict[str, object]] = {}
    for change in ("added", "removed"):
        shares = []
        coverages = []
        for kinds in combinations(range(KINDS), count):
            others = np.flatnonzero(~np.isin(labels, kinds))
            before, after = (others, every) if change == "added" else (every, others)
            tested = [photos.test(photos.calibrate(before, rng)[0], after, rng)[0] for _ in range(draws)]
            shares.append(100 * (1 - len(others) / len(every)))
            coverages.append(100 * float(np.mean(tested)))
        changes[change] = {"changed": summarise(shares), "coverage": summarise(coverages)}
    return changes


NORMALISATIONS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "standardised": lambda scores: (scores.mean(axis=1), scores.std(axis=1)),
    "minus mean": lambda scores: (scores.mean(axis=1), np.ones(len(scores))),
    "minus mean of the 10 best": lambda scores: (mean_of_best(scores, 10), np.ones(len(scores))),
    "minus mean of the 100 best": lambda scores: (mean_of_best(scores, 100), np.ones(len(scores))),
    "minus soft maximum": lambda scores: (soft_maximum(scores), scores.std(axis=1)),
}
"""Mapping from a name to a function that normalises the scores of each query. The function gets the scores (q, b) of q
queries with b other photos, and returns an offset (q,) and a divisor (q,). A normalised score is (score - offset) /
divisor.
"""


def mean_of_best(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the mean (q,) of the `count` largest scores of each row of `scores` (q, b), or of all scores if b is
    smaller.
    """
    count = min(count, scores.shape[1])
    return np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)


def soft_maximum(scores: np.ndarray) -> np.ndarray:
    """Return the soft maximum (q,) of each row s of `scores` (q, b): T log(mean(exp(s / T))), where the temperature T
    is SOFTNESS times the standard deviation of the row.
    """
    temperature = SOFTNESS * scores.std(axis=1, keepdims=True)
    best = scores.max(axis=1, keepdims=True)
    means = np.exp((scores - best) / temperature).mean(axis=1)
    return best[:, 0] + temperature[:, 0] * np.log(means)


def measure_scores(dev: Photos, test: Photos) -> dict[str, dict[str, float]]:
    """Return measures for each of NORMALISATIONS. The captions of dev set the line of likely matches.

    `coverage` is the coverage on test in percent. `size` is the mean number of likely matches of a caption of test
    among the photos of test. `size_on_dev` is the mean number of likely matches of a caption of dev among the photos of
    dev, without the right photo.
    """
    products = compare(dev.sentences, dev.images, dev.metric)
    right = np.take_along_axis(products, dev.owners[:, None], axis=1)[:, 0]
    others = products[np.arange(len(dev.images)) != dev.owners[:, None]].reshape(len(right), -1)
    background = compare(test.sentences, dev.images, dev.metric)
    gallery = compare(test.sentences, test.images, test.metric)
    wanted = np.take_along_axis(gallery, test.owners[:, None], axis=1)[:, 0]
    measured = {}
    for name, normalise in NORMALISATIONS.items():
        offset, divisor = normalise(others)
        line = np.sort((right - offset) / divisor)[int((1 - IndexSettings().coverage) * (len(right) + 1)) - 1]
        least = offset + line * divisor
        size_on_dev = np.mean((others >= least[:, None]).sum(axis=1))
        offset, divisor = normalise(background)
        least = offset + line * divisor
        measured[name] = {
            "size_on_dev": round(float(size_on_dev), 1),
            "coverage": round(100 * float(np.mean(wanted >= least)), 1),
            "size": round(float(np.mean((gallery >= least[:, None]).sum(axis=1))), 1),
        }
    return measured


def summarise(values: Sequence[float]) -> list[float]:
    """Return [minimum, mean, maximum] of `values`, rounded to one decimal."""
    return [round(value, 1) for value in (min(values), sum(values) / len(values), max(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("models", nargs="*", help="Names of models of the run with one vector per photo.")
    parser.add_argument("--scores", action="store_true", help="Compare normalised scores.")
    parser.add_argument("--draws", type=int, default=200, help="Number of random draws of pairs.")
    given = parse_options(
        parser, globals(), run=None, models=["synthetic"], draws=3, TESTED=20, KINDS=2, CHANGED_KINDS=(1,)
    )
    run = Run(given.run) if given.run else None
    for model in given.models:
        if given.scores:
            dev = read(run, model, ["dev"]) if run else make_synthetic_photos(1)
            test = read(run, model, ["test"]) if run else make_synthetic_photos(2)
            print(json.dumps({"name": model, **measure_scores(dev, test)}), flush=True)
            continue
        photos = read(run, model) if run else make_synthetic_photos()
        about = {"name": model, "photos": len(photos.images), "pairs": PAIRS, "draws": given.draws}
        print(json.dumps({**about, **measure_draws(photos, given.draws)}), flush=True)
        for count in CHANGED_KINDS:
            for change, measured in measure_changes(photos, count, max(1, given.draws // 20)).items():
                print(json.dumps({"name": f"{model}, {count} of {KINDS} kinds {change}", **measured}), flush=True)


if __name__ == "__main__":
    main()
