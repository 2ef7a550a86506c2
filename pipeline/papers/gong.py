"""The tables of Gong et al. 2014, from gong.yaml: what was printed, and the cells that we measure for each row, by the
paper's settings or by ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.loading import read_mapping
from pipeline.models.linear.study import StudyCell
from pipeline.papers.printed import read_numbers, read_orders

if TYPE_CHECKING:
    from pydantic import JsonValue

SUPERVISED = "Fully Supervised Only"
"""The label of Table 5's first row."""
OURS = " (ours)"
"""The end of the label of a row by our settings."""


@dataclass(frozen=True)
class PaperRow:
    """A row: its label, the numbers printed in the paper (none where the row is ours), and a cell for each column."""

    label: str
    printed: Sequence[float | None]
    cells: tuple[StudyCell, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a row by our settings has in common with that of the paper."""
        first = self.cells[0]
        return first.model, first.training, first.encoders, first.documents, first.terms


@dataclass(frozen=True)
class Table:
    """recall@10 of image-to-sentence retrieval: `columns` head our numbers, `printed_columns` the paper's. `orders` are
    pairs of rows, of which the first stands above the second in the paper, or is asked whether it does. Where our
    columns are not `sized` as the paper's are, each is laid beside the first of them."""

    title: str
    columns: Sequence[str]
    printed_columns: Sequence[str]
    rows: Sequence[PaperRow]
    orders: Sequence[tuple[str, str]]
    sized: bool = True

    def row(self, label: str) -> PaperRow:
        """Return the row of a label. Raises KeyError if there is none."""
        return {row.label: row for row in self.rows}[label]

    def printed_beside(self, row: PaperRow, column: int) -> float | None:
        """Return the printed number beside our column."""
        return row.printed[column if self.sized else 0] if row.printed else None


@dataclass(frozen=True)
class GongSetting:
    """What a collection has for the tables: encoders, sizes in folds, and how many target images a fold has.

    `sizes` are the three training-set sizes of the supervised tables, `transfer_sizes` those of Table 5; `terms` the
    dictionary sizes of Table 2, of which the middle one is used elsewhere.
    The smallest target set is drawn `draws` times, larger ones `further_draws` times.
    Methods of Table 5 have the same `weak_folds` at every size of the target set (None: all other images). `betas` and
    `weights` are those that our rows try. `lengths` are the documents' mean numbers of words, and `text`
    says what the text view is.
    """

    encoders: tuple[str, ...]
    standard: tuple[str, ...]
    sizes: tuple[int, ...]
    transfer_sizes: tuple[int, ...]
    weak_sizes: tuple[int, ...]
    weak_folds: int | None
    terms: tuple[int, ...]
    draws: int
    further_draws: int
    fold_images: int
    weak_fold_images: int
    betas: tuple[float, ...]
    weights: tuple[float, ...]
    lengths: Mapping[str, float]
    text: str

    @classmethod
    def from_dict(cls, value: "Mapping[str, JsonValue]") -> "GongSetting":
        """Restore a setting from JSON's lists."""
        values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
        return cls(**values)

    @property
    def weak_images(self) -> list[int]:
        """The auxiliary sets of Table 6."""
        return [size * self.weak_fold_images for size in self.weak_sizes]


@cache
def _read() -> dict[str, Any]:
    return read_mapping(Path(__file__).with_name("gong.yaml"))


def tables(setting: GongSetting) -> list[Table]:
    """All tables for one collection, without the rows for which it has nothing."""
    return [_table(setting, **table) for table in _read()["tables"]]


def find_table(setting: GongSetting, name: str) -> Table:
    """The one whose title begins with `name`."""
    return next(table for table in tables(setting) if table.title.startswith(f"{name}."))


def _table(
    setting: GongSetting,
    title: str,
    sizes: str,
    rows: str,
    orders: Mapping[str, Sequence[str]],
    columns: Sequence[str] = (),
    printed_columns: Sequence[str] = (),
    sized: bool = True,
) -> Table:
    """`sizes` are those of the target sets of the columns, which these head unless `columns` do: a setting's, the
    `smallest` of transfer_sizes, or `none`."""
    smallest = setting.transfer_sizes[:1]
    folds = {"smallest": smallest, "none": (0,)}.get(sizes) or getattr(setting, sizes)
    labels, paper_rows = {}, []
    for label, system, numbers in (map(str.strip, line.split("|")) for line in rows.splitlines()):
        about_system = _read()["systems"].get(system, {"model": system})
        if "encoders" in about_system and not setting.standard:
            continue
        labels[system] = label.format(**vars(setting), weak_images=setting.weak_images)
        cells = tuple(_cells(setting, folds, **about_system))
        paper_rows.append(PaperRow(labels[system], read_numbers(numbers), cells))
    pairs = [(labels[a], labels[b]) for a, b in read_orders(orders) if a in labels and b in labels]
    heads = columns or [f"{size * setting.fold_images:,}" for size in folds]
    return Table(title, heads, printed_columns, paper_rows, pairs, sized)


def _cells(
    setting: GongSetting,
    sizes: Sequence[int],
    model: str = "ncca",
    training: str = "target",
    encoders: str = "encoders",
    documents: str = "all",
    terms: int = 1,
    auxiliary: str | int | None = None,
    transfer: Mapping[str, Sequence[float | str]] | None = None,
    ours: bool = False,
) -> Iterator[StudyCell]:
    """A system's cell for a target set of each of `sizes`, in folds; what learns from weak texts alone has none.

    A system has a `model`, a `training`, the `encoders` (or `standard`) of a setting, `documents`, the number of its
    `terms` there, and as `auxiliary` set `weak`, which is weak_folds, or the number of one of weak_sizes; without it
    all that are left. `transfer` is laid over the paper's settings, or, if it is `ours`, over the configuration's; a
    word in it stands for what the setting has of that name.
    """
    weak = setting.weak_sizes[auxiliary] if isinstance(auxiliary, int) else setting.weak_folds if auxiliary else None
    paper = _read()
    laid = dict(paper["transfer"]) if not ours and training not in ("target", "auxiliary") else {}
    for name, values in (transfer or {}).items():
        laid[name] = [number for value in values for number in getattr(setting, str(value), [value])]
    for size in sizes:
        yield StudyCell(
            model=model,
            training=training,
            encoders=getattr(setting, encoders),
            documents=documents,
            target_folds=0 if training == "auxiliary" else size,
            auxiliary_folds=weak,
            terms=setting.terms[terms],
            draws=setting.draws if size == sizes[0] else setting.further_draws,
            fit={} if ours else paper["fit"],
            transfer=laid,
            settings=paper["models"].get(model, {}),
        )
