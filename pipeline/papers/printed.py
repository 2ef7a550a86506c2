"""The tables of the papers as printed, from printed.yaml: what a reproduction is laid beside."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.loading import read_mapping

Systems = Mapping[str, Mapping[str, Any]]
"""Systems of printed.yaml by their names there: keyword arguments of PrintedRow."""
Column = tuple[str, str]
"""Direction and measure, as an evaluation names them; of descriptions, what is described and a metric."""
AUTHORS = {
    "karpathy": "Karpathy and Fei-Fei", "kiros": "Kiros et al.", "niu": "Niu et al.", "socher": "Socher et al.",
}  # fmt: skip
"""Paper, as its configuration is named -> who wrote it."""


@dataclass(frozen=True)
class PrintedRow:
    """A row: its printed name, and its numbers in the order of the table's columns, None where the paper has none.

    `model` is the registered model, or generator, that it is here, or `chance`: random rankings, whose expected values
    every evaluation has. `kind` are settings without which a model of that name is another system, and `settings` those
    that decide whether a number of ours is of the same system (None: the row is of a system that the paper only cites).
    Both are in the words of the configuration (`loss`, `margin`, ...; `encoders`, `regions` and `learns from` as the
    stage `reproduce` says them).
    """

    name: str
    numbers: Sequence[float | None]
    model: str
    kind: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None

    @property
    def network(self) -> str | None:
        """What the paper saw images with."""
        return (self.settings or {}).get("encoders")


@dataclass(frozen=True)
class PrintedTable:
    """A table of a paper by `authors`: `collection` is what it was measured on, with a gallery of `images` where
    several sizes are in use. `orders` are pairs of rows of which the paper says that the first is above the second."""

    authors: str
    title: str
    collection: str
    columns: Sequence[Column]
    rows: Sequence[PrintedRow]
    images: int | None = None
    orders: Sequence[tuple[str, str]] = ()

    @property
    def judged(self) -> tuple[tuple[Column, ...], ...]:
        """What an order is judged by: by the sum of the recalls where there are any; of descriptions by BLEU-4 and by
        CIDEr; else by the sum of the mean ranks."""
        recalls = tuple(column for column in self.columns if column[1].startswith("recall"))
        described = tuple((column,) for column in self.columns if column[1] in ("bleu_4", "cider"))
        return (recalls,) if recalls else described or (tuple(self.columns),)

    @property
    def ranks_pairs(self) -> bool:
        """Whether images are ranked for sentences and sentences for images, by recalls."""
        return {("image_to_sentence", "recall@1"), ("sentence_to_image", "recall@1")} <= {*self.columns}


@cache
def printed_tables() -> Mapping[str, Sequence[PrintedTable]]:
    """Paper -> its tables."""
    value = read_mapping(Path(__file__).with_name("printed.yaml"))
    return {
        paper: [_table(authors, value["systems"], **table) for table in value[paper]]
        for paper, authors in AUTHORS.items()
    }


def every_table() -> list[PrintedTable]:
    """Those of all papers."""
    return [table for tables in printed_tables().values() for table in tables]


def _table(
    authors: str,
    systems: Systems,
    columns: Mapping[str, Sequence[str]],
    rows: str,
    title: str,
    collection: str,
    orders: Mapping[str, Sequence[str]] | None = None,
    images: int | None = None,
) -> PrintedTable:
    return PrintedTable(
        authors=authors,
        title=title,
        collection=collection,
        columns=[(direction, measure) for direction, measures in columns.items() for measure in measures],
        rows=[_row(line, systems) for line in rows.splitlines()],
        orders=list(read_orders(orders or {})),
        images=images,
    )


def _row(line: str, systems: Systems) -> PrintedRow:
    name, system, numbers = map(str.strip, line.split("|"))
    return PrintedRow(name, read_numbers(numbers), **systems.get(system, {"model": system}))


def read_numbers(text: str) -> list[float | None]:
    """Numbers between spaces; `-` is None."""
    return [None if number == "-" else float(number) for number in text.split()]


def read_orders(orders: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Pairs of rows, from a row with those below it."""
    return ((above, below) for above, rows in orders.items() for below in rows)
