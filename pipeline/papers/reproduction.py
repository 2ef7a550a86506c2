"""The papers' tables again: the printed numbers with ours below them, in the form of `pipeline.papers.page`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import JsonValue

from pipeline.metrics.paired import Columns, Draw, compare_draws
from pipeline.metrics.retrieval import PROTOCOLS, Bootstrap
from pipeline.metrics.summary import Evaluation, with_folds
from pipeline.papers import page
from pipeline.papers.printed import Column, PrintedRow, PrintedTable, printed_tables

HEADINGS = {
    "recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "Med r", "mean_rank": "mean rank",
    **{f"bleu_{n}": f"B-{n}" for n in range(1, 5)}, "meteor": "METEOR", "rouge_l": "ROUGE-L", "cider": "CIDEr",
}  # fmt: skip
TOLERANCE = 0.02
"""Share by which a gallery may differ from a printed one, since ingest leaves duplicates out."""
TASKS = {
    "image_to_sentence": "annotation", "sentence_to_image": "search", "sentence_similarity": "sentences of an image",
    "images": "images", "boxes": "boxes",
}  # fmt: skip
MISSING = {
    "image_to_sentence": "images that find sentences (no test image has any)",
    "sentence_to_image": "sentences that find images (no test image has any)",
    "sentence_similarity": "sentences of one image (some test image has only one)",
    "images": "descriptions of images (generators names those that describe)",
    "boxes": "descriptions of boxes (describe.boxes: true has them made)",
}
"""What a direction measures, and why a run may lack it."""
WHOLE, FIRST = PROTOCOLS
GALLERIES = {WHOLE: "every sentence in the gallery", FIRST: "the first sentence of each image in the gallery"}
Draws = Callable[[str, Columns], Draw]
"""A system of a run, measured in the gallery of the split by the sum of some columns of a table."""
PRINT_SHARE, OWN_SHARE = 0.9, 0.75
"""How much of its print, and of the best of its encoder in the run, a baseline must reach for an order to be tested."""
Gallery = Mapping[str, Evaluation]
"""Model -> its evaluation in one gallery."""
SystemSettings = tuple[str, str, Mapping[str, Any]]
"""The name of a model, the registered model, and its settings in the words of the configuration."""
SHOWN = (
    "loss", "negatives", "margin", "score", "sum", "cell", "encoders", "in place of", "space", "regions", "learns from",
)  # fmt: skip
"""Settings that are shown of every system of ours that has them."""


@dataclass(frozen=True)
class System:
    """What a run has trained: models, or a generator, that differ in nothing but their seeds (`names`), under one
    `label`. `model` is the registered one, `settings` its own in the words of the configuration, with `encoders`,
    `regions` and `learns from`."""

    label: str
    names: Sequence[str]
    model: str
    settings: Mapping[str, Any]

    def unlike(self, row: PrintedRow) -> list[str]:
        """The settings of a row that it has not."""
        return [key for key, value in (row.settings or {}).items() if self.settings.get(key) != value]

    def stands_for(self, row: PrintedRow, rows: Sequence[PrintedRow]) -> bool:
        """Whether it is the model of a row. One whose encoders stand in place of the network of one of the `rows` of
        that model is of that row alone."""
        networks = {other.network for other in rows if other.model == row.model}
        in_place_of = self.settings.get("in place of")
        alike = all(self.settings.get(key) == value for key, value in row.kind.items())
        return self.model == row.model and alike and (in_place_of not in networks or in_place_of == row.network)

    def tell(self, row: PrintedRow) -> str:
        """Its settings, and the row's where these are others."""
        printed_settings, unlike = row.settings or {}, self.unlike(row)
        parts = []
        for key in dict.fromkeys((*SHOWN, *printed_settings)):
            if key in self.settings or key in printed_settings:
                printed = f" (printed: {_word(printed_settings[key])})" if key in unlike else ""
                parts.append(f"{key} {_word(self.settings.get(key, 'none'))}{printed}")
        if row.settings is None:
            parts.append("the paper cites this row and does not give its settings, so no difference is given")
        elif unlike:
            parts.append("no difference is given")
        return "; ".join(parts)


