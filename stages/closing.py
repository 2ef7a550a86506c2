"""The end of a run: removing leftovers, and printing what was found."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.remote.paths import place
from pipeline.run import Run

if TYPE_CHECKING:
    from pipeline.index.queries import QueryEncoder
    from pipeline.storage.bundle import Bundle

LONGEST, LOOKED_AT = 80, 20
"""Characters of the sentence or photograph in the printed command, and how many it is chosen from."""
FALLBACK = "a dog on the grass"


def close(run: Run, started: float) -> Iterator[str]:
    """Remove the locks of jobs that were killed after their last write, and print the closing lines where the summary
    or the report is newer than `started`; yields warnings."""
    from pipeline.storage.locks import remove_free

    for path in run.root.rglob(".*.lock"):
        remove_free(path)
    made = (run.layout.summary.path, run.layout.report.path)
    if any(path.exists() and path.stat().st_mtime >= started for path in made):
        try:
            print("\n".join(closing_lines(run.root, Path(sys.executable).with_name("jointspace"))), flush=True)
        except JointspaceError as error:
            yield str(error)


def closing_lines(run: Path, program: Path) -> list[str]:
    """The recalls of each model, the report's path, and a search with the best model, as far as the folder `run` has
    these; `program` is the command `jointspace`. Raises IntegrityError for what is damaged."""
    import os
    import shlex

    from pipeline.evaluate.summary import compare_briefly

    found = results_of(run)
    lines = compare_briefly(found["evaluations"]) if found["evaluations"] else []
    if found["report"]:
        lines.append(f"report: {found['report']}")
    if found["search"]:
        near = os.path.relpath(program)
        command = str(program) if near.startswith("..") else near
        lines.append(f"search: {shlex.join([command, *found['search']])}")
    return lines


def results_of(run: Path) -> dict[str, Any]:
    """What the folder `run` has to show: `evaluations`, the best model's first; the path of the `report`; and a
    `search` with that model, as arguments of `jointspace`. Raises IntegrityError for what is damaged."""
    from pipeline.evaluate.summary import ranking
    from pipeline.storage.bundles import open_bundle
    from pipeline.storage.files import plain
    from pipeline.storage.json_files import read_json

    summary, report = run / "evaluation" / "summary.json", run / "report" / "index.html"
    ranked = ranking(values) if summary.exists() and (values := read_json(summary)) else []
    if ranked:
        bundles = [run / "index" / plain(ranked[0]["model"], summary)]
    else:
        bundles = sorted(card.parent for card in (run / "index").glob("*/card.json"))
    search = example_search(open_bundle(bundles[0])) if bundles and bundles[0].exists() else None
    return {
        "run": str(run),
        "evaluations": ranked,
        "report": str(report) if report.exists() else None,
        "search": search,
    }


def example_search(bundle: "Bundle") -> list[str] | None:
    """A search that the bundle can answer: for a short sentence of its own, all of whose words it knows, else for the
    known words of one, else for one of its photographs; None where it answers vectors alone. It is safe to print."""
    from pipeline.index.queries import QueryEncoder

    asker, words = QueryEncoder(bundle), ["search", "--index", str(bundle.folder)]
    with suppress(UsageError):
        if sentence := _known_sentence(asker, (*_printable(bundle, "sentences", "text"), FALLBACK)):
            return [*words, sentence]
    with suppress(UsageError):
        asker.stored_encoders()
        root = place(bundle.card["data_root"])
        found = (root / path for path in _printable(bundle, "images", "path"))
        if photograph := next(
            (path for path in found if path.suffix != ".tar" and isinstance(path, Path) and path.is_file()), None
        ):
            return [*words, "--image", str(photograph)]
    return None


def _known_sentence(asker: "QueryEncoder", sentences: Sequence[str]) -> str | None:
    """The first of some sentences without an unknown word, else the longest run of known words in the first that has
    one."""
    for whole in (True, False):
        for sentence in sentences:
            words = sentence.split()
            runs = (
                [words] if whole else [list(run) for is_new, run in groupby(words, asker.unknown_words) if not is_new]
            )
            known = " ".join(max(runs, key=len, default=[]))
            with suppress(InputError):
                asker.require_known(known)
                if not asker.unknown_words(known):
                    return known
    return None


def search_command(folder: Path) -> str | None:
    """The same as a command on the bundle in `folder`."""
    import shlex

    from pipeline.storage.bundles import open_bundle

    example = example_search(open_bundle(folder))
    return shlex.join(["jointspace", *example]) if example else None


def _printable(bundle: "Bundle", modality: str, column: str) -> Iterator[str]:
    """Some values of a column that are short, and safe in a command."""
    table = bundle.packed_table(modality)
    texts = [record[column] or "" for record in table.records(range(min(LOOKED_AT, table.num_rows)))]
    yield from (text for text in texts if 0 < len(text) <= LONGEST and text.isprintable() and text[0] != "-")
