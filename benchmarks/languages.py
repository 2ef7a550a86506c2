"""Compares the recalls of captions in another language with the recalls of the captions of a run.

    python benchmarks/languages.py results/flickr8k zh.tsv

All models are `ncca` with tf-idf. The captions of the run are read without pieces of words. The other captions are read
without pieces, and then with pieces. All models have the same image encoders, the same photos, and the same number of
captions per photo. Dev chooses the parameters, and the recalls are measured on test.

The file has lines of IMAGE TAB NUMBER TAB CAPTION. Each line of output has the recalls of a model, the sums of the
recalls on dev and test, and the sum on test as a percentage of the sum for the captions of the run.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from interleave import parse_options  # noqa: E402

from pipeline.config.models import FitSettings  # noqa: E402
from pipeline.encoders.tfidf import encode  # noqa: E402
from pipeline.metrics.ranks import rank_scores  # noqa: E402
from pipeline.metrics.retrieval import CUTOFFS, recall_sum  # noqa: E402
from pipeline.models.linear.accumulation import sum_blocks  # noqa: E402
from pipeline.models.linear.cca import NormalizedCCA  # noqa: E402
from pipeline.models.linear.tuning import PairArrays, PreparedViews, tune  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.features import FeatureRows  # noqa: E402
from pipeline.text.tokens import LONGEST_NGRAM, PIECE, TermSettings  # noqa: E402
from pipeline.text.vocabulary import build_vocabulary  # noqa: E402

GRID = FitSettings(
    dimensions=(96, 128, 192), eigenvalue_power=(1, 1.5), image_ridge=(1,), text_ridge=(1, 3), search="grid"
)
"""The values of the parameters of `ncca` among which dev chooses."""


@dataclass(frozen=True, eq=False)
class Collection:
    """A collection of n images. `features` maps the name of an image encoder to the features (n, D), and `splits` (n,)
    has the name of the split of each image.
    """

    features: dict[str, np.ndarray]
    splits: np.ndarray


def read_captions(path: Path, rows: dict[str, int]) -> dict[int, list[str]]:
    """Return the captions in the file `path` by the row of their image. `rows` maps the name of an image to its row.
    Images that are not in `rows` are left out.
    """
    captions: dict[int, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        name, _, text = line.split("\t")
        if name in rows:
            captions.setdefault(rows[name], []).append(text)
    return captions


def measure(collection: Collection, captions: dict[int, list[str]], size: int, pieces: bool) -> dict[str, Any]:
    """Fit `ncca` to the captions of the training images, choose its parameters on dev, and measure it on the images of
    the test split. Return the values of a line of output.

    `captions` maps the row of an image to its captions. `size` is the maximum number of terms, and `pieces` says
    whether pieces of words are terms too.
    """
    settings = TermSettings(True, [], 2, max_characters=LONGEST_NGRAM, pieces=pieces)
    images = {split: [row for row in captions if collection.splits[row] == split] for split in ("train", "dev", "test")}
    texts = {split: [text for row in rows for text in captions[row]] for split, rows in images.items()}
    vocabulary = build_vocabulary(texts["train"], settings, size=size, min_count=2, idf=True, normalise=True)
    pairs = {}
    for split, rows in images.items():
        features = {name: values[rows] for name, values in collection.features.items()}
        owners = np.repeat(np.arange(len(rows)), [len(captions[row]) for row in rows])
        pairs[split] = PairArrays(features, {"tfidf": encode(texts[split], vocabulary)}, owners)
    dims = tuple(values.shape[1] for values in collection.features.values())
    view = ImageView(tuple(collection.features), dims, ("sqrt", "l2"))
    text = TextView.from_vectors(pairs["train"].sentences, {"tfidf": ()})
    moments = sum_blocks([pairs["train"]], view, text, runtime.threads())
    tuned = tune(NormalizedCCA, view, text, PreparedViews(moments), pairs["dev"], GRID)
    test = pairs["test"]
    scores = tuned.model.embed_images(test.features) @ tuned.model.embed_sentences(test.sentences).T
    ranks = rank_scores(scores, test.owners)
    recalls = {
        side: [round(float(100 * np.mean(getattr(ranks, side) <= k)), 1) for k in CUTOFFS]
        for side in ("image_to_sentence", "sentence_to_image")
    }
    return {
        "photos": {split: len(rows) for split, rows in images.items()},
        "terms": len(vocabulary.terms),
        "pieces": sum(term.startswith(PIECE) for term in vocabulary.terms),
        "dev": round(tuned.chosen.recall_sum, 1),
        "recalls": recalls,
        "recall_sum": round(recall_sum(ranks), 1),
        "chosen": [getattr(tuned.chosen, axis) for axis in ("text_ridge", "dimensions", "eigenvalue_power")],
    }


def read_collection(run: Run) -> tuple[Collection, dict[str, int]]:
    """Read the features of those image encoders of a run that are networks. Return the collection, and the rows of the
    images by their file names.
    """
    manifest = run.manifest
    rows = np.arange(manifest.n_images)
    features = {}
    for entry in run.config.encoders:
        if entry.kind == "network":
            features[entry.name] = FeatureRows(run.features, entry.name, rows)[:].astype(np.float32)
    names = [Path(path).name for path in manifest.images["path"].to_pylist()]
    return Collection(features, manifest.splits.astype(str)), {name: row for row, name in enumerate(names)}


def make_collection(folder: Path) -> tuple[Collection, dict[str, int], Path]:
    """Make a collection of synthetic features, with a file of German captions in `folder`. Return the collection, the
    rows of the images by their names, and the path of the file.
    """
    rng = np.random.default_rng(0)
    things = rng.integers(0, 6, 200)
    features = np.eye(6, dtype=np.float32)[things] + rng.normal(0, 0.3, (200, 6)).astype(np.float32)
    words = ["Hund", "Katze", "Pferd", "Schiff", "Straße", "Schneeballschlacht"]
    names = [f"{number}.jpg" for number in range(200)]
    lines = [f"{name}\t0\tEin {words[thing]} ist zu sehen\n" for name, thing in zip(names, things, strict=True)]
    (path := folder / "captions.tsv").write_text("".join(lines), "utf-8")
    splits = np.repeat(["train", "dev", "test"], [120, 40, 40])
    return Collection({"random": features}, splits), {name: row for row, name in enumerate(names)}, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("captions", type=Path, nargs="?", help="File with captions of the photos of the run.")
    parser.add_argument("--size", type=int, default=4000, help="Number of terms.")
    given = parse_options(parser, globals(), run=None, size=50)
    if not given.captions and not given.tiny:
        parser.error("two arguments are needed: the folder of the run, and the file with its captions.")
    with TemporaryDirectory() as folder:
        if given.run:
            run = Run(given.run)
            collection, rows = read_collection(run)
            captions = read_captions(given.captions, rows)
            own: dict[int, list[str]] = {}
            sentences = run.manifest.sentences["text"].to_pylist()
            for row, text in zip(run.manifest.sentence_images.tolist(), sentences, strict=True):
                own.setdefault(row, []).append(text)
            english = {row: own[row][: len(texts)] for row, texts in captions.items()}
        else:
            collection, rows, path = make_collection(Path(folder))
            captions = english = read_captions(path, rows)
    sums = []
    for name, chosen, pieces in (("run", english, False), ("words", captions, False), ("pieces", captions, True)):
        line = measure(collection, chosen, given.size, pieces)
        sums.append(line["recall_sum"])
        print(json.dumps({"name": name, **line, "share": round(100 * sums[-1] / sums[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
