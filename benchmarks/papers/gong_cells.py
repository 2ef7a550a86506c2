"""What the tables of Gong et al. 2014 are made of: rows of cells, by the paper's settings or by ours, and orders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.models.linear.study import StudyCell

PAPER = {
    "fit": {"dimensions": (96,), "eigenvalue_power": (4.0,), "eigenvalues": ("gong",)},
    "transfer": {
        "auxiliary_dimensions": (128,), "auxiliary_power": (4.0,), "auxiliary_eigenvalues": ("gong",),
        "weight": (1.0,), "second_beta": (0.0,), "rule": ("paper",), "bandwidth": (1.0,), "features": 3000,
        "neighbours": 50, "neighbour_share": (0.03, 0.1, 0.3, 1.0),
    },
}  # fmt: skip
"""The paper's settings, which stand in every row of its name whatever the configuration says. Ridges, and the variance
of the text feature, of which it says nothing, are chosen on dev."""


@dataclass(frozen=True)
class PaperRow:
    """A row: its label, the numbers printed in the paper (none where the row is ours), and a cell for each column."""

    label: str
    printed: tuple[float, ...]
    cells: tuple[StudyCell, ...]


@dataclass(frozen=True)
class Table:
    """recall@10 of image-to-sentence retrieval: `columns` head our numbers, `printed_columns` the paper's. `orders` are
    pairs of rows, of which the first stands above the second in the paper, or is asked whether it does."""

    number: str
    title: str
    columns: tuple[str, ...]
    printed_columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    orders: tuple[tuple[str, str], ...] = ()

    def row(self, label: str) -> PaperRow:
        return next(row for row in self.rows if row.label == label)


@dataclass(frozen=True)
class GongSetting:
    """What a collection has for the tables: encoders, sizes in folds, and how many target images a fold has.

    `sizes` are the three training-set sizes of the supervised tables, `transfer_sizes` those of Table 5; `terms` the
    dictionary sizes of Table 2, of which the middle one is used elsewhere; `noise` names documents by rising noise.
    The smallest target set is drawn `draws` times; larger ones, and it for each level of noise, `further_draws` times.
    `betas` and `weights` are those that our rows try. `lengths` are the documents' mean numbers of words, and `text`
    says what the text view is.
    """

    encoders: tuple[str, ...]
    standard: tuple[str, ...]
    sizes: tuple[int, ...]
    transfer_sizes: tuple[int, ...]
    weak_sizes: tuple[int, ...]
    terms: tuple[int, ...]
    noise: tuple[str, ...]
    draws: int
    further_draws: int
    fold_images: int
    weak_fold_images: int
    betas: tuple[float, ...]
    weights: tuple[float, ...]
    lengths: Mapping[str, float]
    text: str

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "GongSetting":
        """From JSON's lists."""
        return cls(**{name: tuple(one) if isinstance(one, list) else one for name, one in value.items()})


def cell_of(
    setting: GongSetting, model: str = "ncca", training: str = "target", ours: bool = False, **values
) -> StudyCell:
    """A cell with the paper's settings, or with those of the configuration if it is `ours`; `transfer` is laid over."""
    transfer: dict[str, Any] = {} if ours or training in ("target", "auxiliary") else dict(PAPER["transfer"])
    transfer |= values.pop("transfer", {})
    fit = {} if ours else PAPER["fit"]
    common = {"encoders": setting.encoders, "documents": "all", "terms": setting.terms[1], **values}
    return StudyCell(model=model, training=training, fit=fit, transfer=transfer, **common)


def cells_over(setting: GongSetting, sizes: Sequence[int], **values) -> tuple[StudyCell, ...]:
    """A cell for target sets of each of `sizes`, in folds."""
    draws = (setting.draws if size == sizes[0] else setting.further_draws for size in sizes)
    return tuple(cell_of(setting, target_folds=size, draws=n, **values) for size, n in zip(sizes, draws, strict=True))


def heads(setting: GongSetting, sizes: Sequence[int]) -> tuple[str, ...]:
    """The images of target sets of `sizes`."""
    return tuple(f"{size * setting.fold_images:,}" for size in sizes)


def above(rows: Sequence[PaperRow]) -> tuple[tuple[str, str], ...]:
    """Neighbours in the order in which `rows` are printed, best first by their means."""
    printed = sorted((row for row in rows if row.printed), key=lambda row: -sum(row.printed))
    return tuple((one.label, other.label) for one, other in zip(printed, printed[1:], strict=False))


def against(rows: Sequence[PaperRow], baseline: PaperRow) -> tuple[tuple[str, str], ...]:
    """Each of `rows` and the baseline, as printed; what is ours stands first."""
    below = (row.printed and sum(row.printed) < sum(baseline.printed) for row in rows)
    return tuple(
        (baseline.label, row.label) if lower else (row.label, baseline.label)
        for row, lower in zip(rows, below, strict=True)
    )
