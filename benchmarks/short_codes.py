"""Measures how much recall short codes of vectors keep (`jointspace export --to faiss --type pq32`).

    python benchmarks/short_codes.py results/flickr8k-frozen ncca --split test
    python benchmarks/short_codes.py results/flickr8k-frozen ncca-csls --split test

The captions of the split are the queries. recall@10 is measured among all photos of the run (`all`), and among the
photos of the split (`split`), once with the vectors themselves and once with each code of pipeline.index.codes. The
codes are learned from all photos, as in an export. If the model is corrected for hubs, the codes are made for corrected
scores. `kept` is the share of the recall of the vectors in percent. For a model without correction, RaBitQ codes of the
first 64 axes, which have 16 bytes like `pq16`, are measured for comparison.
"""

import argparse
import json
from pathlib import Path

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402

from pipeline.index.codes import build_codes  # noqa: E402
from pipeline.run import Run  # noqa: E402

TRIALS = (("int8", None), ("int8", 64), ("pq64", None), ("pq32", None), ("pq16", None))
"""The measured codes, as pairs (code, number of axes). None stands for the default number of axes."""


def recall(scores: np.ndarray, rows: np.ndarray) -> float:
    """Return recall@10 in percent, given the `scores` (q, n) of q queries and n photos. `rows` (q,) has the right photo
    of each query.
    """
    own = scores[np.arange(len(rows)), rows]
    return 100 * float(((scores > own[:, None]).sum(axis=1) < 10).mean())


def scores_of(index: faiss.Index, queries: np.ndarray) -> np.ndarray:
    """Return the scores (q, n) of all n vectors of an index for the q rows of `queries`. A higher score is better. The
    score of an L2 index is the negative squared distance.
    """
    found, rows = index.search(queries, index.ntotal)
    scores = np.empty_like(found)
    np.put_along_axis(scores, rows, found if index.metric_type == faiss.METRIC_INNER_PRODUCT else -found, axis=1)
    return scores


def rabitq(vectors: np.ndarray, axes: int) -> faiss.Index:
    """Make an index of RaBitQ codes of `vectors` (n, c). A code has one bit for each of the first `axes` principal
    axes.
    """
    basis = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))[1][:, : -axes - 1 : -1].T.astype(np.float32)
    projection = faiss.LinearTransform(vectors.shape[1], len(basis), False)
    faiss.copy_array_to_vector(basis.ravel(), projection.A)
    projection.is_trained = True
    index = faiss.IndexPreTransform(faiss.index_factory(len(basis), f"L2norm,RR{len(basis)},RaBitQ", faiss.METRIC_L2))
    index.prepend_transform(projection)
    index.train(vectors)
    index.add(vectors)
    return index


def draw_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw unit vectors (count, 80) of photos, and unit vectors (count, 80) of captions. Caption i is near photo i."""
    rng = np.random.default_rng(0)
    photos = rng.standard_normal((count, 80)) * 0.95 ** np.arange(80)
    captions = photos + 0.5 * rng.standard_normal((count, 80)) * 0.95 ** np.arange(80)
    photos, captions = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (photos, captions))
    return photos.astype(np.float32), captions.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("model", nargs="?", default="ncca")
    parser.add_argument("--split", default="test")
    arguments = parse_options(parser, globals())
    metric = "inner_product"
    corrected = False
    if arguments.tiny:
        photos, captions = draw_pairs(600)
        rows = np.arange(600)
        own = np.arange(200)
    else:
        run = Run(arguments.run)
        embeddings = run.embeddings(arguments.model)
        metric = embeddings.metric
        corrected = "hubness" in run.model(arguments.model).settings
        photos = embeddings.read("images", np.arange(int(run.manifest.bounds("images")[-1])))
        pairs = run.pairs(arguments.split)
        captions = embeddings.read("sentences", pairs.sentence_id)
        own = pairs.image_id
        rows = own[pairs.owners]
    positions = np.full(len(photos), -1)
    positions[own] = np.arange(len(own))
    captions = captions[positions[rows] >= 0]
    rows = rows[positions[rows] >= 0]

    def measure(name: str, index: faiss.Index, full: dict[str, float] | None) -> dict[str, float]:
        scores = scores_of(index, captions)
        found = {"all": recall(scores, rows), "split": recall(scores[:, own], positions[rows])}
        kept = {key: 100 * value / full[key] for key, value in found.items()} if full else {}
        facts = {"name": name, "dimensions": photos.shape[1], "bytes": index.sa_code_size(), "photos": len(photos)}
        print(json.dumps({**facts, "queries": len(captions), "recall@10": found, "kept": kept}), flush=True)
        return found

    flat = faiss.IndexFlat(photos.shape[1], faiss.METRIC_L2)
    flat.add(photos)
    full = measure("vectors", flat, None)
    for code, dims in TRIALS:
        measure(f"{code}, {dims or 'default'} axes", build_codes(photos, metric, code, dims, corrected), full)
    if not corrected:
        measure("RaBitQ, 64 axes", rabitq(photos, 64), full)


if __name__ == "__main__":
    main()
