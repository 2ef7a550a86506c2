"""Measures the gain of each hubness correction on the stored embeddings of models without correction.

    python benchmarks/hubness.py results/flickr8k-frozen ncca ncca-refined

The parameters of each method are chosen on dev from the grid in the configuration of the run, with a bank from the
train split. The recalls are measured on test. The stages `fit-hubness` and `evaluate` do the same in a run.
"""

import argparse
import json
from pathlib import Path

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

from pipeline.config.models import HUBNESS, HubnessSettings  # noqa: E402
from pipeline.metrics.ranks import rank_scores  # noqa: E402
from pipeline.metrics.retrieval import CUTOFFS, recall_sum  # noqa: E402
from pipeline.models.linear.corrected import HubnessCorrection  # noqa: E402
from pipeline.models.linear.hubness import Bank, choose_correction  # noqa: E402
from pipeline.models.linear.projection import unit_rows  # noqa: E402
from pipeline.run import Run  # noqa: E402

SPLITS = ("train", "dev", "test")
Sides = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Three arrays: the vectors of n images, the vectors of m sentences, and the row (m,) of the image of each sentence."""


def read(run: Run, model: str) -> dict[str, Sides]:
    """Return the embeddings of the splits train, dev and test in the space of `model`, by the name of the split.

    From train, random images and random sentences are drawn for a bank, at most `hubness.bank` of each. The third array
    of train belongs to the whole split and must not be used, because it does not fit the drawn rows.
    """
    sides = {}
    embeddings = run.embeddings(model)
    rng = np.random.default_rng(run.config.seed)
    for split in SPLITS:
        pairs = run.pairs(split)
        ids = {"images": pairs.image_id, "sentences": pairs.sentence_id}
        if split == "train":
            most = run.config.hubness.bank
            ids = {side: np.sort(rng.choice(of, min(most, len(of)), replace=False)) for side, of in ids.items()}
        sides[split] = (*(embeddings.read(side, of) for side, of in ids.items()), pairs.owners)
    return sides


def make_synthetic_sides() -> dict[str, Sides]:
    """Make synthetic embeddings of 40 images and 40 sentences for each split. All vectors lean towards one direction,
    so that there are hubs.
    """
    rng = np.random.default_rng(0)
    sides = {}
    for split in SPLITS:
        images = rng.standard_normal((40, 8)) + 1
        noisy = (images + rng.standard_normal(images.shape) + 1).astype(np.float32)
        sides[split] = (unit_rows(images.astype(np.float32)), unit_rows(noisy), np.arange(40))
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="Folder of the run.")
    parser.add_argument("models", nargs="*", help="Names of models of the run without hubness correction.")
    given = parse_options(parser, globals(), run=None, models=["made-up"])
    run = Run(given.run) if given.run else None
    grid = run.config.hubness if run else HubnessSettings()
    for model in given.models:
        sides = read(run, model) if run else make_synthetic_sides()
        bank = Bank(*sides["train"][:2])
        (images, sentences, owners) = sides["test"]
        for method in ("none", *HUBNESS, "auto"):
            terms, log = choose_correction(method, bank, *sides["dev"], grid)
            correction = HubnessCorrection(bank, terms)
            x = correction.extend("images", images)
            y = correction.extend("sentences", sentences)
            ranks = rank_scores(x @ y.T, owners)
            line = {"name": f"{model}, {method}", "chosen": log["chosen"], "recall_sum": round(recall_sum(ranks), 1)}
            for direction in ("image_to_sentence", "sentence_to_image"):
                line[direction] = [round(float(100 * np.mean(getattr(ranks, direction) <= k)), 1) for k in CUTOFFS]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
