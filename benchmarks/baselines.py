"""Compares `ncca` with recent methods that join two frozen encoders, for several numbers of training pairs.

    python benchmarks/baselines.py results/flickr8k-frozen --encoder efficientnet_lite2 --text-encoder minilm

All methods get the same stored vectors of one image encoder and one text encoder, for training pairs that are drawn at
random. Every parameter (GRIDS and the grid of `ncca`) is chosen by the recalls of the first sentence of each dev image.
The recalls are measured on all test images and sentences.

Each line has the sum of six recalls (R@1, R@5 and R@10 in both directions) and the CPU seconds, including the choice of
the parameters. The last output is a table of all methods.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import scipy.linalg  # noqa: E402
import scipy.sparse  # noqa: E402
import torch  # noqa: E402

from pipeline.config.models import FitSettings, HubnessSettings  # noqa: E402
from pipeline.metrics.ranks import rank_scores  # noqa: E402
from pipeline.metrics.retrieval import recall_sum  # noqa: E402
from pipeline.models.linear.accumulation import MomentsAccumulator  # noqa: E402
from pipeline.models.linear.cca import NormalizedCCA  # noqa: E402
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection  # noqa: E402
from pipeline.models.linear.hubness import Bank, choose_correction  # noqa: E402
from pipeline.models.linear.projection import unit_rows  # noqa: E402
from pipeline.models.linear.tuning import PairArrays, PreparedViews, tune  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.pairs import read_split  # noqa: E402

PAIRS = (100, 300, 1000, 3000, 10_000, 25_000)
EPOCHS = 60
PATIENCE = 4
BATCH = 512
HIDDEN = 512
OUT = 256
MAX_BANK_ROWS = 5000
"""Maximum number of training images, and of sentences, with which a hubness correction is measured (a bank)."""
RANK_TOLERANCE = 1e-7
"""CSA drops a direction if its variance is smaller than this share of the greatest variance."""
MAX_SEARCHED_PAIRS = 3000
"""Maximum number of pairs for which `projector` tries its whole grid. With more pairs it uses the parameters that were
chosen for this number.
"""
GRIDS = {
    "dimensions": (8, 16, 32, 64, 96, 128, 192, 256, 384),
    "ridge": (0.001, 0.01, 0.1, 1, 10, 100),
    "nonzero": (10, 30, 100, 300, 1000, 3000),
    "power": (1, 2, 4, 8, 16),
    "learning_rate": (0.0003, 0.001, 0.003),
    "dropout": (0.1, 0.3, 0.5),
}
RIDGES = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
OURS = FitSettings(
    dimensions=(32, 64, 128, 256), eigenvalue_power=(0.5, 1, 2, 4), image_ridge=RIDGES, text_ridge=RIDGES
)  # fmt: skip
Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function of image vectors (n, D) and sentence vectors (m, d) that returns their scores (n, m)."""
Chosen = tuple[Mapping[str, Any], Scorer]
"""The parameters with the best recalls on dev, and the scorer that they give."""
Candidates = Iterable[Chosen]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images x (n, D), sentences y (m, d), and the row of the image of each sentence (m,)."""

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray


def measure(scorer: Scorer, pairs: Pairs) -> float:
    return recall_sum(rank_scores(scorer(pairs.x, pairs.y), pairs.owners))


def choose(candidates: Candidates, dev: Pairs) -> Chosen:
    """Return the candidate with the greatest sum of recalls on dev. Among equal candidates, the first is taken."""
    measured = ((measure(scorer, dev), parameters, scorer) for parameters, scorer in candidates)
    return max(measured, key=lambda candidate: candidate[0])[1:]


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return unit_rows(x) @ unit_rows(y).T


@lru_cache(maxsize=1)
def fit_ncca(train: Pairs, dev: Pairs, model: type) -> tuple[Mapping[str, Any], Any]:
    """Fit a canonical correlation model of the type `model`. Return the chosen parameters and the fitted model."""
    view = ImageView(("eyes",), (train.x.shape[1],), ("l2",))
    text = TextView.of({"words": train.y}, {"words": ("l2",)})
    accumulator = MomentsAccumulator(train.x.shape[1], train.y.shape[1], runtime.threads())
    accumulator.add(view.stack({"eyes": train.x}), text.stack({"words": train.y}), train.owners)
    on_dev = PairArrays({"eyes": dev.x}, {"words": dev.y}, dev.owners)
    tuned = tune(model, view, text, PreparedViews(accumulator.result()), on_dev, OURS)
    axes = ("image_ridge", "text_ridge", "dimensions", "eigenvalue_power")
    return {axis: getattr(tuned.chosen, axis) for axis in axes}, tuned.model


def embed(model: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return model.embed_images({"eyes": x}), model.embed_sentences({"words": y})


def product(model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    images, sentences = embed(model, x, y)
    return images @ sentences.T


def ncca(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit `ncca` of jointspace. Both ridges, the dimensions and the power of the correlations are chosen on dev."""
    chosen, model = fit_ncca(train, dev, NormalizedCCA)
    return chosen, partial(product, model)