def _word(value: "JsonValue") -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def systems(described: Iterable[SystemSettings]) -> list[System]:
    """The systems of models (name, registered model, settings): those whose names differ in the seed alone are one,
    under the name that they have in common."""
    groups: dict[str, list[SystemSettings]] = {}
    for item in described:
        groups.setdefault(re.sub(r"-seed\d+", "", item[0]), []).append(item)
    grouped = []
    for base, group in groups.items():
        names = [name for name, _, _ in group]
        _, model, settings = group[0]
        label = f"{base}, {len(names)} seeds" if len(names) > 1 else names[0]
        grouped.append(System(label, names, model, settings))
    return grouped


@dataclass(frozen=True)
class Measured:
    """A system's `evaluations` in a gallery of a table, one a seed."""

    system: System
    evaluations: Sequence[Evaluation]

    @property
    def label(self) -> str:
        return f"`{self.system.label}`"

    def values(self, direction: str, measure: str) -> list[float] | None:
        """Return its measurements by a column, or None if one is missing."""
        values = [evaluation[direction][measure] for evaluation in self.evaluations]
        return None if None in values else values

    def has(self, columns: Columns) -> bool:
        """Return whether it was measured by all columns."""
        return all(self.values(*column) is not None for column in columns)

    def worth(self, columns: Columns) -> float:
        """Sum its means over columns that it has."""
        return float(sum(np.mean(self.values(*column) or []) for column in columns))


@dataclass(frozen=True)
class Standing:
    """How well the system of a `label` was trained: what it has `reached` by some columns; what it reaches and what is
    printed in those of them that are `printed`; and by label what `peers` of its encoder reach in the same run."""

    label: str = ""
    reached: float = 0.0
    printed: tuple[float, float] | None = None
    peers: Mapping[str, float] = field(default_factory=dict)

    def shortfall(self, fewer: bool) -> str | None:
        """Why nothing can be said of it, where it is below PRINT_SHARE of its print, or below OWN_SHARE of the best of
        its encoder; of mean ranks `fewer` are better."""

        def share(value: float, goal: float) -> float:
            return (goal / value if fewer else value / goal) if value and goal else 1.0

        if self.printed and (of_print := share(*self.printed)) < PRINT_SHARE:
            return f"{self.label} is {abs(self.printed[1] - self.printed[0]):.1f} short of its print ({of_print:.0%})"
        shares = ((share(self.reached, value), name) for name, value in self.peers.items())
        least, best = min(shares, default=(1.0, ""))
        return f"{self.label} is at {least:.0%} of {best}" if least < OWN_SHARE else None


def verdict(interval: Sequence[float], above: Standing, below: Standing, fewer: bool = False) -> str:
    """Whether the `interval` of a printed order shows it (of mean ranks, `fewer` are better): holds, no, open, or not
    tested, where the system that comes out second was not trained well enough to say so."""
    low, high = (-interval[1], -interval[0]) if fewer else interval
    if low <= 0 <= high:
        return "open"
    outcome, second = ("holds", below) if low > 0 else ("no", above)
    shortfall = second.shortfall(fewer)
    return f"not tested: {shortfall}" if shortfall else outcome


