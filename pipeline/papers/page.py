"""A paper's results as `reproduce` stores them, and the Markdown that it and the documentation show of them.

`python -m pipeline.papers.page` writes every block of docs/papers.md and docs/papers/*.md again that stands between
`<!-- KIND PAPER: TITLE -->` and `<!-- end -->`, from docs/papers/results/PAPER.json, a copy of a run's
`reproduction.json`. KIND is `table`, the first whose title begins with TITLE, or, in results of several papers, with
`AUTHORS: title`; `verdicts` (a line for each printed order, or for the orders that TITLE names, `A above B; Table 1 / A
above B; ...`); or `run` (how it was measured).

A result is {`paper`, `run`: {`commit`, `machine`, `seconds`, `seed`, `versions`}, `tables`}. A table is {`paper`,
`title`, `said`, `columns`, `rows`, `judged`, `orders`, `notes`}, with `printed_columns` where the paper measures other
things than `columns`, or {`paper`, `title`, `left_out`: why}. A row is {`name`, `printed`: a number or null a column,
`ours`: [{`system`, `values`: the figures of its seeds or draws for each column, or null; `alike`: whether its settings
are the paper's, `settings`, `chosen`}]}. An order is {`above`, `below`, `systems`, `found`: for each of `judged`
{`printed`, `difference`, `ci95`, `p`, `verdict`}}; without a `below` it compares two of our own.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

Result = Mapping[str, Any]
"""A result, or a part of it, in the form that this module's docstring describes."""
BLOCK = re.compile(r"(<!-- (\w+) (\w+)(?:: (.+?))? -->\n)(.*?)(<!-- end -->)", re.S)
DEPTH = 4
"""Where a row and an order of a table lie in a result."""


PARTS = ("said", "columns", "rows", "judged", "orders", "notes")


def table(paper: str, title: str, **parts: Sequence) -> Result:
    """Make a table of a paper; missing parts are empty."""
    return {"paper": paper, "title": title, **dict.fromkeys(PARTS, ()), **parts}


def row(
    name: str,
    values: Sequence[Sequence[float] | None],
    printed: Sequence[float | None] = (),
    chosen: Sequence[Sequence[str]] | None = None,
) -> Result:
    """Make a row with one system of ours, which has no name."""
    system = {"system": "", "values": values, "alike": False, "settings": ""}
    if chosen is not None:
        system["chosen"] = chosen
    return {"name": name, "printed": printed, "ours": [system]}


def dump(result: Result) -> str:
    """Write JSON with four decimals, and a line for each row, each order and each list of words."""
    return _dump(json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 4)), 0) + "\n"


def _dump(value: "JsonValue", depth: int) -> str:
    if isinstance(value, dict):
        parts = [(f"{json.dumps(name)}: ", item) for name, item in value.items()]
    else:
        parts = [("", item) for item in value] if isinstance(value, list) else []
    if depth == DEPTH or not any(isinstance(item, dict | list) for _, item in parts):
        return json.dumps(value, ensure_ascii=False)
    lines = [" " * (depth + 1) + name + _dump(item, depth + 1) for name, item in parts]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * depth + closing


def render_table(table: Result) -> list[str]:
    """The rows as printed with ours beside them, where the columns are others, or below them, in bold."""
    if "printed_columns" not in table:
        lines = _head("as printed", "ours", *table["columns"]) if table["rows"] else []
        for row in table["rows"]:
            lines.append(
                _line(row["name"], "", *("-" if number is None else f"{number:g}" for number in row["printed"]))
            )
            for system in row["ours"]:
                if system["system"].endswith(" folds") and ", the first of " in system["system"]:
                    continue  # of which the mean stands beside it
                beside = row["printed"] if system["alike"] else [None] * len(row["printed"])
                lines.append(_line("", system["system"], *map(_above, system["values"], beside)))
        return lines
    theirs = " / ".join(table["printed_columns"])
    lines = _head("", *table["columns"], *([f"*printed: {theirs}*"] if theirs else []))
    for row in table["rows"]:
        printed = [" / ".join(map(str, row["printed"]))] if theirs else []
        lines.append(_line(row["name"], *map(_mean, row["ours"][0]["values"]), *printed))
    return lines


def _mean(values: Sequence[float] | None, form: str = "{:.1f}") -> str:
    """With the standard deviation."""
    if values is None:
        return "-"
    return form.format(np.mean(values)) + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def _above(values: Sequence[float] | None, printed: float | None) -> str:
    """A mean, and by how much it is above what is `printed`."""
    beside = "" if printed is None or values is None else f" ({np.mean(values) - printed:+.1f})"
    return _mean(values, "**{:.1f}**") + beside


def render_orders(table: Result) -> list[str]:
    """By how much a row is above another, as printed and here."""
    if not table["orders"]:
        return []
    several = any(order["systems"] for order in table["orders"])
    lines = _head("order", *(["ours"] if several else []), *table["judged"])
    for order in table["orders"]:
        systems = [" - ".join(order["systems"])] if several else []
        lines.append(_line(_name(order), *systems, *map(_tell, order["found"])))
    return lines


def _tell(difference: Result) -> str:
    printed = f", printed {difference['printed']:+.1f}" if difference["printed"] is not None else ""
    verdict = f": {difference['verdict']}" if difference["verdict"] else ""
    return _difference(difference) + printed + verdict


def _difference(difference: Result) -> str:
    low, high = difference["ci95"]
    return f"{difference['difference']:+.1f} ({low:.1f} to {high:.1f})"


