"""How many pairs of a collection it takes before adapting a frozen dual encoder helps: a simulation.

    python benchmarks/adaptation.py [--draws 5] [--svg FILE]

Images and sentences share a latent vector of LATENT values. Each encoder shows it through a matrix of its own, close to
the other's (MISFIT), adds what only its side has (PRIVATE directions, much of its variance) and noise, and all its
vectors lie off by half a GAP. Recall@10 of 1,000 unseen pairs, the mean of both directions, and over draws its mean and
standard deviation. A tenth of the pairs chooses ridges, dimension and the weight of the hubness correction.
"""

import argparse
import json
import statistics
from pathlib import Path

from interleave import parse_options

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

from pipeline.config.loading import load  # noqa: E402
from pipeline.metrics.ranks import rank_scores  # noqa: E402
from pipeline.models.linear.accumulation import MomentsAccumulator  # noqa: E402
from pipeline.models.linear.cca import NormalizedCCA  # noqa: E402
from pipeline.models.linear.corrected import HubnessCorrection  # noqa: E402
from pipeline.models.linear.ensemble import ZeroShot  # noqa: E402
from pipeline.models.linear.hubness import Bank, choose_correction  # noqa: E402
from pipeline.models.linear.sets import Sets  # noqa: E402
from pipeline.models.linear.training import FitTask  # noqa: E402
from pipeline.models.linear.tuning import PairArrays  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402

PAIRS, TEST = (100, 300, 1000, 3000, 10_000), 1000
DIM, LATENT, PRIVATE = 256, 48, 24
MISFIT, NUISANCE, NOISE, GAP = 0.8, 2.5, 1.2, 6.0
"""Of the second matrix, private directions and noise in standard deviations; the length of the gap. A latent value has
the standard deviation 1, a matrix entry that of DIM to the power -1/2. With these zero-shot finds about half."""
Sides = tuple[np.ndarray, np.ndarray]


def draw(count: int, seed: int) -> Sides:
    """(count, DIM) float32 image and sentence vectors; the encoders are those of `seed` whatever the count."""
    encoders, rows = np.random.default_rng(seed), np.random.default_rng([seed, count])
    scale = DIM**-0.5
    shared = encoders.standard_normal((LATENT, DIM)) * scale
    gap = encoders.standard_normal(DIM)
    gap *= GAP / np.linalg.norm(gap)
    latent, sides = rows.standard_normal((count, LATENT)), []
    for sign, misfit in ((1, 0.0), (-1, MISFIT)):
        matrix = shared + misfit * scale * encoders.standard_normal((LATENT, DIM))
        private = rows.standard_normal((count, PRIVATE)) @ encoders.standard_normal((PRIVATE, DIM)) * scale
        noise = rows.standard_normal((count, DIM)) * NOISE * LATENT**0.5 * scale
        sides.append(latent @ matrix + NUISANCE * private + noise + sign * gap / 2)
    return tuple(side.astype(np.float32) for side in sides)


def recall(sides: Sides) -> float:
    """Recall@10 in percent, the mean of both directions, of embedded pairs."""
    ranks = rank_scores(sides[0] @ sides[1].T, np.arange(len(sides[0])))
    return 50 * float(np.mean(ranks.image_to_sentence <= 10) + np.mean(ranks.sentence_to_image <= 10))


def embed(model: object, sides: Sides) -> Sides:
    return model.embed_images({"eyes": sides[0]}), model.embed_sentences({"words": sides[1]})


def fit(train: Sides, dev: Sides) -> NormalizedCCA:
    """By the grid of the default configuration."""
    accumulator = MomentsAccumulator(DIM, DIM, runtime.threads())
    view, text = ImageView(("eyes",), (DIM,), ("l2",)), TextView.of({"words": train[1]}, {"words": ("l2",)})
    stacked = view.stack({"eyes": train[0]}), text.stack({"words": train[1]})
    accumulator.add(*stacked, np.arange(len(train[0])))
    pairs = PairArrays({"eyes": dev[0]}, {"words": dev[1]}, np.arange(len(dev[0])))
    config, sets = load(), Sets(accumulator.result(), None, tuple, tuple)
    task = FitTask("target", view, text, sets, pairs, config.fit, config.transfer, None, config.seed)
    return NormalizedCCA.fit(task).model


def correct(train: Sides, dev: Sides, test: Sides) -> Sides:
    """The embedded `test` pairs with the hubness correction that is best on `dev`, against `train`."""
    bank = Bank(*train)
    terms, _ = choose_correction("csls", bank, *dev, np.arange(len(dev[0])), load().hubness)
    correction = HubnessCorrection(bank, terms)
    return correction.extend("images", test[0]), correction.extend("sentences", test[1])


def measure(pairs: int, seed: int) -> dict[str, float]:
    """Name of a method -> its recall after adapting to so many pairs."""
    every, held = draw(PAIRS[-1] + TEST, seed), pairs // 10
    test = tuple(side[PAIRS[-1] :] for side in every)
    dev, train = (tuple(side[part] for side in every) for part in (slice(held), slice(held, pairs)))
    found = {}
    for name, model in (("zero-shot", ZeroShot("eyes", "words")), ("ncca", fit(train, dev))):
        embedded = [embed(model, sides) for sides in (train, dev, test)]
        found[name], found[f"{name}-csls"] = recall(embedded[-1]), recall(correct(*embedded))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--svg", type=Path, help="Where to draw the curves.")
    given = parse_options(parser, globals(), draws=1, PAIRS=(100,), TEST=50)
    curves: dict[str, list[tuple[float, float]]] = {}
    for pairs in PAIRS:
        draws = [measure(pairs, seed) for seed in range(given.draws)]
        for name in draws[0]:
            values = [draw[name] for draw in draws]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            curves.setdefault(name, []).append((statistics.mean(values), spread))
            line = {"name": name, "pairs": pairs, "recall@10": round(curves[name][-1][0], 2), "std": round(spread, 2)}
            print(json.dumps({**line, "draws": given.draws}), flush=True)
    print("\n| recall@10 |" + "".join(f" {pairs:,} pairs |" for pairs in PAIRS) + "\n|---|" + "---|" * len(PAIRS))
    for name, values in curves.items():
        print(f"| `{name}` |" + "".join(f" {mean:.1f} ± {spread:.1f} |" for mean, spread in values))
    if given.svg:
        draw_curves(curves, given.svg)


def draw_curves(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "adaptation"}):
        figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
        for name, values in curves.items():
            means, spreads = zip(*values, strict=True)
            axes.errorbar(PAIRS, means, spreads, label=name, marker="o", linestyle="--" if "csls" in name else "-")
        axes.set(xscale="log", xlabel="pairs to adapt to", ylabel="recall@10, %", ylim=(0, 100))
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
