"""The tables of Gong et al. 2014: what was printed, and the cells that we measure for each row, by the paper's settings
or by ours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.models.linear.study import StudyCell

PAPER = {
    "fit": {"dimensions": (96,), "eigenvalue_power": (4.0,), "eigenvalues": ("gong",)},
    "transfer": {
        "auxiliary_dimensions": (128,), "auxiliary_power": (4.0,), "auxiliary_eigenvalues": ("gong",),
        "weight": (1.0,), "second_beta": (0.0,), "rule": ("paper",), "bandwidth": (1.0,), "scale": ("unit-sum",),
        "features": 3000, "neighbours": 50, "neighbour_share": (0.03, 0.1, 0.3, 1.0),
    },
    "wsabie-sgd": {"learning_rate": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)},
    "wsabie-adagrad": {"learning_rate": (0.2, 0.4, 0.6, 0.8, 1.0)},
}  # fmt: skip
"""The paper's settings, which stand in every row of its name whatever the configuration says. Ridges, and the variance
of the text feature, of which it says nothing, are chosen on dev."""
WSABIE = {"max_norm": (50.0, 100.0, 150.0, 200.0), "dimensions": 96, "epochs": 300, "batch_size": 64}
"""What both forms of Wsabie have in section 3, but for steps by the mean of 64 pairs in place of one: with these the
best rates of SGD lie inside the paper's grid."""


@dataclass(frozen=True)
class PaperRow:
    """A row: its label, the numbers printed in the paper (none where the row is ours), and a cell for each column."""

    label: str
    printed: tuple[float, ...]
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

    number: str
    title: str
    columns: tuple[str, ...]
    printed_columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    orders: tuple[tuple[str, str], ...] = ()
    sized: bool = True

    @property
    def name(self) -> str:
        return f"Table {self.number}" if self.number.isdigit() else f"Section {self.number}"

    def row(self, label: str) -> PaperRow:
        return next(row for row in self.rows if row.label == label)

    def printed_beside(self, row: PaperRow, column: int) -> float | None:
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
    settings = {**PAPER[model], **WSABIE} if model in PAPER else {}
    common = {"encoders": setting.encoders, "documents": "all", "terms": setting.terms[1], **values}
    return StudyCell(model=model, training=training, fit=fit, transfer=transfer, settings=settings, **common)


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


RAHIMI = {"rule": ("cosine-sine",)}
SCALES = {"W'X'XW = I, eq. 1": "unit-sum", "unit variance": "unit-variance", "published code": "published"}
"""Readings of the views' scale, which the paper's rule for R is not free of -> transfer.scale."""
FIELDS = {
    "title": ("Title", 2.93), "tags": ("Tag", 5.09), "description": ("Description", 23.41), "all": ("Combined", 31.03),
}  # fmt: skip
"""Documents, as the configuration must name them -> Table 3's row and its average length."""
JOINT_BETAS = (0.01, 1.0)
STACKED_DIMENSIONS = (256, 1024)
PAPER_SIZES = ("5,000", "15,000", "25,000")
SUPERVISED = (19.77, 27.03, 31.13)
OURS = " (ours)"
FULLY, JOINT, SAE, LINEAR = "Fully Supervised Only", "Joint Training", "SAE (nonlinear)", "SAE (linear)"
GAUSSIAN = f"{SAE}, R by 1/sigma"
OUR_JOINT, OUR_SAE = JOINT + OURS, "SAE (linear), second CCA joint" + OURS


def tables(setting: GongSetting) -> list[Table]:
    """All tables for one collection, those left out for which it has nothing."""
    made = [_features(setting), _dictionaries(setting), _fields(setting), methods(setting), transfer_table(setting)]
    made += [_weak_sizes(setting), _functions(setting), _flickr8k(setting)]
    return [table for table in made if table.rows]


def _features(setting: GongSetting) -> Table:
    over = partial(cells_over, setting, setting.sizes)
    rows = [PaperRow("CNN activations", SUPERVISED, over())]
    if setting.standard:
        rows.insert(0, PaperRow("Standard combined features", (11.07, 18.40, 22.13), over(encoders=setting.standard)))
    title = "CNN activations versus standard visual features; normalized CCA"
    return Table("1", title, heads(setting, setting.sizes), PAPER_SIZES, tuple(rows), above(rows))


