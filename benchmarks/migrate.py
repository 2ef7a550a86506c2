"""Measures how much recall `migrate` keeps when vectors are mapped from another encoder.

    python benchmarks/migrate.py results/flickr8k-frozen squeezenet1_0 efficientnet_lite2 [--text minilm]

The run must have the features of both encoders. A joint space of the new encoder is fitted to the training pairs, and
test captions are used to search the test photos. `reference` is recall@10 with the vectors of the new encoder. `ours`
is recall@10 with mapped vectors (all vectors, or every second vector), and `ratio` is the share of the recall that is
kept. `loss` is the share of the variance that the map does not explain, first as the map estimates it from its sample
and then as measured. `old` is recall@10 in a joint space of the old encoder.
"""

import argparse
import json
from pathlib import Path

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

import jointspace  # noqa: E402
from pipeline.compute.precision import to_float32  # noqa: E402
from pipeline.models.linear.ridge import fit_encoder_map  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.texts import VectorShard  # noqa: E402

PAIRS = (100, 300, 1000, 3000)
GRID = {"dimensions": [256], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}


def recall(images: np.ndarray, texts: np.ndarray, owners: np.ndarray) -> float:
    """Return recall@10 in percent for queries with `texts`, whose right images are in the rows `owners`."""
    scores = texts @ images.T
    own = scores[np.arange(len(owners)), owners]
    return 100 * float(((scores > own[:, None]).sum(axis=1) < 10).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--text", default="minilm")
    arguments = parser.parse_args()
    run = Run(arguments.run)
    shards = range(run.manifest.n_shards)
    old, new = (
        to_float32(np.concatenate([run.features.open(name, number)["features"][:] for number in shards]))
        for name in (arguments.old, arguments.new)
    )
    texts = run.layout.sentences(arguments.text)
    sentences = np.concatenate([VectorShard(texts.shard(number)).matrix for number in shards])
    pairs = {split: run.pairs(split) for split in ("train", "test")}
    spaces = {}
    test = pairs["test"]
    vectors = {split: sentences[side.sentence_id].astype(np.float32) for split, side in pairs.items()}
    for name, features in (("old", old), ("new", new)):
        train = pairs["train"]
        rows = features[train.image_id]
        spaces[name] = jointspace.fit(rows, vectors["train"], train.owners, normalise=("sqrt", "l2"), **GRID)

    def measure(name: str, features: np.ndarray) -> float:
        space = spaces[name]
        return recall(space.embed_images(features), space.embed_texts(vectors["test"]), test.owners)

    true = new[test.image_id]
    reference = measure("new", new[test.image_id])
    about = {"old": measure("old", old[test.image_id]), "reference": reference}
    for count in PAIRS:
        sample = np.random.default_rng(0).choice(pairs["train"].image_id, count, replace=False)
        fitted = fit_encoder_map(old[sample], new[sample])
        mapped = fitted(old[test.image_id])
        half = np.where(np.arange(len(mapped))[:, None] % 2 == 0, mapped, true)
        loss = fitted.unexplained(old[test.image_id], true)
        for name, features in (("mapped", mapped), ("half mapped", half)):
            ours = measure("new", features)
            print(
                json.dumps(
                    {
                        "name": f"{arguments.old} to {arguments.new}, {name}", "photographs": count, "ours": ours,
                        "ratio": ours / reference, "loss": [fitted.loss, loss], "ridge": fitted.ridge, **about,
                    }
                ),
                flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
