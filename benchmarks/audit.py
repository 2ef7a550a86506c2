"""Measures how many wrong captions and how many copies of photos an audit finds, in a run with known errors.

    python benchmarks/audit.py RUN [--half second] [--seeds 10] [--photos 500] [--captions 1] [--copies 250]

RUN needs features, vectors of captions, and its photos in the folder that its configuration names. Some captions in one
half of the photos are replaced, for each seed anew:

- `photos`: the captions of a share of the photos are exchanged.
- `captions`: a share of the single captions is exchanged.
- `nearest`: a share of the single captions is replaced by a caption of the photo with the most similar features.
- `noun`: in a share of the single captions, a noun of NOUNS is replaced by another noun of NOUNS.

Each line has means over the seeds. `wrong` is the number of replaced items, `estimate` is the number of wrong items
that the audit estimates, and `listed` is the number of items in the audit's list of wrong items at the false discovery
rate 0.1. `least` and `most` are the smallest and the largest `listed`. `rate` is the share of listed items that were
not replaced, and `power` is the share of replaced items that are listed. `area` is the area under the ROC curve of the
audit's scores, and `lemon` is this area for the score of LEMoN (Zhang et al. 2025) on the same embeddings, for the
first LEMON_SEEDS seeds.

Features and text vectors are reduced to their leading principal components, so that ten seeds take minutes.

Then copies of training photos are added to the photos. `recall` is the share of copies that the audit finds, and
`neighbours` is the share of copies whose features are near the features of their photo. `least` is the lowest
correlation of such a copy with its photo. The line `as they are` is about the photos without added copies. `others` is
the number of pairs of photos that the audit takes for copies. `99.9 %` is the 99.9th percentile of the correlations of
photos with the most similar other photo.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from PIL import Image, ImageOps  # noqa: E402
from scipy.linalg import eigh  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from pipeline.encoders.image_encoder import ImageEncoder  # noqa: E402
from pipeline.encoders.restore import restore_encoder  # noqa: E402
from pipeline.images.copies import MIN_COPY_CORRELATION, SIDE, grey, near_pairs, verify  # noqa: E402
from pipeline.models.linear.cross_fit import (  # noqa: E402
    PAIR_COLUMNS,
    RIDGE,
    TERMS,
    Rivals,
    Scores,
    draw_folds,
    embed_rivals,
    score_rivals,
)
from pipeline.models.linear.sets import Restriction  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView, is_sparse, matrices_of, normalise  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.run.reading.photos import open_photographs  # noqa: E402
from pipeline.run.reading.texts import encode_on_device  # noqa: E402
from pipeline.storage.pairs import SplitRows, read_pairs  # noqa: E402
from pipeline.storage.texts import stack_rows  # noqa: E402
from stages.operations.audit import FALSE_DISCOVERY_RATE  # noqa: E402

SHARES = (0.0, 0.01, 0.05, 0.2)
IMAGE_COMPONENTS = 600
TEXT_COMPONENTS = 400
LEMON_SEEDS = 3
LEMON_NEIGHBOURS = 30
LEMON_WEIGHT = 5.0
"""The value of the parameters beta and gamma of LEMoN. All parameters of LEMoN have the values that its authors use
without labelled pairs.
"""
LEMON_TAU_1 = 0.1
LEMON_TAU_2 = 5.0
NOUNS = (
    "man", "woman", "boy", "girl", "child", "baby", "dog", "cat", "horse", "bird", "bike", "bicycle", "motorcycle",
    "car", "skateboard", "snowboard", "surfboard", "ball", "frisbee", "stick", "toy", "snow", "water", "beach",
    "ocean", "pool", "river", "lake", "grass", "field", "street", "road", "park", "mountain", "rock", "building",
    "wall", "tree", "forest", "sand", "shirt", "hat", "jacket", "dress", "bench", "table", "camera", "guitar", "boat",
    "ramp",
)  # fmt: skip
KNOWN_WRONG = {
    "1809796012_a2dac6c26b.jpg": "a boy jumps .",
    "3170551725_1276644eab.jpg": "A person does a trick in the air on a skateboard .",
    "3241965735_8742782a70.jpg": "A parachute caught on a tree with some people on the ground shining a light at it .",
    "3435233065_3411f2d29d.jpg": "A guy racing his motorcycle on a trail .",
}
"""Mapping from the file name of a photo of Flickr8k to its wrong caption, which `read_captioned` leaves out.

