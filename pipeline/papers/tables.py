"""Published, reproduced and improved results of a paper, as JSON and as Markdown.

A result is {`paper`, `run`, `tables`}. `describe_run` of stages.papers.reproduce makes `run`. A table is
{`paper`, `title`, `published_columns`, `columns`, `rows`, `compared`, `differences`, `notes`}, or {`paper`, `title`,
`left_out`: the reason}. Columns are groups {`title`, `measures`}, and numbers are listed over all groups. A row is
{`name`, `published`: numbers or null, `reproduced`, `improved`: lists of systems}, and a system is {`system`, `values`:
for each column the numbers of its trainings, or null}. A difference is {`above`, `below`, `published`: for each of
`compared` a number or null, `found`: for each {`difference`, `ci95` or null}}.

`python -m pipeline.papers.tables` writes the blocks of docs/papers.md and docs/papers/*.md again. A block stands
between `<!-- KIND RESULT: TITLE -->` and `<!-- end -->` and shows docs/papers/results/RESULT.json, which is a copy of
the `reproduction.json` of a run. KIND is `table`, `notes`, `differences` or `run`. TITLE is the beginning of the title
of a table, after `AUTHORS: ` in a result of several papers.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.papers.published import CHANCE

Result = Mapping[str, Any]
"""A result, a table, a group of columns, a row or a system, in the form that the docstring of this module describes."""
BLOCK = re.compile(r"(<!-- (\w+) (\w+)(?:: (.+?))? -->\n)(.*?)(<!-- end -->)", re.S)
GROUPS = ("reproduced", "improved")
PARTS = ("published_columns", "columns", "rows", "compared", "differences", "notes")
LINE_STARTS = re.compile(r' (\{"(?:paper|name|above)": )')
"""Pattern that matches where a table, a row or a difference starts in the JSON of a result. The pattern cannot match
inside a text, because quotes in texts are escaped."""


def table(paper: str, title: str, **parts: Sequence) -> Result:
    """Make a table of a paper. `parts` has values for some of the keys in PARTS. The other keys of PARTS are empty."""
    return {"paper": paper, "title": title, **dict.fromkeys(PARTS, ()), **parts}


def group(title: str, measures: Sequence[str]) -> Result:
    """Make a group of columns with the heading `title`, which may be empty, and a heading for each measure."""
    return {"title": title, "measures": list(measures)}


def row(
    name: str,
    published: Sequence[float | None] = (),
    reproduced: Sequence[Result] = (),
    improved: Sequence[Result] = (),
) -> Result:
    """Make a row with the `published` numbers of the paper, and the systems of this project (made by `system`) with the
    settings of the paper (`reproduced`) and with other settings (`improved`)."""
    return {"name": name, "published": list(published), "reproduced": reproduced, "improved": improved}


def system(name: str, values: Sequence[Sequence[float] | None]) -> Result:
    """Make a system of a row. `values` has, for each column, the numbers of all trainings, or None. `name` may be empty
    if the name of the row says which system it is."""
    return {"system": name, "values": values}


def dump(result: Result) -> str:
    """Return a result as JSON text with four decimals, and with one line for each table, row and difference."""
    rounded = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 4))
    return LINE_STARTS.sub(r"\n\1", json.dumps(rounded, ensure_ascii=False)) + "\n"


def render(table: Result) -> str:
    """Render a table as Markdown, with its heading, notes and differences, or the reason why the table is left out."""
    heading = f"## {table['paper']}: {table['title']}"
    if "left_out" in table:
        return f"{heading}\n\nThis table is left out: {table['left_out']}."
    parts = [heading, "\n".join(render_table(table)), "\n".join(table["notes"]), "\n".join(render_differences(table))]
    return "\n\n".join(filter(None, parts))


def render_table(table: Result) -> list[str]:
    """Return the lines of a Markdown table with the published numbers, the reproduced and the improved systems of each
    row.

    Columns that would be empty in all rows are left out: of the published numbers, of the reproduced systems, or of the
    improved systems. A cell has the numbers of a group of columns. Each number of a system is the mean of the trainings
    ± their standard deviation. The list is empty if the table has no rows.
    """
    rows = table["rows"]
    if not rows:
        return []
    published = table["published_columns"] if any(row["published"] for row in rows) else []
    shown = [name for name in GROUPS if any(row[name] for row in rows)]
    heads = ["system", *(_head("published", columns) for columns in published)]
    for name in shown:
        heads += [*(_head(name, columns) for columns in table["columns"]), f"{name}: trainings"]
    lines = _start(*heads)
    for row in rows:
        numbers = [f"{number:g}" if number is not None else "-" for number in row["published"]]
        together = list(zip_longest(*(row[name] for name in shown))) or [(None,) * len(shown)]
        for number, systems in enumerate(together):
            first = [row["name"], *_join(numbers, published)] if number == 0 else [""] * (1 + len(published))
            lines.append(_line(*first, *(cell for one in systems for cell in _measured(one, table["columns"]))))
    return lines


def _measured(system: Result | None, columns: Sequence[Result]) -> list[str]:
    if system is None:
        return [""] * (len(columns) + 1)
    counts = [str(len(values)) if values else "-" for values in system["values"]]
    known = set(counts) - {"-"}
    count = known.pop() if len(known) == 1 else " / ".join(counts)
    name = f"`{system['system']}`" if system["system"] else ""
    trainings = name if system["system"] == CHANCE else ": ".join(filter(None, [name, count]))
    return [*_join(list(map(_mean, system["values"])), columns), trainings]


def _mean(values: Sequence[float] | None) -> str:
    if values is None:
        return "-"
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def _head(name: str, columns: Result) -> str:
    title = f"{name}, {columns['title']}" if columns["title"] else name
    return f"{title} ({' / '.join(columns['measures'])})" if columns["measures"] else title


def _join(numbers: Sequence[str], columns: Sequence[Result]) -> list[str]:
    """Return one cell for each of the groups `columns`. A cell has the numbers of its group, separated by " / ".

    `numbers` has the numbers of all groups, one after the other. If `numbers` is empty, the cells are empty.
    """
    rest = iter(numbers)
    return [" / ".join(next(rest) for _ in one["measures"]) if numbers else "" for one in columns]


def render_differences(table: Result) -> list[str]:
    """Return the lines of a Markdown table of the differences between reproduced systems, with 95 % intervals if any
    difference has one. The list is empty if there are no differences."""
    if not table["differences"]:
        return []
    what = " / ".join(table["compared"])
    has_intervals = any(found["ci95"] for one in table["differences"] for found in one["found"])
    lines = _start(f"difference ({what})", "published", "reproduced", *(["95 % interval"] if has_intervals else []))
    for one in table["differences"]:
        intervals = ["{:.1f} to {:.1f}".format(*found["ci95"]) if found["ci95"] else "-" for found in one["found"]]
        published = ["-" if number is None else f"{number:+.1f}" for number in one["published"]]
        cells = [published, [f"{found['difference']:+.1f}" for found in one["found"]], intervals]
        name = f"{one['above']} minus {one['below']}"
        lines.append(_line(name, *map(" / ".join, cells[: 2 + has_intervals])))
    return lines


def _start(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def render_run(result: Result) -> str:
    """Return the sentence that says how a result was measured: commit, configuration, data, time and machine."""
    run = result["run"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    tree = "" if run["clean"] else ", with changes that were not committed"
    return (
        f"Measured at commit {run['commit']}{tree}, with the configuration {run['configuration'][:12]} on the data"
        f" {run['data'][:12]}, in {run['seconds']:,.0f} seconds of jobs on {run['machine']}, with {versions}."
    )


KINDS = {"table": render_table, "differences": render_differences}
"""The kinds of blocks (see the docstring of this module) that are tables in Markdown, and their functions."""


def refresh(page: str, results: Mapping[str, Result]) -> str:
    """Return the text `page` with every block rendered again. `results` has the results by their names.

    Raises KeyError for an unknown kind or result, and StopIteration for an unknown table.
    """

    def block(match: re.Match) -> str:
        head, kind, name, title, _, end = match.groups()
        result = results[name]
        if kind == "run":
            return head + render_run(result) + "\n" + end
        table = next(table for table in result["tables"] if _has_title(table, title))
        rows = [row for row in table.get("rows", ()) if row["reproduced"] or row["improved"]]
        lines = table["notes"] if kind == "notes" else KINDS[kind]({**table, "rows": rows})
        return head + "\n".join(lines) + "\n" + end

    return BLOCK.sub(block, page)


def _has_title(table: Result, title: str) -> bool:
    return f"{table['paper']}: {table['title']}".startswith(title) or table["title"].startswith(title)


def refreshed(docs: Path) -> dict[Path, str]:
    """Return the refreshed texts of `papers.md` and `papers/*.md` in the folder `docs`, by path (see `refresh`)."""
    results = {path.stem: json.loads(path.read_bytes()) for path in sorted((docs / "papers/results").glob("*.json"))}
    pages = [docs / "papers.md", *sorted((docs / "papers").glob("*.md"))]
    return {path: refresh(path.read_text(encoding="utf-8"), results) for path in pages}


if __name__ == "__main__":
    for path, text in refreshed(Path(*sys.argv[1:]) if sys.argv[1:] else Path("docs")).items():
        path.write_text(text, encoding="utf-8")
