"""The end of a run: removing leftovers, and printing what was found."""

import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import JointspaceError
from pipeline.run import Run

LONGEST, LOOKED_AT = 80, 20
"""Characters of the sentence in the printed command, and how many sentences it is chosen from."""
FALLBACK = "a dog on the grass"


def close(run: Run, started: float) -> Iterator[str]:
    """Remove leftovers, and print the closing lines where the summary or the report is newer than `started`;
    yields warnings."""
    from pipeline.storage.leftovers import remove_leftovers

    yield from remove_leftovers(run.root)
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

    from pipeline.evaluate.summary import compare_briefly, ranking
    from pipeline.storage.atomic import read_json
    from pipeline.storage.bundle import CARD
    from pipeline.storage.names import plain

    summary, report = run / "evaluation" / "summary.json", run / "report" / "index.html"
    ranked = ranking(values) if summary.exists() and (values := read_json(summary)) else []
    lines = compare_briefly(ranked) if ranked else []
    if report.exists():
        lines.append(f"report: {report}")
    best = run / "index" / plain(ranked[0]["model"], summary) if ranked else run
    if (best / CARD).exists():
        near = os.path.relpath(program)
        command = str(program) if near.startswith("..") else near
        lines.append(f"search: {shlex.join([command, 'search', '--index', str(best), _example(best)])}")
    return lines


def _example(bundle: Path) -> str:
    """A short sentence of the bundle's own, whose words are therefore known, and which is safe to print."""
    from pipeline.storage.bundle import Bundle

    table = Bundle(bundle).packed_table("sentences")
    texts = [record["text"] or "" for record in table.records(range(min(LOOKED_AT, table.num_rows)))]
    usable = (text for text in texts if 0 < len(text) <= LONGEST and text.isprintable() and text[0] != "-")
    return next(usable, FALLBACK)
