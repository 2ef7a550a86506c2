"""Compares captions of photos that `suggest` chooses with captions of random photos.

    python benchmarks/suggest.py results/flickr8k-frozen --encoders efficientnet_lite2 --text-encoder minilm
    python benchmarks/suggest.py results/flickr8k --captions ../shared/data/languages/zh.tsv

`ncca` is fitted to one caption of each of some training photos. The caption is drawn at random among the captions of
the photo. Without --text-encoder, the text vectors are tf-idf over the vocabulary of these captions alone. The first
caption of each photo of the dev split chooses the parameters. With --tenths, the dev photos among the suggested photos
choose them instead. The recalls are measured on all captions of the test split.

Each line has the sum of six recalls of a selection and a seed, which decides the drawn captions and the random photos.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from interleave import parse_options  # noqa: E402

from pipeline.config.models import FitSettings  # noqa: E402
from pipeline.encoders.tfidf import encode  # noqa: E402
from pipeline.metrics.ranks import rank_scores  # noqa: E402
from pipeline.metrics.retrieval import recall_sum  # noqa: E402
from pipeline.models.linear.accumulation import sum_blocks  # noqa: E402
from pipeline.models.linear.cca import NormalizedCCA  # noqa: E402
from pipeline.models.linear.projection import unit_rows  # noqa: E402
from pipeline.models.linear.selection import choose_photos, choose_representatives  # noqa: E402
from pipeline.models.linear.tuning import PairArrays, PreparedViews, tune  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.features import FeatureRows  # noqa: E402
from pipeline.storage.texts import VectorShard  # noqa: E402
from pipeline.text.tokens import LONGEST_NGRAM, TermSettings  # noqa: E402
from pipeline.text.vocabulary import build_vocabulary  # noqa: E402

RIDGES = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
GRID = FitSettings(
    dimensions=(32, 64, 128, 256), eigenvalue_power=(0.5, 1, 2, 4), image_ridge=RIDGES, text_ridge=RIDGES
)
"""The parameters of `ncca` to try."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Image vectors x (n, D), the split of each image (n,), and m captions in the order of their images.

    `owners` (m,) is the image of each caption. `vectors` (m, d) are their stored text vectors, or None for tf-idf.
    """

    x: np.ndarray
    splits: np.ndarray
    captions: Sequence[str]
    owners: np.ndarray
    vectors: np.ndarray | None

    def of_split(self, split: str) -> np.ndarray:
        """Return the rows of the images of a split that have captions."""
        images = np.unique(self.owners)
        return images[self.splits[images] == split]

    def rows_of(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the captions (k,) of some images, and the position (k,) of the image of each caption."""
        first, last = np.searchsorted(self.owners, images), np.searchsorted(self.owners, images, "right")
        rows = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
        return rows, np.repeat(np.arange(len(images)), last - first)


def read(run: Run, encoders: Sequence[str], text_encoder: str | None, captions: Path | None) -> Collection:
    """Read the vectors of a run, and its captions or the file of lines IMAGE TAB NUMBER TAB CAPTION."""
    manifest = run.manifest
    ids = np.arange(manifest.n_images)
    x = np.hstack([unit_rows(FeatureRows(run.features, name, ids)[:].astype(np.float32)) for name in encoders])
    texts, owners, vectors = manifest.sentences["text"].to_pylist(), manifest.sentence_images, None
    if text_encoder:
        stored = run.layout.sentences(text_encoder)
        shards = [VectorShard(stored.shard(number)).matrix for number in range(manifest.n_shards)]
        vectors = np.concatenate(shards).astype(np.float32)
    if captions:
        image_of = {Path(path).name: row for row, path in enumerate(manifest.images["path"].to_pylist())}
        lines = [line.split("\t") for line in captions.read_text("utf-8").splitlines()]
        known = sorted((image_of[name], text) for name, _, text in lines if name in image_of)
        owners, texts = np.array([image for image, _ in known]), [text for _, text in known]
    return Collection(x, manifest.splits.astype(str), texts, owners, vectors)


def make_synthetic_collection() -> Collection:
    """Make a collection in which image and text vectors are two linear views of a latent vector, with noise."""
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((200, 8))
    x, y = (latent @ rng.standard_normal((2, 8, 15)) + rng.standard_normal((2, 200, 15))).astype(np.float32)
    return Collection(x, np.repeat(["train", "dev", "test"], [120, 40, 40]), [""] * 200, np.arange(200), y)