@dataclass(frozen=True)
class Reproduction:
    """What a run has to be laid below printed tables: its `systems` and their `evaluations` of test by the `protocol`.

    `collection` is what the run's images are (None for one that no paper has): tables of others are left out unless
    they are among `others`. What a generator's descriptions are worth is an evaluation too, with `images` and `boxes`
    for its directions. `draws` gives what orders are judged by.
    """

    evaluations: Sequence[Evaluation]
    systems: Sequence[System]
    collection: str | None
    others: Sequence[str]
    draws: Draws
    bootstrap: Bootstrap
    protocol: str

    def tables(self, papers: Sequence[str]) -> list[page.Result]:
        """Every table of `papers` with our systems below the printed ones, and paired intervals for the orders that a
        paper states, or the reason why it is left out, as every printed row has one without a system of the run."""
        return [self._lay(table) for paper in papers for table in printed_tables().get(paper, ())]

    def _lay(self, table: PrintedTable) -> page.Result:
        """The rows of one table, its orders and notes, or why it is left out. One that was measured with a gallery of a
        certain size is laid beside the whole split, or the mean of its folds and the first of them, whichever are of
        that size."""
        about = {"paper": table.authors, "title": table.title}
        elsewhere = table.collection != self.collection
        if elsewhere and table.collection not in self.others:
            here = f"these images are {self.collection}" if self.collection else "reproduce.collection is null"
            return {**about, "left_out": f"it was measured on {table.collection}, and {here}"}
        directions = {direction for direction, _ in table.columns}
        of_test = [
            evaluation
            for evaluation in with_folds(self.evaluations)
            if evaluation["split"] == "test" and evaluation["protocol"].startswith(self.protocol)
        ]
        evaluations = [evaluation for evaluation in of_test if directions <= evaluation.keys()]
        galleries: dict[str, dict[str, Evaluation]] = {}
        for evaluation in evaluations:
            if _fits(table, evaluation):
                galleries.setdefault(evaluation["protocol"], {})[evaluation["model"]] = evaluation
        if evaluations and not galleries:
            sizes = sorted({evaluation["n_images"] for evaluation in evaluations})
            counts = " and ".join(f"{size:,}" for size in sizes)
            reason = f"it was measured with {table.images:,} test images at once, and ours are {counts}; set"
            return {**about, "left_out": f"{reason} evaluate.folds so that the folds are of that size"}
        lacking = " or ".join(MISSING[direction] for direction in sorted(directions))
        notes = [] if evaluations else [f"Ours: this run has not measured {lacking}."]
        said = [f"It was measured on {table.collection}, ours on {self.collection or 'other images'}."] * elsewhere
        said += [f"Ours: {protocol}." for protocol in galleries if protocol not in PROTOCOLS]
        random = [evaluation.get("chance", {}) for gallery in galleries.values() for evaluation in gallery.values()]
        chance = next((expected for expected in random if directions <= expected.keys()), None)
        rows, below = [], {}
        for row in table.rows:
            systems: list[dict[str, Any]] = []
            for protocol, gallery in galleries.items():
                measured = self._below(row, table, gallery)
                below.setdefault(row.name, measured)
                systems += [self._describe(row, table, system, protocol, not systems) for system in measured]
            if row.model == "chance" and chance:
                values = [[chance[direction][measure]] for direction, measure in table.columns]
                systems.append({"system": "a random ranking", "values": values, "alike": False, "settings": ""})
            elif evaluations and not systems:
                notes.append(f"- {row.name}: none of ours, `{row.model}` is not among this run's models so trained.")
            rows.append({"name": row.name, "printed": list(row.numbers), "ours": systems})
        first = next(iter(galleries.values()), {})
        columns = [f"{TASKS[direction]} {HEADINGS[measure]}" for direction, measure in table.columns]
        judged = [_criterion(columns) for columns in table.judged]
        orders = self._orders(table, below, first) if self.bootstrap.resamples else []
        return page.table(**about, said=said, columns=columns, rows=rows, judged=judged, orders=orders, notes=notes)

    def _below(self, row: PrintedRow, table: PrintedTable, gallery: Gallery) -> list[Measured]:
        """The systems that are the row's model, those with the fewest settings that are not the paper's first."""
        alike = [measured for measured in self._measured(gallery) if measured.system.stands_for(row, table.rows)]
        return sorted(alike, key=lambda measured: len(measured.system.unlike(row)))

    def _measured(self, gallery: Gallery) -> list[Measured]:
        whole = (system for system in self.systems if gallery.keys() >= {*system.names})
        return [Measured(system, [gallery[name] for name in system.names]) for system in whole]

    def _describe(
        self, row: PrintedRow, table: PrintedTable, measured: Measured, protocol: str, first: bool
    ) -> dict[str, Any]:
        """A system below a row, with its settings in the `first` gallery. A difference is given only where they are the
        paper's and every sentence is in the gallery."""
        comparable = table.collection == self.collection and self.protocol == WHOLE
        columns = [measured.values(*column) for column in table.columns]
        return {
            "system": measured.label + "".join(protocol.partition(",")[1:]),
            "values": [values and [round(value, 3) for value in values] for values in columns],
            "alike": row.settings is not None and comparable and not measured.system.unlike(row),
            "settings": measured.system.tell(row) if first else "",
        }

    def _orders(
        self, table: PrintedTable, below: Mapping[str, Sequence[Measured]], gallery: Gallery
    ) -> list[dict[str, Any]]:
        """The orders that the paper states, each between the systems nearest to its own, unless one system stands for
        both, and how those further from it stand to these."""
        rows = {row.name: row for row in table.rows}
        stated = [
            (rows[above], rows[lower], below[above][0], below[lower][0])
            for above, lower in table.orders
            if below.get(above) and below.get(lower) and below[above][0].system is not below[lower][0].system
        ]
        further = [
            (None, None, other, nearest) for nearest, *others in filter(None, below.values()) for other in others
        ]
        pairs = {
            (above and above.name, lower and lower.name, *(measured.label for measured in pair)): (above, lower, pair)
            for above, lower, *pair in (*stated, *further)
        }
        orders = []
        for (above_name, lower_name, *labels), (above, lower, pair) in pairs.items():
            if not all(measured.has(columns) for measured in pair for columns in table.judged):
                continue
            compared = []
            for columns in table.judged:
                ours, theirs = ([self.draws(name, columns) for name in measured.system.names] for measured in pair)
                difference = {**compare_draws(ours, theirs, self.bootstrap), "printed": None, "verdict": ""}
                if above and lower:
                    every = self._measured(gallery)
                    difference |= _judge(table, columns, (above, lower), pair, every, difference["ci95"])
                compared.append(difference)
            orders.append({"above": above_name, "below": lower_name, "systems": labels, "found": compared})
        return orders


