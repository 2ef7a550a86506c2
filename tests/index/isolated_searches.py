"""Functions that search indexes of every type. Tests call them in a separate process, because FAISS may crash it."""

from pathlib import Path

import faiss
import numpy as np

from pipeline.index.filtering import reconstruct, search_among
from pipeline.index.format import METRICS, ExpectedIndex, from_bytes, to_bytes, view_bytes
from pipeline.storage.stored_index import open_index

ROWS = 600
DIM = 8
TOP = 10


def make_index(factory: str, metric: str) -> tuple[faiss.Index, np.ndarray]:
    """Make a FAISS index of ROWS random vectors with a factory string. The id of a vector is its row. Return the index
    and the vectors (ROWS, DIM)."""
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
    index = faiss.index_factory(DIM, factory, METRICS[metric])
    index.train(vectors)
    if factory.startswith("IDMap"):
        index.add_with_ids(vectors, np.arange(ROWS))
    else:
        index.add(vectors)
    return index, vectors


def search_every_way(asked: tuple[str, str]) -> list[str]:
    """Search an index with and without conditions, and reconstruct its vectors. Return a description of each wrong
    result, or an empty list if all results are right.

    `asked` is the factory string and the metric of the index, which is made from random vectors.
    """
    index, vectors = make_index(*asked)
    card = ExpectedIndex(ROWS, DIM, asked[1])
    queries = vectors[:3] + 0.01
    faults = []
    for parse in (view_bytes, from_bytes):
        parsed = parse(to_bytes(index), "the index", card)
        if (parsed.search(queries, TOP)[1] < 0).any():
            faults.append("a search returns too few vectors")
        for step in (ROWS // 7, 2):  # First fewer vectors than TOP are allowed, and then more.
            allowed = np.arange(ROWS) % step == 1
            for row in search_among(parsed, queries, TOP, allowed).rows.tolist():
                wanted = set(np.flatnonzero(allowed).tolist())
                if len(set(row)) != min(TOP, len(wanted)) or not set(row) <= wanted:
                    faults.append(f"a search among {len(wanted)} allowed vectors returns the rows {row}")
        try:
            reconstructed = reconstruct(parsed, np.arange(ROWS))
        except RuntimeError as error:  # FAISS cannot reconstruct the vectors of this type.
            faults += [] if asked[0] == "IVF4,RaBitQfs" else [f"the vectors cannot be reconstructed: {error}"]
            continue
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = (reconstructed * unit).sum(axis=1) / np.linalg.norm(reconstructed, axis=1)
        if cosines.mean() < 0.7:
            faults.append(f"the mean cosine of the reconstructed and the original vectors is only {cosines.mean()}")
    return faults


def open_forged(asked: tuple[Path, dict[str, object]]) -> int:
    """Read a forged FAISS file, and search it for two queries, with and without a condition. Return the number of
    queries that are answered, which is 2.

    `asked` is the path of the file, and the values of an ExpectedIndex. Raises the error with which the file is refused
    or a search fails.
    """
    path, card = asked
    index = from_bytes(path.read_bytes(), "the index", ExpectedIndex(**card))
    queries = np.ones((2, index.d), np.float32)
    search_among(index, queries, TOP, np.arange(ROWS) % 2 == 0)
    return len(index.search(queries, TOP)[1])


def query_in_every_way(asked: tuple[Path, dict[str, np.ndarray], Path]) -> dict[str, object]:
    """Run every kind of query, and every command that uses the vectors, on an index.

    `asked` is the folder of the index, the features of a photo, and a folder for output. Return name -> outcome: for a
    query, the image ids that it finds, in ascending order, or the message of its error. For a command, the outcome is a
    text with the type and message of its error, which is `NoneType: None` if it succeeds.
    """
    from click.testing import CliRunner

    from pipeline.errors import JointspaceError
    from pipeline.index.search import Searcher
    from stages.cli import cli

    folder, photograph, output = asked
    searcher = Searcher(open_index(folder))
    where = "split = 'test'"
    answers: dict[str, object] = {}
    for name, answer in {
        "words": lambda: searcher.images("a dog", 3),
        "words where": lambda: searcher.images("a dog", 30, where),
        "similar": lambda: searcher.similar(photograph, 3),
        "similar where": lambda: searcher.similar(photograph, 3, where=where),
        "captions": lambda: searcher.sentences(photograph, 3),
        "captions where": lambda: searcher.sentences(photograph, 3, where),
        "arithmetic": lambda: searcher.analogy(photograph, ["dog"], ["cat"], 3, 5),
        "arithmetic where": lambda: searcher.analogy(photograph, ["dog"], ["cat"], 3, 5, where),
    }.items():  # fmt: skip
        try:
            answers[name] = sorted(hit.row["image_id"] for hit in answer())
        except JointspaceError as error:
            answers[name] = str(error)
    for words in (
        ("export", folder, "--to", "npy", "--output", output / "export"),
        ("remove", folder, 1, "--copy-to", output / "less"), ("add", folder, folder, "--copy-to", output / "more"),
    ):  # fmt: skip
        result = CliRunner().invoke(cli.get_command(None, words[0]), list(map(str, words[1:])))
        answers[words[0]] = f"{type(result.exception).__name__}: {result.exception}"
    return answers
