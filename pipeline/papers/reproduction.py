"""The papers' tables again: the printed numbers with ours below them, in the form of `pipeline.papers.page`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.evaluate.summary import with_folds
from pipeline.metrics.paired import Columns, Draw, compare_draws
from pipeline.metrics.retrieval import PROTOCOLS, Bootstrap
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
        theirs, other = row.settings or {}, self.unlike(row)
        parts = []
        for key in dict.fromkeys((*SHOWN, *theirs)):
            if key in self.settings or key in theirs:
                printed = f" (printed: {_word(theirs[key])})" if key in other else ""
                parts.append(f"{key} {_word(self.settings.get(key, 'none'))}{printed}")
        if row.settings is None:
            parts.append("the paper cites this row and does not give its settings, so no difference is given")
        elif other:
            parts.append("no difference is given")
        return "; ".join(parts)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def systems(described: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[System]:
    """The systems of models (name, registered model, settings): those whose names differ in the seed alone are one,
    under the name that they have in common."""
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for item in described:
        groups.setdefault(re.sub(r"-seed\d+", "", item[0]), []).append(item)
    found = []
    for base, group in groups.items():
        names, models, settings = zip(*group, strict=True)
        label = f"{base}, {len(names)} seeds" if len(names) > 1 else names[0]
        found.append(System(label, names, models[0], settings[0]))
    return found


@dataclass(frozen=True)
class Measured:
    """A system's `evaluations` in a gallery of a table, one a seed."""

    system: System
    evaluations: Sequence[Mapping[str, Any]]

    @property
    def label(self) -> str:
        return self.system.label

    def values(self, direction: str, measure: str) -> list[float | None]:
        return [one[direction][measure] for one in self.evaluations]

    def has(self, columns: Columns) -> bool:
        """Whether it was measured by all of them."""
        return all(None not in self.values(*column) for column in columns)

    def worth(self, columns: Columns) -> float:
        """The sum of its means over columns that it has."""
        return float(sum(np.mean(self.values(*column)) for column in columns))


@dataclass(frozen=True)
class Standing:
    """How well the system of a `label` was trained: what it reaches by some columns, `own`; what it reaches and what is
    printed in those of them that are printed, `print_of`; and what systems of its encoder reach in the same run, by
    their labels, `alike`."""

    label: str = ""
    own: float = 0.0
    print_of: tuple[float, float] | None = None
    alike: Mapping[str, float] = field(default_factory=dict)

    def shortfall(self, fewer: bool) -> str | None:
        """Why nothing can be said of it, where it is below PRINT_SHARE of its print, or below OWN_SHARE of the best of
        its encoder; of mean ranks `fewer` are better."""

        def share(value: float, goal: float) -> float:
            return (goal / value if fewer else value / goal) if value and goal else 1.0

        if self.print_of and (reached := share(*self.print_of)) < PRINT_SHARE:
            return f"{self.label} is {abs(self.print_of[1] - self.print_of[0]):.1f} short of its print ({reached:.0%})"
        reached, best = min(((share(self.own, value), name) for name, value in self.alike.items()), default=(1.0, ""))
        return f"{self.label} is at {reached:.0%} of {best}" if reached < OWN_SHARE else None


def verdict(interval: Sequence[float], above: Standing, below: Standing, fewer: bool = False) -> str:
    """Whether the `interval` of a printed order shows it (of mean ranks, `fewer` are better): holds, no, open, or not
    tested, where the system that comes out second was not trained well enough to say so."""
    low, high = (-interval[1], -interval[0]) if fewer else interval
    if low <= 0 <= high:
        return "open"
    told, second = ("holds", below) if low > 0 else ("no", above)
    short = second.shortfall(fewer)
    return f"not tested: {short}" if short else told


