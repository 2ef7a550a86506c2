"""Measures how many wrong captions and how many copies of photos an audit finds, in a run with known errors.

    python benchmarks/audit.py RUN [--seeds 3] [--copies 250]

RUN needs features, vectors of captions, and its photos in the folder that its configuration names. First, a share of
the training photos gets the captions of another photo, or a share of all captions is exchanged. `area` is the area
under the ROC curve, `precision` is measured at the number of wrong captions, and `probable` is the number of captions
that the audit calls wrong.

Then copies of training photos are put into another split. `recall` is the share of copies that the audit finds, and
`neighbours` is the share of copies whose features are near the features of their photo. `others` is the number of other
pairs of photos that the audit takes for copies. `99.9 %` is the correlation with the most similar other photo that 99.9
% of the photos do not exceed.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from PIL import Image, ImageOps  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from pipeline.encoders.image_encoder import ImageEncoder  # noqa: E402
from pipeline.encoders.restore import restore_encoder  # noqa: E402
from pipeline.images.copies import MIN_COPY_CORRELATION, SIDE, grey, near_pairs, verify  # noqa: E402
from pipeline.models.linear.cross_fit import PAIR_COLUMNS, TERMS, cross_fit, draw_folds  # noqa: E402
from pipeline.models.linear.sets import Restriction  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView, normalise  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.run.reading.photos import open_photographs  # noqa: E402
from pipeline.storage.pairs import read_split  # noqa: E402

SHARES = (0.01, 0.05, 0.1, 0.2)


def read_train(run: Run) -> tuple[Any, ImageView, TextView]:
    """Read the training pairs and their views as the audit reads them."""
    config = run.config
    names = [entry.name for entry in config.text_encoders]
    encoders = tuple(entry.name for entry in config.encoders)
    rows = read_split(run.features, {n: run.layout.sentences(n) for n in names}, encoders, "train", 1 << 60)
    restriction = Restriction(encoders, dict.fromkeys(names, 1.0), TERMS)
    text = TextView.of(rows.sentences, {name: config.text_encoder(name).normalise for name in names})
    view = ImageView(encoders, tuple(rows.features[name].shape[1] for name in encoders), config.image_steps(encoders))
    return replace(rows, sentences=restriction.cut(rows.sentences)), view, restriction.text(text)


def exchange(rows: Any, share: float, whole: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Exchange the captions of a `share` of the photos (`whole`), or a `share` of the single captions, of the pairs
    `rows`. Photos with different numbers of captions are not exchanged.

    Returns the new order of the captions (m,), and whether each photo (n,) or each caption (m,) is now wrong.
    """
    rng = np.random.default_rng(seed)
    captions = np.arange(len(rows.owners))
    count = len(rows.image_id)
    groups = np.split(captions, np.flatnonzero(np.diff(rows.owners)) + 1) if whole else captions[:, None]
    moved = rng.choice(len(groups), round(share * len(groups)), replace=False)
    order = captions.copy()
    for one, other in zip(moved, np.roll(moved, 1), strict=True):
        if len(groups[one]) == len(groups[other]):
            order[groups[one]] = groups[other]
    wrong = rows.owners[order] != rows.owners
    return order, np.bincount(rows.owners[wrong], minlength=count) > 0 if whole else wrong