def ncca_hubness(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit `ncca` with the best hubness correction, which is measured on a bank of training pairs."""
    chosen, model = fit_ncca(train, dev, NormalizedCCA)
    bank = Bank(*embed(model, train.x[:MAX_BANK_ROWS], train.y[:MAX_BANK_ROWS]))
    terms, log = choose_correction("auto", bank, *embed(model, dev.x, dev.y), dev.owners, HubnessSettings())
    return {**chosen, **log["chosen"]}, partial(product, HubCorrected(model, HubnessCorrection(bank, terms)))


class LengthFirst(NormalizedCCA):
    """A variant of CCA with ridges that scales projections to unit length before it applies the powers of the
    correlations, as CSA does.
    """

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        return unit_rows(projected) * values**power


def length_first(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    chosen, model = fit_ncca(train, dev, LengthFirst)
    return chosen, partial(product, model)


def csa(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit canonical similarity analysis (Li, Chinchali and Topcu 2025).

    The canonical variables are computed without a ridge. The first s of them are scaled to unit length, and a score is
    the sum of their products, weighted by the correlations rho. s is chosen on dev.
    """
    mean_x = train.x.mean(axis=0)
    mean_y = train.y.mean(axis=0)
    whitened = []
    maps = []
    for rows, mean in ((train.x, mean_x), (train.y, mean_y)):
        centred = (rows - mean).astype(np.float64)
        values, vectors = scipy.linalg.eigh(centred.T @ centred, check_finite=False)
        kept = values > RANK_TOLERANCE * values[-1]
        maps.append(vectors[:, kept] / np.sqrt(values[kept]))
        whitened.append(centred @ maps[-1])
    left, rho, right = scipy.linalg.svd(whitened[0].T @ whitened[1], full_matrices=False, check_finite=False)
    w = (maps[0] @ left).astype(np.float32)
    u = (maps[1] @ right.T).astype(np.float32)

    def scorer(s: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return unit_rows((x - mean_x) @ w[:, :s]) * rho[:s].astype(np.float32) @ unit_rows((y - mean_y) @ u[:, :s]).T

    return choose((({"dimensions": s}, partial(scorer, s)) for s in GRIDS["dimensions"] if s <= len(rho)), dev)


def asif(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit relative representations (ASIF, Norelli et al. 2023).

    An item is represented by its cosines with the training items of its own kind. The k greatest cosines are kept,
    raised to the power p, and scaled to unit length. k and p are chosen on dev. Whether the vectors are centred first,
    which the paper does not do, is chosen as well.
    """

    def relative(rows: np.ndarray, anchors: np.ndarray, mean: Any, k: int, p: int) -> scipy.sparse.csr_matrix:
        cosines = cosine(rows - mean, anchors - mean)
        kept = np.argpartition(cosines, -k, axis=1)[:, -k:]
        values = unit_rows(np.maximum(np.take_along_axis(cosines, kept, axis=1), 0) ** p)
        offsets = np.arange(0, kept.size + 1, k)
        return scipy.sparse.csr_matrix((values.ravel(), kept.ravel(), offsets), shape=cosines.shape)

    def scorer(centred: bool, k: int, p: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        means = (train.x.mean(axis=0), train.y.mean(axis=0)) if centred else (0, 0)
        images, sentences = (
            relative(rows, anchors, mean, min(k, len(anchors)), p)
            for rows, anchors, mean in zip((x, y), (train.x, train.y), means, strict=True)
        )
        return (images @ sentences.T).toarray()

    grid = itertools.product((False, True), [k for k in GRIDS["nonzero"] if k <= len(train.x)], GRIDS["power"])
    named = (dict(zip(("centred", "k", "p"), values, strict=True)) for values in grid)
    return choose(((chosen, partial(scorer, *chosen.values())) for chosen in named), dev)


def ridge(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit a linear map from the vectors of one kind to the vectors of the other kind by ridge regression.

    The ridge is relative to the mean variance. Scores are cosines. The ridge and the direction of the map are chosen on
    dev.
    """
    means = train.x.mean(axis=0), train.y.mean(axis=0)
    x = unit_rows(train.x - means[0])
    y = unit_rows(train.y - means[1])

    def candidates() -> Candidates:
        for name, source, target in (("to sentences", x, y), ("to images", y, x)):
            values, vectors = scipy.linalg.eigh(source.T @ source, check_finite=False)
            cross = vectors.T @ (source.T @ target)
            for share in GRIDS["ridge"]:
                matrix = vectors @ (cross / (values + share * values.mean())[:, None])
                yield {"map": name, "ridge": share}, partial(scorer, name, matrix)

    def scorer(name: str, matrix: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x = unit_rows(x - means[0])
        y = unit_rows(y - means[1])
        return cosine(x @ matrix, y) if name == "to sentences" else cosine(x, y @ matrix)

    return choose(candidates(), dev)


def procrustes(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Fit the orthogonal map of unit vectors that brings images nearest to their sentences (Schoenemann 1966).

    The map uses the s directions with the greatest covariance. s is chosen on dev.
    """
    means = train.x.mean(axis=0), train.y.mean(axis=0)
    x = unit_rows(train.x - means[0])
    y = unit_rows(train.y - means[1])
    left, _, right = scipy.linalg.svd(x.T @ y, full_matrices=False, check_finite=False)

    def scorer(s: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return cosine(unit_rows(x - means[0]) @ left[:, :s], unit_rows(y - means[1]) @ right[:s].T)

    return choose((({"dimensions": s}, partial(scorer, s)) for s in GRIDS["dimensions"] if s <= len(right)), dev)


def projector(train: Pairs, dev: Pairs, seed: int) -> Chosen:
    """Train two layers for images and two layers for sentences with InfoNCE in both directions (van den Oord et al.
    2018, Radford et al. 2021).

    AdamW trains until the recalls on dev no longer improve. The learning rate and the dropout are chosen with seed 0
    and at most MAX_SEARCHED_PAIRS pairs. Other seeds and greater numbers of pairs use the chosen values.
    """
    found = _projector.setdefault("chosen", {}).get(len(train.x)) or _projector.get("last")
    if found and (seed or len(train.x) > MAX_SEARCHED_PAIRS):
        grid = [found]
    else:
        axes = itertools.product(GRIDS["learning_rate"], GRIDS["dropout"])
        grid = [dict(zip(("learning_rate", "dropout"), values, strict=True)) for values in axes]
    trained = ((chosen, partial(score_projected, train_projector(train, dev, seed, **chosen))) for chosen in grid)
    chosen, scorer = choose(trained, dev)
    _projector["chosen"][len(train.x)] = _projector["last"] = chosen
    return chosen, scorer


_projector: dict[str, Any] = {}
"""The parameters that `projector` has chosen so far."""


def train_projector(train: Pairs, dev: Pairs, seed: int, learning_rate: float, dropout: float) -> torch.nn.ModuleList:
    """Train the two networks with AdamW at the given learning rate and dropout rate, and return them with the
    parameters of the epoch with the best recalls on dev."""
    torch.manual_seed(seed)
    means = [rows.mean(axis=0) for rows in (train.x, train.y)]
    sides = [of_unit_variance(rows - mean) for rows, mean in zip((train.x, train.y), means, strict=True)]
    towers = torch.nn.ModuleList(
        torch.nn.Sequential(
            torch.nn.Linear(side.shape[1], HIDDEN),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(HIDDEN, OUT),
        )
        for side in sides
    )
    for tower, mean in zip(towers, means, strict=True):
        tower.register_buffer("mean", torch.from_numpy(mean))
    temperature = torch.nn.Parameter(torch.tensor(0.07).log())
    optimiser = torch.optim.AdamW([*towers.parameters(), temperature], learning_rate, weight_decay=0.01)
    best = -1.0
    kept = None
    since = 0
    for _ in range(EPOCHS):
        towers.train()
        for rows in torch.randperm(len(sides[0])).split(BATCH):
            a, b = (torch.nn.functional.normalize(tower(side[rows])) for tower, side in zip(towers, sides, strict=True))
            logits = a @ b.T / temperature.exp()
            of = torch.arange(len(rows))
            loss = torch.nn.functional.cross_entropy(logits, of) + torch.nn.functional.cross_entropy(logits.T, of)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        reached = measure(partial(score_projected, towers), dev)
        since += 1
        if reached > best:
            best = reached
            kept = {name: value.clone() for name, value in towers.state_dict().items()}
            since = 0
        if since > PATIENCE:
            break
    towers.load_state_dict(kept)
    return towers


def of_unit_variance(rows: np.ndarray) -> torch.Tensor:
    """Scale the rows (n, c) to the length sqrt(c)."""
    return torch.from_numpy(unit_rows(rows) * np.float32(rows.shape[1] ** 0.5))


@torch.no_grad()
def score_projected(towers: torch.nn.ModuleList, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    towers.eval()
    a, b = (
        tower(of_unit_variance(rows - tower.mean.numpy())).numpy() for tower, rows in zip(towers, (x, y), strict=True)
    )
    return cosine(a, b)


METHODS = {
    "ncca": ncca,
    "ncca-hubness": ncca_hubness,
    "length-first": length_first,
    "csa": csa,
    "asif": asif,
    "ridge": ridge,
    "procrustes": procrustes,
    "projector": projector,
}


def read(run: Run, encoder: str, text_encoder: str) -> dict[str, Pairs]:
    """Read the vectors of each split of a run.

    In train, each sentence is paired with the vector of its image. Dev has the first sentence of each image only.
    """
    texts = {text_encoder: run.layout.sentences(text_encoder)}
    splits = {}
    for split in ("train", "dev", "test"):
        rows = read_split(run.features, texts, (encoder,), split, run.manifest.n_images)
        x = rows.features[encoder]
        y = np.asarray(rows.sentences[text_encoder], np.float32)
        owners = rows.owners
        if split == "train":
            x = x[owners]
            owners = np.arange(len(y))
        elif split == "dev":
            y = y[np.unique(owners, return_index=True)[1]]
            owners = np.arange(len(x))
        splits[split] = Pairs(np.asarray(x, np.float32), y, owners)
    return splits


def make_synthetic_pairs() -> dict[str, Pairs]:
    """Make the splits of synthetic pairs: two linear views of a latent vector, with noise."""
    rng = np.random.default_rng(0)
    splits = {}
    matrices = rng.standard_normal((2, 8, 15))
    for split in ("train", "dev", "test"):
        latent = rng.standard_normal((80, 8))
        noise = rng.standard_normal((2, 80, 15))
        x, y = (latent @ matrices + noise).astype(np.float32)
        splits[split] = Pairs(x, y, np.arange(80))
    return splits


def measure_all(
    splits: Mapping[str, Pairs], counts: Sequence[int], seeds: Sequence[int], methods: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield a line for each method, number of training pairs and seed."""
    for count, seed in itertools.product(counts, seeds):
        rows = np.random.default_rng([seed, count]).permutation(len(splits["train"].x))[:count]
        train = Pairs(splits["train"].x[rows], splits["train"].y[rows], np.arange(len(rows)))
        for name in methods:
            start = time.process_time()
            chosen, scorer = METHODS[name](train, splits["dev"], seed)
            seconds = time.process_time() - start
            reached = measure(scorer, splits["test"])
            line = {"name": name, "pairs": len(rows), "seed": seed, "recall_sum": round(reached, 1)}
            yield {**line, "seconds": round(seconds, 1), "chosen": chosen}


def tabulate(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown table with the mean sum of six recalls over the seeds, its standard deviation, and the mean
    seconds.
    """
    cells: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for line in lines:
        of_size = cells.setdefault(line["name"], {}).setdefault(line["pairs"], [])
        of_size.append((line["recall_sum"], line["seconds"]))
    counts = sorted({count for of_method in cells.values() for count in of_method})
    rows = [f"| |{''.join(f' {count:,} pairs |' for count in counts)}", f"|---|{'---|' * len(counts)}"]
    for name, of_method in cells.items():
        row = f"| {name} |"
        for count in counts:
            sums, seconds = zip(*of_method.get(count, [(float("nan"), 0)]), strict=True)
            spread = statistics.stdev(sums) if len(sums) > 1 else 0.0
            row += f" {statistics.mean(sums):.1f} ± {spread:.1f}, {statistics.mean(seconds):.0f} s |"
        rows.append(row)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("--encoder", help="Image encoder whose features are used.")
    parser.add_argument("--text-encoder", help="Text encoder with dense vectors.")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS, help="Numbers of training pairs.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parse_options(parser, globals(), run=None, seeds=[0], pairs=[40], EPOCHS=2)
    splits = read(Run(given.run), given.encoder, given.text_encoder) if given.run else make_synthetic_pairs()
    lines = []
    for line in measure_all(splits, given.pairs, given.seeds, given.methods):
        print(json.dumps(line, default=float), flush=True)
        lines.append(line)
    print("\n" + tabulate(lines))


if __name__ == "__main__":
    main()