def _judge(
    table: PrintedTable,
    columns: Columns,
    rows: tuple[PrintedRow, PrintedRow],
    pair: Sequence[Measured],
    every: Sequence[Measured],
    interval: Sequence[float],
) -> dict[str, Any]:
    """By how much the first of two `rows` is printed above the second by some columns, and whether the `interval` of
    the `pair` that stands for them shows it; `every` system of the run tells how well theirs were trained."""
    upper, lower = (dict(zip(table.columns, row.numbers, strict=True)) for row in rows)
    differences = [
        above - below
        for column in columns
        if (above := upper[column]) is not None and (below := lower[column]) is not None
    ]

    def standing(measured: Measured, numbers: Mapping[Column, float | None]) -> Standing:
        printed = [column for column in columns if numbers[column] is not None]
        reached = (measured.worth(printed), sum(numbers[column] or 0 for column in printed)) if printed else None
        peers = [peer for peer in every if peer.system.model == measured.system.model and peer.has(columns)]
        return Standing(
            measured.label, measured.worth(columns), reached, {peer.label: peer.worth(columns) for peer in peers}
        )

    fewer = columns[0][1] == "mean_rank"
    return {
        "printed": round(sum(differences), 2) if differences else None,
        "verdict": verdict(interval, standing(pair[0], upper), standing(pair[1], lower), fewer),
    }


def _fits(table: PrintedTable, evaluation: Evaluation) -> bool:
    """Whether the gallery is the table's: the whole split where that does not tell its size."""
    if table.images is None:
        return evaluation["protocol"] in PROTOCOLS
    return abs(evaluation["n_images"] - table.images) <= TOLERANCE * table.images


def _criterion(columns: Columns) -> str:
    measure = columns[0][1]
    if measure.startswith("recall"):
        return "points of the sum of recalls"
    return "sum of mean ranks, fewer being better" if measure == "mean_rank" else f"points of {HEADINGS[measure]}"


def render(tables: Sequence[page.Result], run: str, protocol: str) -> str:
    """The tables as Markdown: those that have nothing of ours last, in a list."""
    parts = [
        f"# The papers' tables on {run}",
        "Below each printed row stand the systems of this run that are the same model, those nearest to the paper's"
        " settings first, with the difference in brackets where the settings are the paper's; of several seeds the mean"
        f" and the standard deviation. Ours is of the test split with {GALLERIES[protocol]}; where a table says so, it"
        f" is the mean over folds of the split. An order holds, or does not, where its interval says so and the"
        f" system that comes out second reaches {PRINT_SHARE:.0%} of its print and {OWN_SHARE:.0%} of the best of its"
        " encoder in this run.",
        page.count_verdicts(tables),
        *(page.render(table) for table in tables),
    ]
    return "\n\n".join(parts) + "\n"