The photos of the 32 captions, and of the 32 sets of captions, that have the lowest scores before any exchange were
inspected. No other caption of these photos was wrong.
"""


@dataclass(frozen=True)
class Pairs:
    """Photos and their captions: `rows` with reduced features and text vectors, and the `texts` (m,) of the captions.

    `ridges` has a ridge for the reduced image view and a ridge for the reduced text view, each relative to the mean
    variance of its view. A ridge adds as much to the variances as RIDGE adds to the variances of the whole view.
    `encode` returns the reduced text vectors (k, d) of a list of k new captions.
    """

    rows: SplitRows
    ridges: tuple[float, float]
    texts: list[str]
    encode: Callable[[list[str]], np.ndarray]

    def select(self, photos: np.ndarray, captions: int | None) -> "Pairs":
        """Return the photos with the row numbers `photos` (k,), which must be sorted. If `captions` is not None, keep
        only the first `captions` captions of each photo.
        """
        rows = self.rows
        position = np.arange(len(rows.owners)) - np.searchsorted(rows.owners, rows.owners)
        kept = np.flatnonzero(np.isin(rows.owners, photos) & (position < (captions or 1 << 30)))
        selected = SplitRows(
            np.arange(len(photos)),
            {name: block[photos] for name, block in rows.features.items()},
            {name: block[kept] for name, block in rows.sentences.items()},
            np.arange(len(kept)),
            np.searchsorted(photos, rows.owners[kept]),
        )
        return replace(self, rows=selected, texts=[self.texts[row] for row in kept])


def read_captioned(run: Run) -> Pairs:
    """Read all photos with captions, of all splits of a run, without the captions in KNOWN_WRONG. Reduce the features
    and the text vectors to their leading principal components.
    """
    config = run.config
    names = [entry.name for entry in config.text_encoders]
    encoders = tuple(entry.name for entry in config.encoders)
    stored = {name: run.layout.sentences(name) for name in names}
    wanted = (np.ones(len(run.manifest.shard_splits(number)), bool) for number in range(run.manifest.n_shards))
    blocks = list(read_pairs(run.features, stored, encoders, lambda _: next(wanted), 1 << 60))
    starts = np.cumsum([0] + [len(block.image_id) for block in blocks])
    image_id = np.concatenate([block.image_id for block in blocks])
    sentence_id = np.concatenate([block.sentence_id for block in blocks])
    owners = np.concatenate([block.owners + start for block, start in zip(blocks, starts, strict=False)])
    texts = run.manifest.rows("sentences", sentence_id)["text"].to_pylist()
    paths = [Path(row["path"]).name for row in run.manifest.images.to_pylist()]
    right = [KNOWN_WRONG.get(paths[image_id[owner]]) != text for owner, text in zip(owners, texts, strict=True)]
    kept = np.flatnonzero(right)

    features = {name: np.concatenate([block.features[name] for block in blocks]) for name in encoders}
    view = ImageView(encoders, tuple(features[name].shape[1] for name in encoders), config.image_steps(encoders))
    image_reduction = Reduction(np.asarray(view.stack(features)), IMAGE_COMPONENTS)
    restriction = Restriction(encoders, dict.fromkeys(names, 1.0), TERMS)
    sentences = {name: stack_rows([block.sentences[name] for block in blocks])[kept] for name in names}
    stored_text = TextView.from_vectors(sentences, {name: config.text_encoder(name).normalise for name in names})
    text = restriction.text(stored_text)
    functions = {name: encode_on_device(run, name) for name in names}

    def stack(vectors: Mapping[str, Any]) -> np.ndarray:
        matrices = matrices_of(text.stack(restriction.cut(vectors)))
        return np.hstack([matrix.toarray() if is_sparse(matrix) else matrix for matrix in matrices])

    dense = stack(sentences)
    text_reduction = Reduction(dense, TEXT_COMPONENTS)
    rows = SplitRows(
        image_id,
        {"reduced": image_reduction.apply(np.asarray(view.stack(features)))},
        {"reduced": text_reduction.apply(dense)},
        sentence_id[kept],
        owners[kept],
    )
    return Pairs(
        rows,
        (image_reduction.ridge, text_reduction.ridge),
        [texts[row] for row in kept],
        lambda new: text_reduction.apply(stack({name: function(new) for name, function in functions.items()})),
    )


class Reduction:
    """A map to the `components` leading principal components of a matrix (n, d). The components are learned from 10,000
    to 20,000 rows of the matrix, or from all rows if the matrix has fewer.

    `ridge` is relative to the mean variance of the reduced columns. Such a ridge adds as much to the variances of these
    columns as RIDGE adds to the variances of the columns of the matrix.
    """

    def __init__(self, matrix: np.ndarray, components: int) -> None:
        sample = matrix[:: max(1, len(matrix) // 10_000)]
        self.mean = sample.mean(axis=0)
        d = matrix.shape[1]
        covariance = np.cov(sample, rowvar=False, dtype=np.float32)
        variances, self.directions = eigh(covariance, subset_by_index=[max(0, d - components), d - 1])
        self.ridge = RIDGE * float(np.trace(covariance)) / d / float(variances.mean())

    def apply(self, matrix: np.ndarray) -> np.ndarray:
        return (matrix - self.mean) @ self.directions


def make_pairs(count: int = 300) -> Pairs:
    """Draw `count` synthetic photos with two captions each, for --tiny. The function `encode` of the result returns the
    vectors of the first captions, whatever the new captions are.
    """
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(count), 2)
    shown = rng.standard_normal((count, 6))
    x = (shown @ rng.standard_normal((6, 20)) + 0.3 * rng.standard_normal((count, 20))).astype(np.float32)
    y = (shown[owners] @ rng.standard_normal((6, 15)) + 0.3 * rng.standard_normal((2 * count, 15))).astype(np.float32)
    rows = SplitRows(np.arange(count), {"reduced": x}, {"reduced": y}, np.arange(2 * count), owners)
    texts = [NOUNS[row % len(NOUNS)] for row in range(2 * count)]
    return Pairs(rows, (RIDGE, RIDGE), texts, lambda new: y[: len(new)])


def exchange(rows: SplitRows, share: float, whole: bool, seed: int) -> np.ndarray:
    """Exchange captions, and return the new order (m,): entry i is the number of the caption that takes the place of
    caption i. `rows` is not changed.

    If `whole` is true, a `share` of the photos in `rows` exchange all their captions. A photo keeps its captions if the
    photo whose captions it would get has a different number of captions. If `whole` is false, a `share` of the single
    captions is exchanged. `seed` decides which photos or captions are exchanged.
    """
    rng = np.random.default_rng(seed)
    captions = np.arange(len(rows.owners))
    groups = np.split(captions, np.flatnonzero(np.diff(rows.owners)) + 1) if whole else captions[:, None]
    moved = rng.choice(len(groups), round(share * len(groups)), replace=False)
    order = captions.copy()
    for one, other in zip(moved, np.roll(moved, 1), strict=True):
        if len(groups[one]) == len(groups[other]):
            order[groups[one]] = groups[other]
    return order


def take_from_nearest(rows: SplitRows, share: float, seed: int) -> np.ndarray:
    """Replace a `share` of the captions in `rows`, and return the new order (m,): entry i is the number of the caption
    that takes the place of caption i. `rows` is not changed.

    A caption is replaced by a random caption of the photo whose features are most similar to the features of its own
    photo.
    """
    rng = np.random.default_rng(seed)
    unit = normalise(rows.features["reduced"].copy(), ["l2"])
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1)
    nearest = cosines.argmax(axis=1)
    order = np.arange(len(rows.owners))
    for row in rng.choice(len(order), round(share * len(order)), replace=False):
        order[row] = rng.choice(np.flatnonzero(rows.owners == nearest[rows.owners[row]]))
    return order


def replace_nouns(pairs: Pairs, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Replace a noun of NOUNS by another noun of NOUNS in a `share` of all captions, or in all captions with such a
    noun if these are fewer. `pairs` is not changed. Return the vectors (m, d) of all captions, and whether each caption
    (m,) has changed.
    """
    rng = np.random.default_rng(seed)
    words = [text.split() for text in pairs.texts]
    with_noun = [row for row, caption in enumerate(words) if set(caption) & set(NOUNS)]
    rows = np.sort(rng.choice(with_noun, min(len(with_noun), round(share * len(words))), replace=False))
    texts = []
    for row in rows:
        old = rng.choice([word for word in words[row] if word in NOUNS])
        new = rng.choice([word for word in NOUNS if word not in words[row]])
        texts.append(" ".join(new if word == old else word for word in words[row]))
    vectors = pairs.rows.sentences["reduced"].copy()
    vectors[rows] = pairs.encode(texts)
    return vectors, np.isin(np.arange(len(words)), rows)