def find_exchanged(run: Run, seeds: int) -> Iterator[dict[str, Any]]:
    rows, view, text = read_train(run)
    for whole in (True, False):
        for share in SHARES:
            for seed in range(seeds):
                order, wrong = exchange(rows, share, whole, seed)
                sentences = {name: matrix[order] for name, matrix in rows.sentences.items()}
                folds = draw_folds(np.empty((0, 2), int), len(rows.image_id), seed)

                def blocks(fold: int, folds: np.ndarray = folds, sentences: Any = sentences) -> Iterator[Any]:
                    images = np.flatnonzero(folds == fold)
                    captions = np.flatnonzero(folds[rows.owners] == fold)
                    yield replace(
                        rows,
                        image_id=images,
                        features={name: stored[images] for name, stored in rows.features.items()},
                        sentences={name: matrix[captions] for name, matrix in sentences.items()},
                        sentence_id=captions,
                        owners=np.searchsorted(images, rows.owners[captions]),
                    )

                seconds = time.process_time()
                scores = cross_fit(blocks, view, text, runtime.threads())[not whole]
                column = PAIR_COLUMNS.index("image_id" if whole else "sentence_id")
                wrong = wrong[scores.pairs[np.arange(len(scores.scores))][:, column]]
                lowest = np.argsort(scores.scores)[: wrong.sum()]
                yield {
                    "name": "photographs" if whole else "captions", "exchanged": share, "seed": seed,
                    "area": roc_auc_score(wrong, -scores.scores), "precision": wrong[lowest].mean(),
                    "wrong": int(wrong.sum()), "probable": scores.wrong, "cpu": time.process_time() - seconds,
                }  # fmt: skip


def encode_again(image: Image.Image, quality: int = 90) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Cut out a rectangle with nine tenths of each side, at a random position."""
    size = [round(0.9 * side) for side in image.size]
    left, top = (int(rng.integers(whole - part + 1)) for whole, part in zip(image.size, size, strict=True))
    return image.crop((left, top, left + size[0], top + size[1]))


CHANGES: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "quality 50": lambda image, _: encode_again(image, 50),
    "half the size": lambda image, _: encode_again(image.resize((image.width // 2, image.height // 2))),
    "cropped by 10 %": lambda image, rng: encode_again(crop(image, rng)),
    "mirrored": lambda image, _: encode_again(ImageOps.mirror(image)),
}


def find_copies(run: Run, count: int) -> Iterator[dict[str, Any]]:
    entry = run.config.encoders[0]
    steps = run.config.image_steps([entry.name])
    stored = run.encoder(entry.name)
    encoder = restore_encoder(ImageEncoder, stored)
    shards = [run.features.open(entry.name, number)["features"] for number in range(run.manifest.n_shards)]
    features = np.concatenate(shards, dtype=np.float32)
    rng = np.random.default_rng(0)
    train = np.flatnonzero(run.manifest.splits == "train")
    chosen = np.sort(rng.choice(train, min(count, len(train)), replace=False))
    thumbnails = {row: shrink(image) for row, (image, _) in enumerate(open_photographs(run, range(len(features))))}
    pairs = near_pairs(normalise(features.copy(), steps))
    correlations = verify(pairs, thumbnails)
    nearest = np.zeros(len(features))
    np.maximum.at(nearest, pairs, correlations[:, None])
    yield {
        "name": "as they are", "photographs": len(features), "compared": len(pairs),
        "others": int((correlations >= MIN_COPY_CORRELATION).sum()), "99.9 %": float(np.quantile(nearest, 0.999)),
    }  # fmt: skip
    photographs = [image for image, _ in open_photographs(run, chosen)]
    planted = list(zip(chosen.tolist(), len(features) + np.arange(len(chosen)), strict=True))
    for name, change in CHANGES.items():
        copies = [change(image, rng) for image in photographs]
        encoded = np.concatenate([encoder.encode(copies[i : i + 16]) for i in range(0, len(copies), 16)])
        pairs = set(map(tuple, near_pairs(normalise(np.concatenate([features, encoded]), steps)).tolist()))
        candidates = np.array([pair for pair in planted if pair in pairs])
        found = verify(candidates, thumbnails | {row: shrink(copies[row - len(features)]) for _, row in planted})
        yield {
            "name": name, "copies": len(copies), "neighbours": len(candidates) / len(copies),
            "recall": float((found >= MIN_COPY_CORRELATION).sum()) / len(copies), "least": float(found.min()),
        }  # fmt: skip


def shrink(image: Image.Image) -> np.ndarray:
    return grey(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=250)
    options = parser.parse_args()
    run = Run(options.run)
    for find, argument in ((find_exchanged, options.seeds), (find_copies, options.copies)):
        for line in find(run, argument) if argument else ():
            print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}), flush=True)


if __name__ == "__main__":
    main()
