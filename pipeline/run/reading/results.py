"""The results that are printed at the end of a run: recalls, warnings, the path of the report, and a search to try."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.printable import printable, tidy
from pipeline.run import Run

if TYPE_CHECKING:
    from pipeline.index.queries import QueryEncoder
    from pipeline.storage.card import Modality
    from pipeline.storage.stored_index import StoredIndex

MAX_QUERY_CHARACTERS = 80
"""Largest number of characters of the caption, or of the path of the photo, in the suggested search. Longer captions
and paths are not suggested."""
QUERY_CANDIDATES = 20
"""Number of captions, or of photos, from which the suggested search is chosen."""
FALLBACK_QUERY = "a dog on the grass"
"""The query of the suggested search if no caption of the index is suitable."""


def close(run: Run, started: float) -> Iterator[str]:
    """Finish a run: remove the lock files of killed jobs, and print the results if they are new.

    The results are new if the summary of the evaluations or the report was written after `started`, in seconds since
    the epoch. If a file of the results cannot be used, nothing is printed, and the message of the error is yielded as a
    warning. The caller must consume the iterator, because nothing happens before.
    """
    from pipeline.storage.locks import is_free, is_lock

    for path in run.root.rglob(".*.lock"):
        if is_lock(path):
            is_free(path, remove=True)
    results = (run.layout.summary.path, run.layout.report.path)
    if any(path.exists() and path.stat().st_mtime >= started for path in results):
        try:
            print("\n".join(closing_lines(run.root)), flush=True)
        except JointspaceError as error:
            yield str(error)


def closing_lines(run: Path) -> list[str]:
    """Return the lines that are printed at the end of the run in the folder `run`.

    The lines show the recalls of each model, the warnings of `ingest`, the path of the report, and a search with the
    best model. A line is left out if the run does not have its content. Raises IntegrityError if a file is damaged.
    """
    from pipeline.metrics.summary import compare_briefly

    results = results_of(run)
    lines = compare_briefly(results["evaluations"]) if results["evaluations"] else []
    lines += [printable(f"warning: {warning}") for warning in results["warnings"]]
    if results["report"]:
        lines.append(f"report: {results['report']}")
    if results["search"]:
        program = Path(sys.executable).with_name("jointspace")
        nearby = os.path.relpath(program)
        command = str(program) if nearby.startswith("..") else nearby
        lines.append(f"search: {shlex.join([command, *results['search']])}")
    return lines


def results_of(run: Path) -> dict[str, Any]:
    """Collect the results of the run in the folder `run`, as JSON.

    The result has these keys. `run` is the path of the folder. `evaluations` has the evaluations of the reported split
    and protocol, the best first, and `warnings` has the warnings of `ingest`. `report` is the path of the report, or
    None. `search` has the arguments of a `jointspace` command that searches the index of the best model on dev, or on
    another split if no model was evaluated on dev. Without evaluations, the command searches the first index of the run
    by name. `search` is None if there is no index, or if the index cannot answer a search. Raises IntegrityError if a
    file is damaged.
    """
    from pipeline.metrics.summary import ranking
    from pipeline.report.tables import best_model
    from pipeline.storage.files import plain
    from pipeline.storage.json_files import read_json
    from pipeline.storage.stored_index import open_index

    summary = run / "evaluation" / "summary.json"
    report = run / "report" / "index.html"
    evaluations = read_json(summary) if summary.exists() else []
    ranked = ranking(evaluations) if evaluations else []
    index = next((card.parent for card in sorted((run / "index").glob("*/card.json"))), run / "index")
    indexed = {one["model"] for one in ranked if (run / "index" / plain(one["model"], summary)).exists()}
    if indexed:  # Evaluated caption generators have no index.
        index = run / "index" / best_model(evaluations, indexed)
    return {
        "run": str(run),
        "evaluations": ranked,
        "warnings": warnings_of(run),
        "report": str(report) if report.exists() else None,
        "search": example_search(open_index(index)) if index != run / "index" else None,
    }


def warnings_of(run: Path) -> list[str]:
    """Read the warnings that `ingest` has written into the manifest of the run in the folder `run`.

    The list is empty if the run has no manifest yet.
    """
    from pipeline.storage.json_files import read_json

    manifest = run / "manifest" / "manifest.json"
    return read_json(manifest).get("warnings", []) if manifest.exists() else []


def example_search(index: "StoredIndex") -> list[str] | None:
    """Return the arguments of a `jointspace search` command that the index can answer, or None if no query is found.

    The query is the first short caption in which the model knows all words, or else the longest sequence of known words
    in the first short caption that has known words. FALLBACK_QUERY counts as the last caption. If the model knows no
    word, the query is a photo of the index. The arguments have no characters that are unsafe on a terminal.
    """
    from pipeline.config.registry import named_import_paths
    from pipeline.index.queries import QueryEncoder

    encoder = QueryEncoder(index)
    parts = [*index.card.encoders.values(), *index.card.text_encoders.values()]
    import_paths = named_import_paths([{"model": index.card.registered}, *(part.to_json() for part in parts)])
    allowed = [word for import_path in sorted(import_paths) for word in ("--allow", import_path)]
    command = [*allowed, "search", str(index.folder)]
    with suppress(UsageError):
        if sentence := _known_sentence(encoder, [*_short_values(index, "sentences", "text"), FALLBACK_QUERY]):
            return [*command, tidy(sentence)]
    with suppress(UsageError):
        encoder.stored_encoders()  # This raises UsageError if the features are precomputed.
        root = Path(index.card.data_root)
        for photograph in (root / path for path in _short_values(index, "images", "path")):
            if photograph.suffix != ".tar" and photograph.is_file():
                return [*command, "--image", str(photograph)]
    return None


def _known_sentence(encoder: "QueryEncoder", sentences: Sequence[str]) -> str | None:
    """Return the first sentence without unknown words, or else the longest sequence of known words in the first
    sentence that has known words.

    Return None if no sentence has a known word.
    """
    split = [sentence.split() for sentence in sentences]
    runs = [[list(run) for is_new, run in groupby(words, encoder.unknown_words) if not is_new] for words in split]
    for words in [*split, *(max(known, key=len, default=[]) for known in runs)]:
        sentence = " ".join(words)
        with suppress(InputError):
            encoder.require_known(sentence)
            if not encoder.unknown_words(sentence):
                return sentence
    return None


def search_command(folder: Path) -> str | None:
    """Return a command that searches the index in `folder`, as one line for a shell.

    Return None if `example_search` finds no query that the index can answer.
    """
    from pipeline.storage.stored_index import open_index

    example = example_search(open_index(folder))
    return shlex.join(["jointspace", *example]) if example else None


def _short_values(index: "StoredIndex", modality: "Modality", column: str) -> Iterator[str]:
    """Yield the values that are short and safe in a command, among the first QUERY_CANDIDATES of a text column."""
    table = index.packed_table(modality)
    texts = [record[column] or "" for record in table.records(range(min(QUERY_CANDIDATES, table.num_rows)))]
    for text in texts:
        if 0 < len(text) <= MAX_QUERY_CHARACTERS and text.isprintable() and text[0] != "-":
            yield text
