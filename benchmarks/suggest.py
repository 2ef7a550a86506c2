"""Compares captions of photos that `suggest` chooses with captions of random photos.

    python benchmarks/suggest.py results/flickr8k-frozen --encoders efficientnet_lite2 --text-encoders minilm
    python benchmarks/suggest.py results/flickr8k --encoders mobilenet_v2 squeezenet1_0 --captions zh.tsv
    python benchmarks/suggest.py results/hieroglyphs --text-encoders tfidf minilm --tenths --counts 50 100 300 1000

Models are fitted to some training photos. Each photo has one caption, which is drawn from its captions at random. The
vocabulary of tf-idf has the words of these captions alone. `ncca` tries the settings of `fit` in the configuration of
the run, and `ncca-fixed` has fixed settings. Other methods are methods of `jointspace bench`. The first caption of each
photo of the dev split chooses the settings. With --tenths, a tenth of the photos chooses the settings instead, and
another tenth is not used, as if it were set aside for test. The recalls are measured on all captions of the test split.

Each line has the recalls of a selection, a method and a seed. The seed decides which captions and which photos are
drawn.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from interleave import parse_options  # noqa: E402

from pipeline.encoders.tfidf import encode  # noqa: E402
from pipeline.models.bench import COLUMNS, METHODS, Bench, Method, compare_methods, line_of  # noqa: E402
from pipeline.models.linear.projection import unit_rows  # noqa: E402
from pipeline.models.linear.selection import choose_photos, choose_representatives  # noqa: E402
from pipeline.models.linear.tuning import PairArrays  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.features import FeatureRows  # noqa: E402
from pipeline.storage.texts import VectorShard  # noqa: E402
from pipeline.text.tokens import LONGEST_NGRAM, TermSettings  # noqa: E402
from pipeline.text.vocabulary import build_vocabulary  # noqa: E402

TFIDF = "tf-idf"
"""Name of the tf-idf vectors of captions. The vectors are computed again for each set of training captions, because
their terms come from these captions.
"""
RECALLS = ["_".join(column) for column in COLUMNS]
"""The keys of the recalls in a line of output."""
FIXED = {"dimensions": (192,), "eigenvalue_power": (2.0,), "image_ridge": (10.0,), "text_ridge": (3.0,)}
"""Settings of `ncca-fixed`. With all dev photos of Flickr8k and 50 or 100 captions for training, `ncca` often chose
these settings.
"""


@dataclass(frozen=True, eq=False)
class Collection:
    """A collection of n images and m captions. `features` maps the name of an image encoder to the features (n, dim),
    and `splits` (n,) has the split of each image. The captions are in the order of their images.

    `owners` (m,) has the row of the image of each caption. `vectors` maps the name of a text encoder to the text
    vectors (m, dim). If `terms` is true, tf-idf vectors are used as well. `steps` and `text_steps` are the steps of
    normalisation of the features and of the text vectors.
    """

    features: Mapping[str, np.ndarray]
    steps: tuple[str, ...] | tuple[tuple[str, ...], ...]
    splits: np.ndarray
    captions: Sequence[str]
    owners: np.ndarray
    vectors: Mapping[str, np.ndarray]
    text_steps: Mapping[str, Sequence[str]]
    terms: bool

    def of_split(self, split: str) -> np.ndarray:
        """Return the rows of those images of a split that have captions, in order."""
        images = np.unique(self.owners)
        return images[self.splits[images] == split]

    def rows_of(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row numbers (k,) of all captions of `images` (row numbers), and for each caption the position (k,)
        of its image in `images`.
        """
        first = np.searchsorted(self.owners, images)
        last = np.searchsorted(self.owners, images, "right")
        rows = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
        return rows, np.repeat(np.arange(len(images)), last - first)

    def texts_of(self, rows: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """Return the vectors of some captions, by split and then by text encoder. `rows` maps a split to the row
        numbers of its captions. The terms of tf-idf come from the captions of `train`.
        """
        texts = {split: {name: block[own] for name, block in self.vectors.items()} for split, own in rows.items()}
        if self.terms:
            captions = {split: [self.captions[int(row)] for row in own] for split, own in rows.items()}
            settings = TermSettings(True, [], 2, max_characters=LONGEST_NGRAM)
            vocabulary = build_vocabulary(
                captions["train"], settings, size=10_000, min_count=2, idf=True, normalise=True
            )
            for split, own in captions.items():
                texts[split][TFIDF] = encode(own, vocabulary)
        return texts


def read(run: Run, encoders: Sequence[str], text_encoders: Sequence[str], captions: Path | None) -> Collection:
    """Read the features and text vectors of a run, and its captions. If `captions` is a file with the lines IMAGE TAB
    NUMBER TAB CAPTION, its captions replace the captions of the run. Only tf-idf vectors can then be used, because the
    run has no vectors of these captions.
    """
    manifest = run.manifest
    ids = np.arange(manifest.n_images)
    features = {name: FeatureRows(run.features, name, ids)[:].astype(np.float32) for name in encoders}
    texts = manifest.sentences["text"].to_pylist()
    owners = manifest.sentence_images
    entries = [run.config.text_encoder(name) for name in text_encoders]
    vectors = {}
    for entry in entries:
        if entry.kind != TFIDF:
            stored = run.layout.sentences(entry.name)
            shards = [VectorShard(stored.shard(number)).matrix for number in range(manifest.n_shards)]
            vectors[entry.name] = np.concatenate(shards).astype(np.float32)
    if captions:
        image_of = {Path(path).name: row for row, path in enumerate(manifest.images["path"].to_pylist())}
        lines = [line.split("\t") for line in captions.read_text("utf-8").splitlines()]
        known = sorted((image_of[name], text) for name, _, text in lines if name in image_of)
        owners = np.array([image for image, _ in known])
        texts = [text for _, text in known]
    steps = {TFIDF if entry.kind == TFIDF else entry.name: entry.normalise for entry in entries}
    return Collection(
        features, run.config.image_steps(encoders), manifest.splits.astype(str), texts, owners, vectors, steps,
        terms=TFIDF in steps,
    )  # fmt: skip


def make_synthetic_collection() -> Collection:
    """Make a collection of 200 images with one caption each, in which image and text vectors are two linear views of a
    latent vector, with noise.
    """
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((200, 8))
    x, y = (latent @ rng.standard_normal((2, 8, 15)) + rng.standard_normal((2, 200, 15))).astype(np.float32)
    captions = [f"{'bright' if a > 0 else 'dark'} {'round' if b > 0 else 'square'}" for a, b, *_ in latent]
    splits = np.repeat(["train", "dev", "test"], [120, 40, 40])
    return Collection({"eyes": x}, ("l2",), splits, captions, np.arange(200), {"words": y}, {"words": ("l2",)}, True)


def measure_selection(
    collection: Collection, methods: Mapping[str, Method], train: np.ndarray, dev: np.ndarray | None, seed: int
) -> Iterator[dict[str, Any]]:
    """Fit each method to one random caption of each of the images `train` (row numbers), and yield its recalls on test.

    One random caption of each of the images `dev` (row numbers) chooses the settings. If `dev` is None, the first
    caption of each image of the dev split chooses the settings.
    """
    rng = np.random.default_rng([seed, 1])

    def draw(images: np.ndarray) -> np.ndarray:
        captions, owners = collection.rows_of(images)
        order = rng.permutation(len(captions))
        return captions[order[np.unique(owners[order], return_index=True)[1]]]

    images = {"train": train, "dev": collection.of_split("dev") if dev is None else dev}
    rows = {"train": draw(train)}
    if dev is None:
        captions, owners = collection.rows_of(images["dev"])
        rows["dev"] = captions[np.unique(owners, return_index=True)[1]]
    else:
        rows["dev"] = draw(dev)
    images["test"] = collection.of_split("test")
    rows["test"], owners = collection.rows_of(images["test"])
    texts = collection.texts_of(rows)
    splits = {
        split: PairArrays(
            {name: block[own] for name, block in collection.features.items()},
            texts[split],
            owners if split == "test" else np.arange(len(own)),
        )
        for split, own in images.items()
    }
    dims = tuple(block.shape[1] for block in collection.features.values())
    view = ImageView(tuple(collection.features), dims, collection.steps)
    text = TextView.from_vectors(texts["train"], collection.text_steps)
    for measured in compare_methods(Bench(view, text, splits), methods, [len(train)], [seed]):
        yield line_of(measured)


def measure_all(
    collection: Collection, methods: Mapping[str, Method], counts: Sequence[int], seeds: Sequence[int], tenths: bool
) -> Iterator[dict[str, Any]]:
    """Yield a line of output for each number of photos in `counts`, seed, selection (`random` or `suggest`), method and
    hubness correction.

    If `tenths` is true, a tenth of the selected photos chooses the settings. Otherwise the dev split chooses the
    settings.
    """
    pool = collection.of_split("train")
    views = {name: block[pool] for name, block in collection.features.items()}
    x = np.hstack([unit_rows(view) for view in views.values()])
    for count in (min(count, len(pool)) for count in counts):
        fixed = None if tenths else pool[choose_representatives(x, count)]
        for seed in seeds:
            shuffled = pool[np.random.default_rng([seed, count]).permutation(len(pool))[:count]]
            if fixed is None:
                suggested = choose_photos(views, count, seed)
                tenth = len(suggested.dev)
                selections = {
                    "random": (shuffled[: count - 2 * tenth], shuffled[count - tenth :]),
                    "suggest": (pool[suggested.train], pool[suggested.dev]),
                }
            else:
                selections = {"random": (shuffled, None), "suggest": (fixed, None)}
            for name, (train, dev) in selections.items():
                for line in measure_selection(collection, methods, train, dev, seed):
                    yield {"name": name, "photos": count, **line}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("--encoders", nargs="+", help="Image encoders. [default: all encoders of the run]")
    parser.add_argument("--text-encoders", nargs="+", default=["tfidf"], help="Text encoders. [default: tfidf]")
    parser.add_argument("--captions", type=Path, help="Captions that replace the captions of the run.")
    parser.add_argument("--methods", nargs="+", default=["ncca"], help="Methods. [default: ncca]")
    parser.add_argument("--tenths", action="store_true", help="Choose the settings on a tenth of the photos.")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 300], help="Numbers of photos.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parse_options(parser, globals(), run=None, counts=[40], seeds=[0])
    if not given.run and not given.tiny:
        parser.error("the folder of the run is needed as an argument.")
    if given.captions and given.text_encoders != ["tfidf"]:
        parser.error(
            "--captions can only be used with --text-encoders tfidf, because the run has no vectors of these captions."
            " Remove one of the two options."
        )
    methods = {**METHODS, "ncca": Method("ncca"), "ncca-fixed": Method("ncca", FIXED)}
    if given.run:
        run = Run(given.run)
        methods["ncca"] = Method("ncca", run.config.fit.model_dump())
        encoders = given.encoders or [entry.name for entry in run.config.encoders]
        collection = read(run, encoders, given.text_encoders, given.captions)
    else:
        collection = make_synthetic_collection()
    chosen = {name: methods[name] for name in given.methods}
    results: dict[tuple[int, str, str, str], list[list[float]]] = {}
    for line in measure_all(collection, chosen, given.counts, given.seeds, given.tenths):
        print(json.dumps(line, default=float), flush=True)
        key = line["photos"], line["name"], line["method"], line["hubness"]
        results.setdefault(key, []).append([line[column] for column in (*RECALLS, "sum")])
    for (count, name, method, hubness), rows in results.items():
        cells = [f"{mean(own):.1f} ± {stdev(own) if len(own) > 1 else 0:.1f}" for own in zip(*rows, strict=True)]
        print(f"{count} photos, {name}, {method}, hubness {hubness}: {' / '.join(cells[:-1])}, sum {cells[-1]}")


if __name__ == "__main__":
    main()
