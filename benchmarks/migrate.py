"""Measures how much recall `migrate` keeps when vectors are mapped from another encoder.

    python benchmarks/migrate.py results/flickr8k-frozen squeezenet1_0 efficientnet_lite2 [--pairs 1000]

The run must have the features of both encoders. A joint space of each encoder is fitted to the training pairs, and the
captions of `--split` are searched among the photos of this split. `reference` is recall@10 with the vectors of the new
encoder, and `old` is recall@10 in the joint space of the old encoder. A migration learns from photos that both encoders
have encoded, whose number is `photographs`. `ours` has the recall@10 after the migration for each seed, and `ratio` is
the mean share of `reference` that is kept.

- `features`: features of the old encoder are mapped to features of the new encoder, as `jointspace migrate` does in a
  run, for all photos or for every second photo. The mapped features are embedded in the joint space of the new
  encoder.
- `features, fitted again`: the joint space is fitted to the mapped features of the training photos, as a run does.
- `index from OLD` and `queries to OLD`: `jointspace.migrate` is used, with or without the captions of all training
  photos. OLD is `index` for vectors in the old joint space, and `features` for normalised features of the old encoder.
  In `index from OLD`, these vectors are mapped to the new joint space. In `queries to OLD`, the queries are mapped to
  these vectors. `estimated` is the mean share of the recall that the migration itself reports.
"""

import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

import jointspace  # noqa: E402
from pipeline.compute.precision import to_float32  # noqa: E402
from pipeline.models.linear.ridge import fit_encoder_map  # noqa: E402
from pipeline.models.linear.views import normalise  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.storage.texts import VectorShard  # noqa: E402

PAIRS = (100, 300, 1000, 3000)
GRID = {"dimensions": [256], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}
STEPS = ("sqrt", "l2")


def recall(images: np.ndarray, texts: np.ndarray, owners: np.ndarray) -> float:
    """Return recall@10 in percent for the m queries `texts` (m, c) among the n `images` (n, c). `owners` (m,) has the
    row of the right image of each query.
    """
    scores = texts @ images.T
    own = scores[np.arange(len(owners)), owners]
    return 100 * float(((scores > own[:, None]).sum(axis=1) < 10).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--text", default="minilm")
    parser.add_argument("--split", default="test")
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    run = Run(arguments.run)
    shards = range(run.manifest.n_shards)
    old, new = (
        to_float32(np.concatenate([run.features.open(name, number)["features"][:] for number in shards]))
        for name in (arguments.old, arguments.new)
    )
    stored = run.layout.sentences(arguments.text)
    sentences = np.concatenate([VectorShard(stored.shard(number)).matrix for number in shards])
    train = run.pairs("train")
    test = run.pairs(arguments.split)
    words, queries = (sentences[side.sentence_id].astype(np.float32) for side in (train, test))

    def fit(features: np.ndarray) -> jointspace.FittedSpace:
        return jointspace.fit(features[train.image_id], words, train.owners, normalise=STEPS, **GRID)

    def measure(space: jointspace.FittedSpace, features: np.ndarray) -> float:
        return recall(space.embed_images(features[test.image_id]), space.embed_texts(queries), test.owners)

    old_space = fit(old)
    new_space = fit(new)
    reference = measure(new_space, new)
    about = {"old": measure(old_space, old), "reference": reference}
    texts = new_space.embed_texts(words)
    asked = new_space.embed_texts(queries)
    vectors = new_space.embed_images(new)
    galleries = {"index": old_space.embed_images(old), "features": normalise(old.copy(), STEPS)}
    captions = {"": {}, " with captions": {"texts": texts, "owners": train.image_id[train.owners]}}
    for count in arguments.pairs:
        ours: dict[str, list[float]] = defaultdict(list)
        estimated: dict[str, list[float]] = defaultdict(list)
        for seed in range(arguments.seeds):
            sample = np.random.default_rng(seed).choice(train.image_id, count, replace=False)
            mapped = fit_encoder_map(old[sample], new[sample], seed)(old)
            half = np.where(np.arange(len(mapped))[:, None] % 2 == 0, mapped, new)
            known = mapped.copy()
            known[sample] = new[sample]
            ours["features"].append(measure(new_space, mapped))
            ours["features, every second photo"].append(measure(new_space, half))
            ours["features, fitted again"].append(measure(fit(known), mapped))
            for (kind, gallery), (view, given) in product(galleries.items(), captions.items()):
                migration = jointspace.migrate(gallery, vectors[sample], sample, **given, seed=seed)
                found = migration.map_gallery(gallery[test.image_id])
                ours[f"index from {kind}{view}"].append(recall(found, asked, test.owners))
                adapted = migration.adapt_queries(asked)
                ours[f"queries to {kind}{view}"].append(recall(gallery[test.image_id], adapted, test.owners))
                estimated[f"index from {kind}{view}"].append(migration.kept["gallery"])
                estimated[f"queries to {kind}{view}"].append(migration.kept["queries"])
        for name, values in ours.items():
            kept = {"ratio": float(np.mean(values)) / reference}
            if name in estimated:
                kept["estimated"] = float(np.mean(estimated[name]))
            title = f"{arguments.old} to {arguments.new}, {name}"
            print(json.dumps({"name": title, "photographs": count, "ours": values, **kept, **about}), flush=True)


if __name__ == "__main__":
    main()