def _dictionaries(setting: GongSetting) -> Table:
    printed = ((19.03, 23.30, 26.53), SUPERVISED, (20.20, 27.40, 31.07))
    names = ("1,000", "3,000", "5,000")
    rows = tuple(
        PaperRow(f"{terms:,} terms (printed: {name})", numbers, cells_over(setting, setting.sizes, terms=terms))
        for terms, name, numbers in zip(setting.terms, names, printed, strict=True)
    )
    title = "Dictionary sizes; normalized CCA"
    return Table("2", title, heads(setting, setting.sizes), PAPER_SIZES, rows, above(rows))


def _fields(setting: GongSetting) -> Table:
    printed = ((17.83, 14.57), (15.97, 12.90), (16.67, 14.57), (18.33, 15.50))
    rows = tuple(
        PaperRow(f"{label}, {setting.lengths[name]:.2f} words (printed: {length})", numbers, (cell,))
        for (name, (label, length)), numbers in zip(FIELDS.items(), printed, strict=True)
        for cell in (cell_of(setting, training="auxiliary", target_folds=0, documents=name),)
    )
    title = "Weak text alone, by field, and its average length; normalized CCA trained on the auxiliary set only"
    return Table("3", title, ("weak set",), ("Flickr1M", "SBU1M"), rows, above(rows), sized=False)


def methods(setting: GongSetting) -> Table:
    """Table 4."""
    over = partial(cells_over, setting, setting.sizes)
    rows = (
        PaperRow("Ridge regression", (10.63, 11.40, 12.77), over(model="ridge")),
        PaperRow("CCA", (8.76, 12.37, 15.43), over(model="cca")),
        PaperRow("CCA+Normalization", SUPERVISED, over()),
        PaperRow("Wsabie with SGD", (15.43, 17.86, 18.10), over(model="wsabie-sgd")),
        PaperRow("Wsabie with AdaGrad", (18.20, 24.33, 26.60), over(model="wsabie-adagrad")),
        PaperRow("CCA+Normalization" + OURS, (), over(ours=True)),
        PaperRow("KCCA" + OURS, (), over(model="kcca", ours=True)),
    )
    title = "Embedding methods, fully supervised"
    orders = (*above(rows), ("CCA+Normalization" + OURS, "CCA+Normalization"))
    return Table("4", title, heads(setting, setting.sizes), PAPER_SIZES, rows, orders)


def transfer_table(setting: GongSetting) -> Table:
    """Table 5."""
    over = partial(cells_over, setting, setting.transfer_sizes)
    weak = partial(over, auxiliary_folds=setting.weak_folds)
    alone = partial(cell_of, setting, training="auxiliary", target_folds=0, auxiliary_folds=setting.weak_folds)
    stacked = (19.30, 22.93, 24.30, 19.13, 21.97, 22.73), (15.10, 22.83, 26.17, 15.17, 22.63, 25.87)
    joint = (20.80, 25.90, 28.47, 20.87, 25.87, 28.47), (20.63, 23.50, 25.37, 20.07, 24.10, 25.63)
    text_feature = weak(training="text-feature")
    nonlinear = (23.60, 29.80, 32.83, 23.17, 29.50, 32.40)
    rows = (
        PaperRow(FULLY, SUPERVISED + SUPERVISED, over()),
        PaperRow(
            "Weakly Supervised Only", (18.33,) * 3 + (15.10,) * 3, tuple(alone(draws=one.draws) for one in over())
        ),
        *(
            PaperRow(f"{JOINT} (β = {beta:g})", printed, weak(training="joint", transfer={"beta": (beta,)}))
            for beta, printed in zip(JOINT_BETAS, joint, strict=True)
        ),
        PaperRow("Text Feature (k = 50)", (19.67, 27.00, 30.97, 19.63, 27.03, 30.93), text_feature),
        *(
            PaperRow(f"Stacked Training (c1 = {size})", printed, cells)
            for size, printed in zip(STACKED_DIMENSIONS, stacked, strict=True)
            for cells in (weak(training="stacked", transfer={"auxiliary_dimensions": (size,)}),)
        ),
        PaperRow(LINEAR, (23.53, 28.57, 30.73, 22.67, 28.43, 30.97), weak(training="sae-linear")),
        *(
            PaperRow(f"{SAE}, {name}", nonlinear, weak(training="sae", transfer={"scale": (scale,)}))
            for name, scale in SCALES.items()
        ),
        PaperRow(GAUSSIAN, (), weak(training="sae", transfer=RAHIMI)),
        PaperRow(FULLY + OURS, (), over(ours=True)),
        *_own_rows(setting, weak),
    )
    columns = ("Flickr1M " + PAPER_SIZES[0], *PAPER_SIZES[1:], "SBU1M " + PAPER_SIZES[0], *PAPER_SIZES[1:])
    title = "Methods that train on the auxiliary set and the target set"
    orders = [
        *against(rows[1:], rows[0]),
        *((f"{SAE}, {name}", LINEAR) for name in SCALES),
        (GAUSSIAN, LINEAR),
        (OUR_SAE, OUR_JOINT),
    ]
    return Table("5", title, heads(setting, setting.transfer_sizes), columns, rows, tuple(orders))


