"""Tables 1 to 6 of Gong et al. 2014: their layout, what was printed, and the cells that we measure for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.models.linear.study import StudyCell

FIELDS = ("title", "tags", "description", "all")
"""Table 3's rows, as the configuration's `documents` must name them."""
JOINT_BETAS = (0.01, 1.0)
STACKED_DIMENSIONS = (256, 1024)


@dataclass(frozen=True)
class PaperRow:
    """A row: its label, the numbers printed in the paper (none where the row is ours), and a cell for each column."""

    label: str
    printed: tuple[float, ...]
    cells: tuple[StudyCell, ...]


@dataclass(frozen=True)
class Table:
    """recall@10 of image-to-sentence retrieval: `columns` head our numbers, `printed_columns` the paper's."""

    number: str
    title: str
    columns: tuple[str, ...]
    printed_columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]


@dataclass(frozen=True)
class GongSetting:
    """What a collection has for the tables: encoders, sizes in folds, and how many target images a fold has.

    `sizes` are the three training-set sizes of the supervised tables, `transfer_sizes` those of Table 5; `terms` the
    dictionary sizes of Table 2, of which the middle one is used elsewhere; `noise` names documents by rising noise.
    The smallest target set is drawn `draws` times; larger ones, and it for each level of noise, `further_draws` times.
    `betas` are those that joint training tries.
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


PAPER_SIZES = ("5,000", "15,000", "25,000")
SUPERVISED = (19.77, 27.03, 31.13)


def tables(setting: GongSetting) -> list[Table]:
    """All tables for one collection, those left out for which it has nothing."""
    made = [_features(setting), _dictionaries(setting), _fields(setting), _methods(setting), _transfer(setting)]
    made.append(_weak_sizes(setting))
    if setting.noise:
        made.append(_noise(setting))
    return [table for table in made if table.rows]


def _cell(setting: GongSetting, model: str = "ncca", training: str = "target", **values) -> StudyCell:
    common = {"encoders": setting.encoders, "documents": "all", "terms": setting.terms[1], **values}
    return StudyCell(model=model, training=training, **common)


def _over(setting: GongSetting, sizes: Sequence[int], **values) -> tuple[StudyCell, ...]:
    draws = (setting.draws if size == sizes[0] else setting.further_draws for size in sizes)
    return tuple(_cell(setting, target_folds=size, draws=n, **values) for size, n in zip(sizes, draws, strict=True))


def _heads(setting: GongSetting, sizes: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{size * setting.fold_images:,}" for size in sizes)


def _features(setting: GongSetting) -> Table:
    over = partial(_over, setting, setting.sizes)
    rows = [PaperRow("CNN activations", SUPERVISED, over())]
    if setting.standard:
        rows.insert(0, PaperRow("Standard combined features", (11.07, 18.40, 22.13), over(encoders=setting.standard)))
    title = "CNN activations versus standard visual features; normalized CCA"
    return Table("1", title, _heads(setting, setting.sizes), PAPER_SIZES, tuple(rows))


def _dictionaries(setting: GongSetting) -> Table:
    printed = ((19.03, 23.30, 26.53), SUPERVISED, (20.20, 27.40, 31.07))
    names = ("1,000", "3,000", "5,000")
    rows = tuple(
        PaperRow(f"{terms:,} terms (printed: {name})", numbers, _over(setting, setting.sizes, terms=terms))
        for terms, name, numbers in zip(setting.terms, names, printed, strict=True)
    )
    title = "Dictionary sizes; normalized CCA"
    return Table("2", title, _heads(setting, setting.sizes), PAPER_SIZES, rows)


def _fields(setting: GongSetting) -> Table:
    printed = ((17.83, 14.57), (15.97, 12.90), (16.67, 14.57), (18.33, 15.50))
    rows = tuple(
        PaperRow(name.capitalize() if name != "all" else "Combined", numbers, (_weak_only(setting, name),))
        for name, numbers in zip(FIELDS, printed, strict=True)
    )
    title = "Weak text alone, by field; normalized CCA trained on the auxiliary set only"
    return Table("3", title, ("weak set",), ("Flickr1M", "SBU1M"), rows)


def _weak_only(setting: GongSetting, documents: str) -> StudyCell:
    return _cell(setting, training="auxiliary", target_folds=0, documents=documents)


def _methods(setting: GongSetting) -> Table:
    over = partial(_over, setting, setting.sizes)
    rows = (
        PaperRow("Ridge regression", (10.63, 11.40, 12.77), over(model="ridge")),
        PaperRow("CCA", (8.76, 12.37, 15.43), over(model="cca")),
        PaperRow("CCA+Normalization", SUPERVISED, over()),
        PaperRow("Wsabie with SGD", (15.43, 17.86, 18.10), over(model="wsabie-sgd")),
        PaperRow("Wsabie with AdaGrad", (18.20, 24.33, 26.60), over(model="wsabie-adagrad")),
        PaperRow("KCCA (not in the paper's table)", (), over(model="kcca")),
    )
    return Table("4", "Embedding methods, fully supervised", _heads(setting, setting.sizes), PAPER_SIZES, rows)


def _transfer(setting: GongSetting) -> Table:
    over = partial(_over, setting, setting.transfer_sizes)
    stacked = (19.30, 22.93, 24.30, 19.13, 21.97, 22.73), (15.10, 22.83, 26.17, 15.17, 22.63, 25.87)
    joint = (20.80, 25.90, 28.47, 20.87, 25.87, 28.47), (20.63, 23.50, 25.37, 20.07, 24.10, 25.63)
    rows = [
        PaperRow("Fully Supervised Only", SUPERVISED + SUPERVISED, over()),
        PaperRow("Weakly Supervised Only", (18.33,) * 3 + (15.10,) * 3, over(training="auxiliary")),
        *(
            PaperRow(f"Joint Training (β = {beta:g})", printed, over(training="joint", transfer={"beta": (beta,)}))
            for beta, printed in zip(JOINT_BETAS, joint, strict=True)
        ),
        PaperRow("Joint Training (β chosen on dev; ours)", (), over(training="joint")),
        PaperRow("Text Feature (k = 50)", (19.67, 27.00, 30.97, 19.63, 27.03, 30.93), over(training="text-feature")),
        *(
            PaperRow(
                f"Stacked Training (c1 = {size})",
                printed,
                over(training="stacked", transfer={"auxiliary_dimensions": (size,)}),
            )
            for size, printed in zip(STACKED_DIMENSIONS, stacked, strict=True)
        ),
        PaperRow("SAE (linear)", (23.53, 28.57, 30.73, 22.67, 28.43, 30.97), over(training="sae-linear")),
        PaperRow("SAE (nonlinear)", (23.60, 29.80, 32.83, 23.17, 29.50, 32.40), over(training="sae")),
        *_own_rows(setting, over),
    ]
    columns = tuple(f"{name} {size}" for name in ("Flickr1M", "SBU1M") for size in PAPER_SIZES)
    title = "Methods that train on the auxiliary set and the target set"
    return Table("5", title, _heads(setting, setting.transfer_sizes), columns, tuple(rows))


WEIGHT = 0.3
"""Of what SAE stacks where its second CCA sees the auxiliary pairs too."""


def _own_rows(setting: GongSetting, over: partial) -> list[PaperRow]:
    """SAE whose second CCA sees the auxiliary pairs too. With weight 0 it is joint training, or ncca where second_beta
    is 0 as well, so that dev chooses what is added to the better of the two, if anything."""
    both = {"second_beta": (0.0, *setting.betas), "weight": (0.0, WEIGHT)}
    nonlinear = over(training="sae", transfer={**both, "features": 500})
    return [
        PaperRow("SAE (linear), second CCA joint (ours)", (), over(training="sae-linear", transfer=both)),
        PaperRow("SAE (500 features), second CCA joint (ours)", (), nonlinear),
    ]


def _weak_sizes(setting: GongSetting) -> Table:
    rows = [PaperRow("0 (fully annotated only)", (19.77, 19.77), _over(setting, setting.transfer_sizes[:1]))]
    printed = ((20.93, 20.20), (20.23, 20.53), (21.90, 22.60), (23.60, 23.17))
    for size, numbers in zip(setting.weak_sizes, printed, strict=True):
        cells = _over(setting, setting.transfer_sizes[:1], training="sae", auxiliary_folds=size)
        rows.append(PaperRow(f"{size * setting.weak_fold_images:,}", numbers, cells))
    title = "SAE with auxiliary sets of different sizes; rows of the paper: 1,000, 10,000, 100,000, 1,000,000"
    return Table("6", title, ("SAE (nonlinear)",), ("Flickr1M", "SBU1M"), tuple(rows))


def _noise(setting: GongSetting) -> Table:
    """Not in the paper: which method wins as the weak text gets worse."""

    def over(**values) -> tuple[StudyCell, ...]:
        common = {"target_folds": setting.transfer_sizes[0], "draws": setting.further_draws, **values}
        return tuple(_cell(setting, **{**common, "documents": name}) for name in setting.noise)

    rows = (
        PaperRow("Fully Supervised Only", (), over()[:1] * len(setting.noise)),
        PaperRow("Weakly Supervised Only", (), over(training="auxiliary")),
        PaperRow("Joint Training (β chosen on dev)", (), over(training="joint")),
        PaperRow("SAE (linear)", (), over(training="sae-linear")),
        PaperRow("SAE (nonlinear)", (), over(training="sae")),
        *_own_rows(setting, over),
    )
    return Table("noise", "Weak text of rising noise (not in the paper)", setting.noise, (), rows)
