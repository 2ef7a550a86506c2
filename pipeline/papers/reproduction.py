"""The published tables with the results of a run, in the form of `pipeline.papers.tables`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pipeline.config.results import ReproduceSettings
from pipeline.errors import InputError
from pipeline.metrics.paired import Columns, Draw, compare_draws
from pipeline.metrics.retrieval import PROTOCOLS, Bootstrap
from pipeline.metrics.summary import Evaluation, with_folds, without_seed
from pipeline.papers import tables
from pipeline.papers.published import CHANCE, Column, PublishedRow, PublishedTable, published_tables

HEADINGS = {
    "recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "Med r", "mean_rank": "mean rank",
    **{f"bleu_{n}": f"B-{n}" for n in range(1, 5)}, "meteor": "METEOR", "rouge_l": "ROUGE-L", "cider": "CIDEr",
}  # fmt: skip
TASKS = {
    "image_to_sentence": "annotation", "sentence_to_image": "search", "sentence_similarity": "captions of an image",
    "images": "images", "boxes": "boxes",
}  # fmt: skip
SIZE_TOLERANCE = 0.02
"""Share by which the number of test images may differ from the published number, because `ingest` removes duplicates.
If the difference is larger, the published table is not reproduced."""
MIN_TRAININGS = 3
"""Smallest number of trainings that each of two systems must have for an interval of their difference. Two draws count
as two trainings if they have no training image in common."""
GALLERIES = {
    PROTOCOLS[0]: "every caption in the gallery", PROTOCOLS[1]: "the first caption of each image in the gallery"
}  # fmt: skip
Measure = Callable[[str, Columns], Draw]
"""A function that gets the name of a training of the run and some columns of a table. It returns a Draw, which computes
the sum of these columns for any sample of the test images."""


@dataclass(frozen=True)
class System:
    """Models, or caption generators, of a run that differ only in their seeds. Each model or generator is a training.

    `names` are the names of the trainings, `label` is the name that they have in common, and `model` is the registered
    model or generator.
    """

    label: str
    names: Sequence[str]
    model: str
    seeds: Sequence[int]


def group_seeds(trained: Iterable[tuple[str, str, int]]) -> list[System]:
    """Group trainings (name, registered model, seed) whose names differ only in the seed."""
    groups: dict[str, list[tuple[str, str, int]]] = {}
    for training in trained:
        groups.setdefault(without_seed(training[0]), []).append(training)
    return [
        System(label, [name for name, _, _ in group], group[0][1], [seed for _, _, seed in group])
        for label, group in groups.items()
    ]


def compare(
    above: Sequence[Draw], below: Sequence[Draw], bootstrap: Bootstrap, same_draws: bool = False
) -> tables.Result:
    """Return the `difference` of two systems, `above` minus `below`, on the same images, and its interval `ci95`.

    `above` and `below` have a Draw for each training of the two systems. The interval is None if a system has fewer
    than MIN_TRAININGS trainings, or if `bootstrap` has no resamples. If `same_draws` is true, training i of both
    systems used the same training images, and the variance of the differences between these trainings is estimated.
    """
    count = min(len(above), len(below))
    found = compare_draws(above, below, bootstrap, same_draws)
    supported = count >= MIN_TRAININGS and bootstrap.resamples > 0
    return {"difference": found["difference"], "ci95": found["ci95"] if supported else None}


@dataclass(frozen=True)
class Reproduction:
    """The results of a run: the `evaluations` of its `systems` on the test split by the `protocol`.

    `settings.reproduced` maps the label of a system that has the settings of a paper to the name of the published
    system in published.yaml. All other systems are improved, and are in the rows of their registered model. The
    evaluation of a generator's captions has the keys `images` and `boxes` in place of directions. `measure` and
    `bootstrap` serve to compute the intervals of differences between systems.
    """

    evaluations: Sequence[Evaluation]
    systems: Sequence[System]
    settings: ReproduceSettings
    measure: Measure
    bootstrap: Bootstrap
    protocol: str

    def make_tables(self) -> list[tables.Result]:
        """Return every table of the papers `settings.papers`, with the systems of this run or the reason why the table
        is left out.

        Raises InputError if a name in `settings.reproduced` is not the name of a published system.
        """
        known = {row.system for papers in published_tables().values() for table in papers for row in table.rows}
        for label, system in self.settings.reproduced.items():
            if system not in known:
                names = ", ".join(sorted(known - {CHANCE}))
                raise InputError(
                    f"reproduce.reproduced.{label}: no table has the system {system}. Choose one of {names}."
                )
        return [self._fill(table) for paper in self.settings.papers for table in published_tables().get(paper, ())]

    def _fill(self, table: PublishedTable) -> tables.Result:
        about = {"paper": table.authors, "title": table.title}
        gallery = self._gallery(table)
        if isinstance(gallery, str):
            return {**about, "left_out": gallery}
        first = next(iter(gallery.values()))
        same = table.collection == self.settings.collection
        notes = [] if same else [f"Published for {table.collection}, measured on {self.settings.collection} here."]
        if first["protocol"] != self.protocol:
            notes.append(f"Measured by {first['protocol']}.")
        systems = {row.name: self._systems(row, gallery) for row in table.rows}
        rows = []
        for row in table.rows:
            shown = {
                name: [tables.system(one.label, self._values(one, table, gallery)) for one in found]
                for name, found in systems[row.name].items()
            }
            if row.system == CHANCE and (expected := first.get(CHANCE)):
                values = [[expected[direction][measure]] for direction, measure in table.columns]
                shown["reproduced"] = [tables.system(CHANCE, values)]
            rows.append(tables.row(row.name, row.numbers, **shown))
        columns = _group_columns(table.columns)
        compared = [_name_sum(part) for part in table.compared]
        differences = self._differences(table, systems)
        parts = {"published_columns": columns, "columns": columns, "compared": compared, "differences": differences}
        return tables.table(**about, rows=rows, notes=notes, **parts)

    def _gallery(self, table: PublishedTable) -> Mapping[str, Evaluation] | str:
        """Return the evaluations that can be compared with a table, by the name of the model. If there are none, return
        the reason.

        An evaluation can be compared if its number of test images is about the number of the table (see
        SIZE_TOLERANCE). It was measured on the whole test split, or is the mean over the folds of the test split.
        """
        collection = self.settings.collection
        if table.collection != collection and table.collection not in self.settings.others:
            here = f"these images are {collection}" if collection else "reproduce.collection is null"
            return f"it was measured on {table.collection}, and {here}"
        directions = {direction for direction, _ in table.columns}
        measured = [
            evaluation
            for evaluation in with_folds(self.evaluations)
            if evaluation["split"] == "test"
            and evaluation["protocol"].startswith(self.protocol)
            and ", the first" not in evaluation["protocol"]
            and directions <= evaluation.keys()
        ]
        if not measured:
            return f"this run has not measured {' or '.join(TASKS[direction] for direction in sorted(directions))}"
        gallery = {evaluation["model"]: evaluation for evaluation in measured if self._has_size(table, evaluation)}
        if not gallery:
            sizes = " and ".join(f"{size:,}" for size in sorted({evaluation["n_images"] for evaluation in measured}))
            return (
                f"it was measured with {table.images:,} test images at once, and this run has {sizes}; set"
                " evaluate.folds so that a fold has this size"
            )
        return gallery

    def _has_size(self, table: PublishedTable, evaluation: Evaluation) -> bool:
        if table.images is None:
            return evaluation["protocol"] == self.protocol
        return abs(evaluation["n_images"] - table.images) <= SIZE_TOLERANCE * table.images

    def _systems(self, row: PublishedRow, gallery: Mapping[str, Evaluation]) -> dict[str, list[System]]:
        measured = [system for system in self.systems if gallery.keys() >= {*system.names}]
        reproduced = self.settings.reproduced
        return {
            "reproduced": [system for system in measured if reproduced.get(system.label) == row.system],
            "improved": [system for system in measured if system.label not in reproduced and system.model == row.model],
        }

    def _values(
        self, system: System, table: PublishedTable, gallery: Mapping[str, Evaluation]
    ) -> list[list[float] | None]:
        trainings = [gallery[name] for name in system.names]
        columns = [[training[direction][measure] for training in trainings] for direction, measure in table.columns]
        return [None if None in values else [round(value, 3) for value in values] for values in columns]

    def _differences(
        self, table: PublishedTable, systems: Mapping[str, Mapping[str, Sequence[System]]]
    ) -> list[dict[str, Any]]:
        """Return the differences between the reproduced systems of each pair of rows that the paper compares.

        The first reproduced system of each row is used. A pair with a row without such a system is left out.
        """
        numbers = {row.name: dict(zip(table.columns, row.numbers, strict=True)) for row in table.rows}
        differences = []
        for above, below in table.differences:
            pair = [systems[name]["reproduced"][:1] for name in (above, below)]
            if not all(pair):
                continue
            published = []
            found = []
            for columns in table.compared:
                above_draws, below_draws = ([self.measure(name, columns) for name in one.names] for (one,) in pair)
                found.append(compare(above_draws, below_draws, self.bootstrap))
                published.append(_subtract(numbers[above], numbers[below], columns))
            differences.append({"above": above, "below": below, "published": published, "found": found})
        return differences


def _subtract(
    above: Mapping[Column, float | None], below: Mapping[Column, float | None], columns: Columns
) -> float | None:
    """Return the sum of the published numbers `above` minus the sum of `below`, over the `columns` in which both rows
    have a number. The result is None if there is no such column."""
    common = [
        high - low for column in columns if (high := above[column]) is not None and (low := below[column]) is not None
    ]
    return round(sum(common), 2) if common else None


def _group_columns(columns: Columns) -> list[tables.Result]:
    """Return the columns of a table in groups with the same direction, as `tables.group` makes them."""
    return [
        tables.group(TASKS[direction], [HEADINGS[measure] for _, measure in found])
        for direction, found in groupby(columns, key=lambda column: column[0])
    ]


def _name_sum(columns: Columns) -> str:
    direction, measure = columns[0]
    return "sum of recalls" if measure.startswith("recall") else f"{TASKS[direction]} {HEADINGS[measure]}"


def render(found: Sequence[tables.Result], run: str, protocol: str) -> str:
    """Render the tables `found` as one Markdown document. Its heading names the `run`, and its introduction says which
    captions of an image the `protocol` counts."""
    introduction = (
        "A cell has the mean of the trainings that differ only in their seeds, or of the draws of the training images,"
        " ± their standard deviation. *Published* are the numbers of the paper. *Reproduced* are systems with the"
        " settings of the paper, and *improved* are systems of the same kind with other settings. The results are of"
        f" the test split with {GALLERIES[protocol]}, or the mean over folds of the split where the table says so. An"
        f" interval is given only if both systems have at least {MIN_TRAININGS} trainings, or draws without a common"
        " training image."
    )
    return "\n\n".join([f"# The tables of the papers on {run}", introduction, *map(tables.render, found)]) + "\n"
