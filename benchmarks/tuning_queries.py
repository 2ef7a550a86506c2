"""Compares an index of images that was tuned with captions, with phrases, and with the images' own vectors.

    python benchmarks/tuning_queries.py [--vectors 1000000] [--dim 96] [--floor 0.95] [--autofaiss SOME/VENV/bin/python]
    python benchmarks/tuning_queries.py --run results/flickr8k --model ncca [--candidates IVF256,Flat ...]

jointspace chooses and tunes an index with each kind of queries. Then 1,000 other captions are searched in every index.
`recall_of_captions` is the recall@10 of these captions, compared with exact search. `card` is the recall that the index
card shows. The last lines compare the time of these searches.

Without --run, the pairs are synthetic. An image and its caption are two noisy views of a latent vector, as in
benchmarks/index.py. A constant vector is added to all images, and another constant vector to all captions, so that
there is a gap between the modalities as in CLIP. Phrases are texts whose latent vectors do not come from the clusters
of the collection.

With --run, the vectors are the images and captions of a run, and the phrases are embedded by its text encoders.

autofaiss runs in its own environment (see benchmarks/index.py), and tunes its index with the indexed vectors.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from interleave import compare, describe_processor, parse_options, report

from pipeline.compute import runtime

runtime.configure()

from index import run_autofaiss  # noqa: E402  `index` configures the runtime, before numpy is imported

# isort: split
import faiss  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402, F401  exact search uses torch if torch is loaded

from pipeline.compute.multivectors import one_vector_each  # noqa: E402
from pipeline.index.build import choose_and_build  # noqa: E402
from pipeline.index.chooser import Requirements  # noqa: E402
from pipeline.index.exact import Vectors, evenly_spaced  # noqa: E402
from pipeline.index.tuning import Questions, ask, recall_of, timed_search  # noqa: E402
from pipeline.run import Run  # noqa: E402
from pipeline.run.reading.indexes import find_queries  # noqa: E402
from pipeline.run.reading.texts import RunTextEmbedder  # noqa: E402

QUERIES = 1000
GAP = 0.7
"""Length of the constant vector that is added to a modality, if a whole vector has the length 1. The cosine of two
images of CLIP is about GAP ** 2 on average.
"""


def make_gapped_pairs(count: int, dim: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Draw synthetic pairs of images and captions with a gap between the modalities. All vectors have unit length.

    Return the images (count, dim), at most QUERIES queries of each kind that tunes an index (`captions`, `phrases`,
    `images`), and at most QUERIES other captions, which measure the recall of the index.
    """
    rng = np.random.default_rng(0)
    correlation = (0.9 * np.arange(1, dim + 1) ** -0.27).astype(np.float32)
    coarse = 0.75 * rng.standard_normal((64, dim), dtype=np.float32)
    fine = 0.5 * rng.standard_normal((4096, dim), dtype=np.float32) + coarse[np.arange(4096) % 64]
    offsets = GAP * np.linalg.qr(rng.standard_normal((dim, 2)))[0].T.astype(np.float32)

    def view(latent: np.ndarray, offset: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal(latent.shape, dtype=np.float32)
        x = correlation * (np.sqrt(correlation) * latent + np.sqrt(1 - correlation) * noise)
        x = offset + np.sqrt(1 - GAP**2) * x / np.linalg.norm(x, axis=1, keepdims=True)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    captions = []
    images = np.empty((count, dim), np.float32)
    step = max(1, count // (2 * QUERIES))
    for start in range(0, count, 65536):
        rows = min(65536, count - start)
        latent = fine[rng.integers(len(fine), size=rows)] + 0.45 * rng.standard_normal((rows, dim), dtype=np.float32)
        images[start : start + rows] = view(latent, offsets[0])
        captions.append(view(latent[::step], offsets[1]))
    every = np.concatenate(captions)
    elsewhere = np.sqrt(0.75**2 + 0.5**2 + 0.45**2) * rng.standard_normal((QUERIES, dim), dtype=np.float32)
    tuning = {
        "captions": every[::2][:QUERIES],
        "phrases": view(elsewhere.astype(np.float32), offsets[1]),
        "images": images[evenly_spaced(count, QUERIES)],
    }
    return images, tuning, every[1::2][:QUERIES]


def read_pairs(folder: Path, model: str) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Read the vectors of the run in `folder` in the space of `model`. Return the vectors of all images (n, c), at most
    QUERIES queries of each kind that tunes an index (`captions`, `phrases`, `images`), and at most QUERIES other
    captions, which measure the recall of the index.
    """
    run = Run(folder)
    embeddings = run.embeddings(model)
    image_id = np.arange(run.manifest.bounds("images")[-1])
    every = evenly_spaced(int(run.manifest.bounds("sentences")[-1]), 2 * QUERIES)
    mapping, _ = run.restored(model)
    phrases = find_queries(run, embeddings, image_id, None, RunTextEmbedder(run, mapping))
    tuning = {
        "captions": embeddings.read("sentences", every[::2]),
        phrases.measured_with: phrases.vectors,
        "images": embeddings.read("images", image_id[evenly_spaced(len(image_id), QUERIES)]),
    }
    vectors = {name: one_vector_each(items) for name, items in tuning.items()}
    images = one_vector_each(embeddings.read("images", image_id))
    return images, vectors, one_vector_each(embeddings.read("sentences", every[1::2]))


def judge(index: faiss.Index, questions: Questions, photos: Questions) -> dict[str, float]:
    """Return the recall@10 of an index, from 0 to 1, compared with exact search: for the captions `questions` as
    queries, and for the images `photos` as queries. Also return the number of captions that the index answers per CPU
    second.
    """
    rows, seconds = timed_search(index, questions)
    return {
        "recall_of_captions": recall_of(rows, questions),
        "recall_of_images": recall_of(timed_search(index, photos)[0], photos),
        "captions_per_second": 1 / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("vectors", 1_000_000), ("dim", 96), ("repeats", 5), ("sample", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--floor", type=float, default=0.95)
    parser.add_argument("--run", type=Path, metavar="RUN")
    parser.add_argument("--model", default="ncca")
    parser.add_argument("--candidates", nargs="+", metavar="FACTORY")
    parser.add_argument("--autofaiss", metavar="PYTHON")
    given = parse_options(parser, globals(), vectors=3000, dim=16, sample=1000, QUERIES=100)
    images, tuning, captions = (
        read_pairs(given.run, given.model) if given.run else make_gapped_pairs(given.vectors, given.dim)
    )
    vectors = Vectors(images)
    questions = ask(captions, vectors.blocks(), len(images), "inner_product")
    photos = ask(tuning["images"], vectors.blocks(), len(images), "inner_product")
    candidates = tuple(given.candidates) if given.candidates else "auto"
    requirements = Requirements(given.floor, None, None, 1000, candidates, given.sample)
    indexes: dict[str, faiss.Index] = {}
    for kind, queries in tuning.items():
        built = choose_and_build(vectors, queries, "inner_product", requirements)
        index = indexes[kind] = built.index
        settings = {name: getattr(built.card, name) for name in ("factory", "nprobe", "efSearch", "k_factor")}
        measured = {"card": built.card.recall, "bytes": built.card.bytes, **judge(index, questions, photos)}
        report({"name": "chosen index", "tuned_with": kind, **settings, **measured, "processor": describe_processor()})
    if given.autofaiss:
        with tempfile.TemporaryDirectory() as folder:
            theirs, about = run_autofaiss(given.autofaiss, images, Path(folder))
        measured = {"bytes": about["bytes"], "build_seconds": about["seconds"], **judge(theirs, questions, photos)}
        report({"name": "index that autofaiss tuned", "tuned_with": "images", "factory": about["key"], **measured})
    searches = {kind: partial(index.search, captions, 10) for kind, index in indexes.items()}
    for other in ("captions", "images"):
        name = f"search in the index tuned with phrases, compared with the index tuned with {other}"
        report(compare(name, searches["phrases"], searches[other], given.repeats, runtime.threads()))


if __name__ == "__main__":
    main()