def measure_selection(collection: Collection, train: np.ndarray, dev: np.ndarray | None, seed: int) -> dict[str, Any]:
    """Fit `ncca` to one caption of each of the images `train`, and measure it on test.

    One caption of each of the images `dev` chooses the parameters. If `dev` is None, the first caption of each image of
    the dev split chooses them.
    """
    rng = np.random.default_rng([seed, 1])

    def draw(images: np.ndarray) -> np.ndarray:
        captions, owners = collection.rows_of(images)
        order = rng.permutation(len(captions))
        return captions[order[np.unique(owners[order], return_index=True)[1]]]

    chosen = {"train": (train, draw(train))}
    if dev is None:
        images = collection.of_split("dev")
        captions, owners = collection.rows_of(images)
        chosen["dev"] = images, captions[np.unique(owners, return_index=True)[1]]
    else:
        chosen["dev"] = dev, draw(dev)
    test = collection.of_split("test")
    captions, owners = collection.rows_of(test)
    vectors = collection.vectors
    if vectors is None:
        settings = TermSettings(True, [], 2, max_characters=LONGEST_NGRAM)
        learned = [collection.captions[int(row)] for row in chosen["train"][1]]
        vocabulary = build_vocabulary(learned, settings, size=10_000, min_count=2, idf=True, normalise=True)
        used = np.unique(np.concatenate([captions, *(rows for _, rows in chosen.values())]))
        vectors = np.zeros((len(collection.captions), len(vocabulary.terms)), np.float32)
        vectors[used] = encode([collection.captions[int(row)] for row in used], vocabulary).toarray()
    pairs = {
        name: PairArrays({"eyes": collection.x[images]}, {"words": vectors[rows]}, np.arange(len(images)))
        for name, (images, rows) in chosen.items()
    }
    view = ImageView(("eyes",), (collection.x.shape[1],), ("l2",))
    text = TextView.of(pairs["train"].sentences, {"words": ("l2",)})
    moments = sum_blocks([pairs["train"]], view, text, runtime.threads())
    tuned = tune(NormalizedCCA, view, text, PreparedViews(moments), pairs["dev"], GRID)
    x = tuned.model.embed_images({"eyes": collection.x[test]})
    y = tuned.model.embed_sentences({"words": vectors[captions]})
    reached = recall_sum(rank_scores(x @ y.T, owners))
    axes = ("image_ridge", "text_ridge", "dimensions", "eigenvalue_power")
    return {"recall_sum": round(reached, 1), "chosen": {axis: getattr(tuned.chosen, axis) for axis in axes}}


def measure_all(
    collection: Collection, counts: Sequence[int], seeds: Sequence[int], tenths: bool
) -> Iterator[dict[str, Any]]:
    """Yield a line for each number of photos, seed and selection."""
    pool = collection.of_split("train")
    x = collection.x[pool]
    for count in counts:
        fixed = None if tenths else pool[choose_representatives(x, count)]
        for seed in seeds:
            shuffled = pool[np.random.default_rng([seed, count]).permutation(len(pool))[:count]]
            if fixed is None:
                suggested = choose_photos({"all": x}, count, seed)
                tenth = len(suggested.dev)
                selections = {
                    "random": (shuffled[: count - 2 * tenth], shuffled[count - tenth :]),
                    "suggest": (pool[suggested.train], pool[suggested.dev]),
                }
            else:
                selections = {"random": (shuffled, None), "suggest": (fixed, None)}
            for name, (train, dev) in selections.items():
                yield {"name": name, "photos": count, "seed": seed, **measure_selection(collection, train, dev, seed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("--encoders", nargs="+", help="Image encoders. [default: all encoders of the run]")
    parser.add_argument("--text-encoder", help="Text encoder with dense vectors. [default: tf-idf]")
    parser.add_argument("--captions", type=Path, help="Captions that replace the captions of the run.")
    parser.add_argument("--tenths", action="store_true", help="Choose the parameters on a tenth of the photos.")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 300], help="Numbers of photos.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parse_options(parser, globals(), run=None, counts=[40], seeds=[0])
    if given.run:
        run = Run(given.run)
        encoders = given.encoders or [entry.name for entry in run.config.encoders]
        collection = read(run, encoders, given.text_encoder, given.captions)
    else:
        collection = make_synthetic_collection()
    sums: dict[tuple[int, str], list[float]] = {}
    for line in measure_all(collection, given.counts, given.seeds, given.tenths):
        print(json.dumps(line, default=float), flush=True)
        sums.setdefault((line["photos"], line["name"]), []).append(line["recall_sum"])
    for (count, name), values in sums.items():
        print(f"{count} photos, {name}: {mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0:.1f}")


if __name__ == "__main__":
    main()