def render_verdicts(result: Result, names: str | None = None) -> list[str]:
    """A line for each order that the paper states, or for the named ones: by how much, as printed and here, and whether
    it holds. Where several tables have an order, it has the name of its table."""
    orders = [(table, _name(order), order["found"]) for table, order in _orders(result["tables"], printed=not names)]
    tables = Counter(name for _, name, _ in orders)
    papers = {table["paper"] for table, _, _ in orders}
    if names:
        wanted = (name.rpartition(" / ") for name in names.split("; "))
        orders = [
            next(order for order in orders if order[1] == name and _is_of(order[0], title)) for title, _, name in wanted
        ]
    lines = _head("order", "printed", "ours", "verdict")
    for table, name, differences in orders:
        printed = dict.fromkeys(
            "-" if difference["printed"] is None else f"{difference['printed']:+.1f}" for difference in differences
        )
        verdicts = [difference["verdict"] for difference in differences]
        shown = verdicts[:1] if len(set(verdicts)) == 1 else verdicts
        title = table["paper"] if len(papers) > 1 else table["title"].partition(":")[0]
        where = f" ({title})" if tables[name] > 1 or len(papers) > 1 else ""
        lines.append(_line(name + where, *map(", ".join, (printed, map(_difference, differences), shown))))
    counted = any(difference["printed"] is not None for _, _, differences in orders for difference in differences)
    return [*lines, *(["", count_verdicts(result["tables"])] if counted else [])]


def _is_of(table: Result, title: str) -> bool:
    return f"{table['paper']}: {table['title']}".startswith(title) or table["title"].startswith(title)


def _name(order: Result) -> str:
    return f"{order['above']} above {order['below']}" if order["below"] else ""


def _orders(tables: Sequence[Result], printed: bool = True) -> list[tuple[Result, Result]]:
    """Those that a paper prints, or all that have a name, each with its table."""
    named = ((table, order) for table in tables for order in table.get("orders", ()) if order["below"])
    return [
        pair
        for pair in named
        if not printed or any(difference["printed"] is not None for difference in pair[1]["found"])
    ]


def count_verdicts(tables: Sequence[Result]) -> str:
    """How many orders hold, one by one and by Holm's correction for their number; those of one training set, whose
    intervals do not speak of others, are left out."""
    printed = [
        difference for _, order in _orders(tables) for difference in order["found"] if difference["printed"] is not None
    ]
    counted = [difference for difference in printed if not difference["verdict"].startswith("one set")]
    holding = [difference for difference in counted if difference["verdict"].startswith("holds")]
    surviving = 0
    for rank, difference in enumerate(sorted(counted, key=lambda difference: difference["p"])):
        if 2 * difference["p"] * (len(counted) - rank) > 0.05:
            break
        surviving += difference in holding
    single = len(printed) - len(counted)
    left_out = f" {single} of one training set are not counted." if single else ""
    return (
        f"Of {len(counted)} comparisons {len(holding)} hold, each by its own 95 % interval, and {surviving} of these"
        f" after Holm's correction for all of them.{left_out}"
    )


def render_run(result: Result) -> list[str]:
    """How a result was measured."""
    run = result["run"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return [f"Measured at commit {run['commit']}, seed {run['seed']}, in {run['seconds']:,.0f} seconds of jobs on"
            f" {run['machine']}; {versions}."]  # fmt: skip


def render(table: Result) -> str:
    """A section of a run's Markdown."""
    heading = f"## {table['paper']}: {table['title']}"
    if "left_out" in table:
        return f"{heading}\n\nLeft out: {table['left_out']}."
    settings = [f"- {system['system']} beside {row['name']}: {system['settings']}." for row in table["rows"]
                for system in row["ours"] if system["settings"]]  # fmt: skip
    parts = [heading, *table["said"], "\n".join(render_table(table)), "\n".join([*settings, *table["notes"]])]
    if table["orders"]:
        parts += [ORDERS, "\n".join(render_orders(table))]
    return "\n\n".join(filter(None, parts))


ORDERS = (
    "By how much a row is above another: ours with the paired 95 % interval over images and seeds or draws, which is"
    " not corrected for the number of orders."
)


def _head(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def refresh(page: str, results: Mapping[str, Result]) -> str:
    """`page` with every block rendered again. Raises KeyError or StopIteration where a result lacks what it names."""

    def block(match: re.Match) -> str:
        head, kind, paper, title, _, end = match.groups()
        result = results[paper]
        if kind == "verdicts":
            lines = render_verdicts(result, title)
        elif kind == "run":
            lines = render_run(result)
        else:
            table = next(table for table in result["tables"] if _is_of(table, title))
            table = {**table, "rows": [row for row in table["rows"] if row["ours"]]}  # printed.yaml has the others
            lines = render_table(table)
            if table["notes"] and ("printed_columns" in table or not table["rows"]):
                lines += ["", *table["notes"]]
        return head + "\n".join(lines) + "\n" + end

    return BLOCK.sub(block, page)


def refreshed(docs: Path) -> dict[Path, str]:
    """Every page of the papers under `docs` as it should be."""
    results = {path.stem: json.loads(path.read_bytes()) for path in sorted((docs / "papers/results").glob("*.json"))}
    pages = [docs / "papers.md", *sorted((docs / "papers").glob("*.md"))]
    return {path: refresh(path.read_text(encoding="utf-8"), results) for path in pages}


if __name__ == "__main__":
    for path, text in refreshed(Path(*sys.argv[1:]) if sys.argv[1:] else Path("docs")).items():
        path.write_text(text, encoding="utf-8")