def replace_captions(pairs: Pairs, noise: str, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a `share` of the captions wrong. `noise` is the kind of noise: `photos`, `captions`, `nearest` or `noun`,
    which the docstring of this module describes. `pairs` is not changed.

    Return the text vectors (m, d) of all captions after the change. Also return whether each caption (m,) is wrong or,
    for `photos`, whether the captions of each photo (n,) are wrong.
    """
    rows = pairs.rows
    if noise == "noun":
        return replace_nouns(pairs, share, seed)
    if noise == "nearest":
        order = take_from_nearest(rows, share, seed)
    else:
        order = exchange(rows, share, noise == "photos", seed)
    wrong = rows.owners[order] != rows.owners
    if noise == "photos":
        wrong = np.bincount(rows.owners[wrong], minlength=len(rows.image_id)) > 0
    return rows.sentences["reduced"][order], wrong


def embed(pairs: Pairs, vectors: np.ndarray, seed: int) -> list[Rivals]:
    """Divide the photos into folds, which `seed` draws, and embed the pairs of each fold as the audit does: by a model
    that is fitted to the other folds. The text `vectors` (m, d) replace the text vectors of `pairs`. Return one Rivals
    per fold.
    """
    features = pairs.rows.features["reduced"]
    owners = pairs.rows.owners
    folds = draw_folds(np.empty((0, 2), int), len(features), seed)

    def blocks(fold: int) -> Iterator[SplitRows]:
        images = np.flatnonzero(folds == fold)
        captions = np.flatnonzero(folds[owners] == fold)
        own = np.searchsorted(images, owners[captions])
        yield SplitRows(images, {"reduced": features[images]}, {"reduced": vectors[captions]}, captions, own)

    view = ImageView(("reduced",), (features.shape[1],), ())
    text = TextView.from_vectors({"reduced": vectors})
    return list(embed_rivals(blocks, view, text, runtime.threads(), ridges=pairs.ridges))


def score_lemon(rivals: Rivals) -> np.ndarray:
    """Compute the score of LEMoN for each caption (m,): high scores are suspicious (Zhang et al. 2025, section 3).

    The score is the cosine distance of photo and caption, plus LEMON_WEIGHT times two means. The first is the mean of
    weighted distances between the caption and the captions of its LEMON_NEIGHBOURS neighbours: the pairs with the
    nearest photos, except pairs of the same photo. In the second mean, photos and captions have changed places. A
    neighbour has a higher weight if it is near, and if its own photo and caption are near each other.
    """
    x = rivals.x[rivals.owners]
    y = rivals.y
    rows = np.arange(len(y))[:, None]
    of_images = 1 - x @ x.T
    of_captions = 1 - y @ y.T
    own = 1 - np.einsum("ij,ij->i", x, y)
    is_sibling = rivals.owners[:, None] == rivals.owners
    score = own.copy()
    for distances, others in ((of_images, of_captions), (of_captions, of_images)):
        neighbours = np.argpartition(np.where(is_sibling, 3, distances), LEMON_NEIGHBOURS)[:, :LEMON_NEIGHBOURS]
        weights = np.exp(-LEMON_TAU_1 * distances[rows, neighbours] - LEMON_TAU_2 * own[neighbours])
        score += LEMON_WEIGHT * (others[rows, neighbours] * weights).mean(axis=1)
    return score


def find_replaced(pairs: Pairs, seeds: int, noises: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a line of output for each kind of noise in `noises` and each share of replaced items in SHARES, with means
    over `seeds` seeds. The noise `noun` has only the share 0.05.
    """
    for noise in noises:
        for share in SHARES if noise != "noun" else (0.05,):
            figures = [find_with_seed(pairs, noise, share, seed) for seed in range(seeds)]
            means = {
                name: float(np.mean(values))
                for name in ("area", "lemon", "wrong", "estimate", "listed", "rate", "power", "cpu")
                if (values := [one[name] for one in figures if one.get(name) is not None])
            }
            listed = [one["listed"] for one in figures]
            yield {"name": noise, "replaced": share, "seeds": seeds, **means, "least": min(listed), "most": max(listed)}


def find_with_seed(pairs: Pairs, noise: str, share: float, seed: int) -> dict[str, Any]:
    """Replace captions, score all pairs as the audit does, and compare the list of the audit with the replaced items.
    Return the values of a line of output, which the docstring of this module describes, for one seed.
    """
    vectors, is_wrong = replace_captions(pairs, noise, share, seed)
    seconds = time.process_time()
    folds = embed(pairs, vectors, seed)
    found = [score_rivals(rivals)[noise != "photos"] for rivals in folds]
    column = PAIR_COLUMNS.index("image_id" if noise == "photos" else "sentence_id")
    wrong = is_wrong[np.concatenate([one.pairs[np.arange(len(one.scores))][:, column] for one in found])]
    own, exchanged = (np.concatenate([getattr(one, name) for one in found]) for name in ("scores", "exchanged"))
    scores = Scores(own, exchanged, np.empty((0, len(PAIR_COLUMNS)), int))
    order, rates = scores.lowest()
    listed = wrong[order[: np.searchsorted(rates, FALSE_DISCOVERY_RATE, side="right")]]
    figures = {"wrong": int(wrong.sum()), "estimate": scores.wrong, "listed": len(listed)}
    figures["cpu"] = time.process_time() - seconds
    if share:
        figures |= {"area": roc_auc_score(wrong, -own), "power": listed.sum() / wrong.sum()}
        figures["rate"] = 1 - listed.mean() if len(listed) else 0.0
        if seed < LEMON_SEEDS:
            lemon = [score_lemon(rivals) for rivals in folds]
            if noise == "photos":
                sums = [np.bincount(one.owners, score) for one, score in zip(folds, lemon, strict=True)]
                lemon = [total / np.bincount(one.owners) for one, total in zip(folds, sums, strict=True)]
            figures["lemon"] = roc_auc_score(wrong, np.concatenate(lemon))
    return figures


def encode_again(image: Image.Image, quality: int = 90) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a rectangle of the image with nine tenths of each side, from a random position."""
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


def measure(run: Run, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.seeds:
        pairs = read_captioned(run)
        count = len(pairs.rows.image_id)
        photos = np.arange(count // 2) if options.half == "first" else np.arange(count // 2, count)
        yield from find_replaced(pairs.select(photos[: options.photos], options.captions), options.seeds, options.noise)
    if options.copies:
        yield from find_copies(run, options.copies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--half", choices=("first", "second"), default="second")
    parser.add_argument("--noise", nargs="*", default=["photos", "captions", "nearest", "noun"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--photos", type=int, help="number of photos")
    parser.add_argument("--captions", type=int, help="largest number of captions per photo")
    parser.add_argument("--copies", type=int, default=250)
    options = parse_options(parser, globals())
    lines = find_replaced(make_pairs(), 1, options.noise) if options.tiny else measure(Run(options.run), options)
    for line in lines:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}), flush=True)


if __name__ == "__main__":
    main()
