"""The results of a run, as its end prints them: recalls, warnings, the report, and a search to try."""

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

LONGEST, LOOKED_AT = 80, 20
"""Characters of the sentence or photograph in the printed command, and how many it is chosen from."""
FALLBACK = "a dog on the grass"


def close(run: Run, started: float) -> Iterator[str]:
    """Remove the locks of jobs that were killed after their last write, and print the closing lines where the summary
    or the report is newer than `started`; yields warnings."""
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
    """Describes the recalls of each model, the warnings of `ingest`, the report's path, and a search with the best
    model, as far as the folder `run` has these. Raises IntegrityError for what is damaged."""
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
    """Collects the results of the folder `run`: `evaluations`, the best on the reported split first; the `warnings` of
    `ingest`; the path of the `report`; and a `search` with the best model on dev that has an index, as arguments of
    `jointspace`. Raises IntegrityError for what is damaged."""
    from pipeline.metrics.summary import ranking
    from pipeline.report.tables import best_model
    from pipeline.storage.files import plain
    from pipeline.storage.json_files import read_json
    from pipeline.storage.stored_index import open_index

    summary, report = run / "evaluation" / "summary.json", run / "report" / "index.html"
    evaluations = read_json(summary) if summary.exists() else []
    ranked = ranking(evaluations) if evaluations else []
    index = next((card.parent for card in sorted((run / "index").glob("*/card.json"))), run / "index")
    indexed = {one["model"] for one in ranked if (run / "index" / plain(one["model"], summary)).exists()}
    if indexed:  # a generator that ranks by perplexity has no index
        index = run / "index" / best_model(evaluations, indexed)
    return {
        "run": str(run),
        "evaluations": ranked,
        "warnings": warnings_of(run),
        "report": str(report) if report.exists() else None,
        "search": example_search(open_index(index)) if index != run / "index" else None,
    }


def warnings_of(run: Path) -> list[str]:
    """Reads the warnings that `ingest` has left in the manifest of the folder `run`."""
    from pipeline.storage.json_files import read_json

    manifest = run / "manifest" / "manifest.json"
    return read_json(manifest).get("warnings", []) if manifest.exists() else []


def example_search(index: "StoredIndex") -> list[str] | None:
    """A search that the index can answer: for a short sentence of its own, all of whose words it knows, else for the
    known words of one, else for one of its photographs; None where it answers vectors alone. It is safe to print."""
    from pipeline.config.registry import named_places
    from pipeline.index.queries import QueryEncoder

    encoder = QueryEncoder(index)
    parts = [*index.card.encoders.values(), *index.card.text_encoders.values()]
    places = named_places([{"model": index.card.registered}, *(part.to_json() for part in parts)])
    allowed = [word for place in sorted(places) for word in ("--allow", place)]
    command = [*allowed, "search", str(index.folder)]
    with suppress(UsageError):
        if sentence := _known_sentence(encoder, [*_printable(index, "sentences", "text"), FALLBACK]):
            return [*command, tidy(sentence)]
    with suppress(UsageError):
        encoder.stored_encoders()  # imported features have none
        root = Path(index.card.data_root)
        for photograph in (root / path for path in _printable(index, "images", "path")):
            if photograph.suffix != ".tar" and photograph.is_file():
                return [*command, "--image", str(photograph)]
    return None


def _known_sentence(encoder: "QueryEncoder", sentences: Sequence[str]) -> str | None:
    """The first of some sentences without an unknown word, else the longest run of known words in the first that has
    one."""
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
    """The same as a command on the index in `folder`."""
    from pipeline.storage.stored_index import open_index

    example = example_search(open_index(folder))
    return shlex.join(["jointspace", *example]) if example else None


def _printable(index: "StoredIndex", modality: "Modality", column: str) -> Iterator[str]:
    """Some values of a column that are short, and safe in a command."""
    table = index.packed_table(modality)
    texts = [record[column] or "" for record in table.records(range(min(LOOKED_AT, table.num_rows)))]
    yield from (text for text in texts if 0 < len(text) <= LONGEST and text.isprintable() and text[0] != "-")