def _own_rows(setting: GongSetting, over: partial) -> Iterable[PaperRow]:
    """Joint training, and SAE whose second CCA sees the auxiliary pairs too, by our settings. With weight 0 the second
    is joint training, or ncca where second_beta is 0 as well: dev chooses what is added to the better of the two."""
    both = {"second_beta": (0.0, *setting.betas), "weight": setting.weights}
    yield PaperRow(OUR_JOINT, (), over(training="joint", ours=True))
    yield PaperRow(OUR_SAE, (), over(training="sae-linear", transfer=both, ours=True))


def _weak_sizes(setting: GongSetting) -> Table:
    over = partial(cells_over, setting, setting.transfer_sizes[:1])
    rows = [PaperRow("0 (fully annotated only)", (19.77, 19.77), over())]
    printed = ((20.93, 20.20), (20.23, 20.53), (21.90, 22.60), (23.60, 23.17))
    for size, numbers in zip(setting.weak_sizes, printed, strict=True):
        label = f"{size * setting.weak_fold_images:,}"
        rows.append(PaperRow(label, numbers, over(training="sae", auxiliary_folds=size)))
    title = "SAE with auxiliary sets of different sizes; rows of the paper: 1,000, 10,000, 100,000, 1,000,000"
    columns = (f"{SAE}, {next(iter(SCALES))}",)
    return Table("6", title, columns, ("Flickr1M", "SBU1M"), tuple(rows), against(rows[1:], rows[0]), sized=False)


def _functions(setting: GongSetting) -> Table:
    """Section 4.1: "other nonlinear functions such as sigmoid or tanh", which "do not work well". By the scale of
    equation 1 their arguments would be so small that both are linear."""
    over = partial(cells_over, setting, setting.transfer_sizes[:1])
    weak = partial(over, training="sae", auxiliary_folds=setting.weak_folds)
    tanh = {"rule": ("tanh",), "scale": ("unit-variance",)}
    sigmoid = {**tanh, "bandwidth": (0.5,)}  # (1 + tanh(z / 2)) / 2, of which constant and factor do not matter
    rows = (
        PaperRow(FULLY, (), over()),
        PaperRow("phi = tanh", (), weak(transfer=tanh)),
        PaperRow("phi = sigmoid", (), weak(transfer=sigmoid)),
    )
    title = "Other functions for phi, of views of unit variance"
    orders = tuple((row.label, FULLY) for row in rows[1:])
    return Table("4.1", title, heads(setting, setting.transfer_sizes[:1]), (), rows, orders)


def _flickr8k(setting: GongSetting) -> Table:
    """What section 4.3 says of Flickr8k in its last paragraph."""
    over = partial(cells_over, setting, setting.transfer_sizes)
    weak = partial(over, training="sae", auxiliary_folds=setting.weak_folds)
    rows = [PaperRow("CNN, fully supervised", (43.8,), over()), PaperRow("CNN, SAE", (48.8,), weak())]
    said: tuple[tuple[str, str], ...] = ()
    if setting.standard:
        standard = {"encoders": setting.standard}
        kernel = PaperRow(
            "Standard features, KCCA (Hodosh et al.: other kernels)", (30.3,), over(model="kcca", **standard)
        )
        fully = PaperRow("Standard features, fully supervised", (30.1,), over(**standard))
        stacked = PaperRow("Standard features, SAE", (38.2,), weak(**standard))
        rows, said = [kernel, fully, stacked, *rows], ((stacked.label, fully.label),)
    title = "Section 4.3 on Flickr8k: fully supervised beside SAE by the visual features"
    printed = ("6,000 images, and Flickr1M",)
    orders = (*above(rows), *said)
    return Table("4.3", title, heads(setting, setting.transfer_sizes), printed, tuple(rows), orders, sized=False)