@dataclass(frozen=True)
class Reproduction:
    """What a run has to be laid below printed tables: its `systems` and their `evaluations` of test by the `protocol`.

    `collection` is what the run's images are (None for one that no paper has): tables of others are left out unless
    they are among `others`. What a generator's descriptions are worth is an evaluation too, with `images` and `boxes`
    for its directions. `draws` gives what orders are judged by.
    """

    evaluations: Sequence[Mapping[str, Any]]
    systems: Sequence[System]
    collection: str | None
    others: Sequence[str]
    draws: Draws
    bootstrap: Bootstrap
    protocol: str

    def tables(self, papers: Sequence[str]) -> list[Mapping[str, Any]]:
        """Every table of `papers` with our systems below the printed ones, and paired intervals for the orders that a
        paper states, or the reason why it is left out, as every printed row has one without a system of the run."""
        return [self._lay(table) for paper in papers for table in printed_tables().get(paper, ())]

    def _lay(self, table: PrintedTable) -> Mapping[str, Any]:
        """The rows of one table, its orders and notes, or why it is left out. One that was measured with a gallery of a
        certain size is laid beside the whole split, or the mean of its folds and the first of them, whichever are of
        that size."""
        about = {"paper": table.authors, "title": table.title}
        elsewhere = table.collection != self.collection
        if elsewhere and table.collection not in self.others:
            here = f"these images are {self.collection}" if self.collection else "reproduce.collection is null"
            return {**about, "left_out": f"it was measured on {table.collection}, and {here}"}
        sides = {direction for direction, _ in table.columns}
        of_test = (one for one in with_folds(self.evaluations) if one["split"] == "test" and sides <= one.keys())
        of_kind = [one for one in of_test if one["protocol"].startswith(self.protocol)]
        galleries: dict[str, dict[str, Mapping[str, Any]]] = {}
        for one in of_kind:
            if _fits(table, one):
                galleries.setdefault(one["protocol"], {})[one["model"]] = one
        if of_kind and not galleries:
            sizes = " and ".join(f"{count:,}" for count in sorted({one["n_images"] for one in of_kind}))
            reason = f"it was measured with {table.images:,} test images at once, and ours are {sizes}; set"
            return {**about, "left_out": f"{reason} evaluate.folds so that the folds are of that size"}
        lacking = " or ".join(MISSING[side] for side in sorted(sides))
        notes = [] if of_kind else [f"Ours: this run has not measured {lacking}."]
        said = [f"It was measured on {table.collection}, ours on {self.collection or 'other images'}."] * elsewhere
        said += [f"Ours: {protocol}." for protocol in galleries if protocol not in PROTOCOLS]
        rows, below = [], {}
        each = (one.get("chance", {}) for gallery in galleries.values() for one in gallery.values())
        chance = next((one for one in each if sides <= one.keys()), None)
        for row in table.rows:
            found = {protocol: self._below(row, table, gallery) for protocol, gallery in galleries.items()}
            below[row.name] = next(iter(found.values()), [])
            ours = []
            for protocol, measured in found.items():
                which = "".join(protocol.partition(",")[1:])
                ours += [self._own(row, table, one, f"`{one.label}`{which}", bool(ours)) for one in measured]
            if row.model == "chance" and chance:
                values = [[chance[direction][measure]] for direction, measure in table.columns]
                ours.append({"system": "a random ranking", "values": values, "alike": False, "settings": ""})
            elif of_kind and not ours:
                notes.append(f"- {row.name}: none of ours, `{row.model}` is not among this run's models so trained.")
            rows.append({"name": row.name, "printed": list(row.numbers), "ours": ours})
        first = next(iter(galleries.values()), {})
        columns = [f"{TASKS[direction]} {HEADINGS[measure]}" for direction, measure in table.columns]
        judged = [_criterion(columns) for columns in table.judged]
        orders = self._orders(table, below, first) if self.bootstrap.resamples else []
        return page.table(**about, said=said, columns=columns, rows=rows, judged=judged, orders=orders, notes=notes)

    def _below(self, row: PrintedRow, table: PrintedTable, gallery: Mapping[str, Mapping[str, Any]]) -> list[Measured]:
        """The systems that are the row's model, those with the fewest settings that are not the paper's first."""
        found = [one for one in self._measured(gallery) if one.system.stands_for(row, table.rows)]
        return sorted(found, key=lambda one: len(one.system.unlike(row)))

    def _measured(self, gallery: Mapping[str, Mapping[str, Any]]) -> list[Measured]:
        have = (one for one in self.systems if gallery.keys() >= {*one.names})
        return [Measured(one, [gallery[name] for name in one.names]) for one in have]

    def _own(self, row: PrintedRow, table: PrintedTable, one: Measured, label: str, told: bool) -> dict[str, Any]:
        """A system below a row, and its settings where they are not `told` of it in another gallery. A difference is
        given only where they are the paper's and every sentence is in the gallery."""
        comparable = table.collection == self.collection and self.protocol == WHOLE
        values = [one.values(*column) for column in table.columns]
        return {
            "system": label,
            "values": [None if None in own else [round(value, 3) for value in own] for own in values],
            "alike": row.settings is not None and comparable and not one.system.unlike(row),
            "settings": "" if told else one.system.tell(row),
        }

    def _orders(
        self,
        table: PrintedTable,
        below: Mapping[str, Sequence[Measured]],
        gallery: Mapping[str, Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """The orders that the paper states, each between the systems nearest to its own, unless one system stands for
        both, and how those further from it stand to these."""
        rows = {row.name: row for row in table.rows}
        every = self._measured(gallery)
        named = [(rows[a], rows[b], below[a][0], below[b][0]) for a, b in table.orders if below[a] and below[b]]
        stated = [order for order in named if order[2].system is not order[3].system]
        others = [(None, None, further, nearest) for nearest, *more in filter(None, below.values()) for further in more]
        pairs = {
            (above and above.name, row and row.name, one.label, other.label): (above, row, one, other)
            for above, row, one, other in (*stated, *others)
        }
        found = []
        for above, row, one, other in pairs.values():
            if not all(own.has(columns) for own in (one, other) for columns in table.judged):
                continue
            compared = []
            for columns in table.judged:
                pair = ([self.draws(name, columns) for name in own.system.names] for own in (one, other))
                difference = {**compare_draws(*pair, self.bootstrap), "printed": None, "verdict": ""}
                if row:
                    difference |= _judge(table, columns, above, row, (one, other), every, difference["ci95"])
                compared.append(difference)
            names = {"above": above and above.name, "below": row and row.name}
            found.append({**names, "systems": [f"`{one.label}`", f"`{other.label}`"], "found": compared})
        return found


def _judge(
    table: PrintedTable,
    columns: Columns,
    above: PrintedRow,
    row: PrintedRow,
    systems: tuple[Measured, Measured],
    every: Sequence[Measured],
    interval: Sequence[float],
) -> dict[str, Any]:
    """By how much `above` is printed above `row` by some columns, and whether the `interval` of their `systems` shows
    it."""
    prints = [dict(zip(table.columns, printed.numbers, strict=True)) for printed in (above, row)]
    both = [column for column in columns if all(numbers[column] is not None for numbers in prints)]

    def standing(one: Measured, numbers: Mapping[Column, float | None]) -> Standing:
        printed = [column for column in columns if numbers[column] is not None]
        print_of = (one.worth(printed), sum(numbers[column] or 0 for column in printed)) if printed else None
        model = one.system.model
        alike = {
            f"`{own.label}`": own.worth(columns) for own in every if own.system.model == model and own.has(columns)
        }
        return Standing(f"`{one.label}`", one.worth(columns), print_of, alike)

    fewer = columns[0][1] == "mean_rank"
    return {
        "printed": round(sum(prints[0][column] - prints[1][column] for column in both), 2) if both else None,
        "verdict": verdict(interval, *map(standing, systems, prints), fewer),
    }


def _fits(table: PrintedTable, evaluation: Mapping[str, Any]) -> bool:
    """Whether the gallery is the table's: the whole split where that does not tell its size."""
    if table.images is None:
        return evaluation["protocol"] in PROTOCOLS
    return abs(evaluation["n_images"] - table.images) <= TOLERANCE * table.images


def _criterion(columns: Columns) -> str:
    measure = columns[0][1]
    if measure.startswith("recall"):
        return "points of the sum of recalls"
    return "sum of mean ranks, fewer being better" if measure == "mean_rank" else f"points of {HEADINGS[measure]}"


def render(tables: Sequence[Mapping[str, Any]], run: str, protocol: str) -> str:
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
