"""The tables that the papers published, from published.yaml."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.config.loading import read_mapping

Column = tuple[str, str]
"""A direction of retrieval and a measure, such as `image_to_sentence` and `recall@1`. A column for generated captions
has the kind of items that are described (`images` or `boxes`) and a metric, such as `bleu_4`."""
AUTHORS = {
    "karpathy": "Karpathy and Fei-Fei", "kiros": "Kiros et al.", "niu": "Niu et al.", "socher": "Socher et al.",
}  # fmt: skip
"""Name of a paper in the configuration -> its authors."""
CHANCE = "chance"
"""Name of a system that ranks at random. Each evaluation of a model also has the expected measures of such a system,
under this key."""


@dataclass(frozen=True)
class PublishedRow:
    """The published results of one system: its `name` in the paper, and a number for each column of the table, or None.

    `system` is the name of the system in published.yaml, and `model` the registered model or generator that implements
    it.
    """

    name: str
    system: str
    model: str
    numbers: Sequence[float | None]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, measured on a `collection`.

    `images` is the number of test images, or None if all papers use the same number for this collection. `differences`
    has pairs of names of rows. The paper says that the first row of a pair is better than the second row.
    """

    authors: str
    title: str
    collection: str
    columns: Sequence[Column]
    rows: Sequence[PublishedRow]
    images: int | None = None
    differences: Sequence[tuple[str, str]] = ()

    @property
    def compared(self) -> tuple[tuple[Column, ...], ...]:
        """The measures by which rows are compared. Each measure is the sum of the columns in one of the inner tuples.

        A table with recalls is compared by the sum of all its recalls, and a table of generated captions by BLEU-4 and
        by CIDEr. Other tables are compared by each column.
        """
        recalls = tuple(column for column in self.columns if column[1].startswith("recall"))
        captions = tuple((column,) for column in self.columns if column[1] in ("bleu_4", "cider"))
        return (recalls,) if recalls else captions or tuple((column,) for column in self.columns)

    @property
    def ranks_pairs(self) -> bool:
        """Whether the table has recalls of both retrieval directions."""
        return {("image_to_sentence", "recall@1"), ("sentence_to_image", "recall@1")} <= {*self.columns}


@cache
def published_tables() -> Mapping[str, Sequence[PublishedTable]]:
    """Return the published tables of each paper, by the name of the paper in AUTHORS."""
    value = read_mapping(Path(__file__).with_name("published.yaml"))
    return {
        paper: [_table(authors, value["systems"], **table) for table in value[paper]]
        for paper, authors in AUTHORS.items()
    }


def every_table() -> list[PublishedTable]:
    """Return the tables of all papers."""
    return [table for tables in published_tables().values() for table in tables]


def _table(
    authors: str,
    systems: Mapping[str, str],
    columns: Mapping[str, Sequence[str]],
    rows: str,
    title: str,
    collection: str,
    differences: Mapping[str, Sequence[str]] | None = None,
    images: int | None = None,
) -> PublishedTable:
    return PublishedTable(
        authors=authors,
        title=title,
        collection=collection,
        columns=[(direction, measure) for direction, measures in columns.items() for measure in measures],
        rows=[
            PublishedRow(name, system, systems.get(system, system), read_numbers(numbers))
            for name, system, numbers in map(split_line, rows.splitlines())
        ],
        differences=list(read_pairs(differences or {})),
        images=images,
    )


def split_line(line: str) -> list[str]:
    """Split a line of a table at its bars into cells without surrounding spaces."""
    return [cell.strip() for cell in line.split("|")]


def read_numbers(text: str) -> list[float | None]:
    """Return the numbers in a text, which are separated by spaces. `-` becomes None."""
    return [None if number == "-" else float(number) for number in text.split()]


def read_pairs(pairs: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield a pair (key, element) for each element of each list in `pairs`, a mapping of keys to lists."""
    return ((above, below) for above, rows in pairs.items() for below in rows)
