"""Socher et al. 2014."""

from pipeline.papers.printed.form import Column, PrintedRow, PrintedTable

PAPER, COLLECTION, IMAGES = "Socher et al.", "pascal1k", 100
LE = {"encoders": "the network of Le et al. 2012, 4,096 dimensions"}
TRAINED = {
    "reduction": "sum", "penalty": 0.08, "optimiser": "adagrad", "learning_rate": 0.0001,
    "dimensions": 50, "word vectors": "Huang et al. 2012, 50 dimensions, fixed", **LE,
}  # fmt: skip
"""Sections 5 and 6. The minibatch, if there was one, and the epochs are not given."""
MARGIN = {"loss": "ranking", "score": "product", "negatives": "distinct", "margin": 3.0, **TRAINED}
SQUARED = {"loss": "squared", **TRAINED}
AVERAGED = {"image_kernel": "linear", "text_kernel": "linear", "text encoders": "averaged", **LE}
OWN = {
    "BoW": ("bow", {}),
    "CT-RNN": ("ctrnn", {"activation": "tanh"}),
    "Recurrent NN": ("rnn", {"activation": "tanh", "bias": False}),
    "kCCA": ("kcca", {}),
    "DT-RNN": ("dtrnn", {"activation": "tanh"}),
    "SDT-RNN": ("sdtrnn", {"activation": "tanh", "rare": 1}),
}
"""Row -> the registered model, and settings that only it has."""
ALIKE, SEARCH, DESCRIBE = (
    (side, "mean_rank") for side in ("sentence_similarity", "sentence_to_image", "image_to_sentence")
)


def _row(name: str, *numbers: float, squared: bool = False, said: str = "") -> PrintedRow:
    if name == "Random":
        return PrintedRow(name, numbers, chance=True)
    model, own = OWN[name]
    if model == "kcca":
        kind, settings = {"score": "distance" if squared else "product"}, AVERAGED
    else:
        kind, settings = {"loss": "squared" if squared else "ranking"}, SQUARED if squared else MARGIN
    told = {**settings, **kind, **own}
    return PrintedRow(name + said, numbers, model, kind=kind if squared or said else {}, settings=told)


def _table(title: str, columns: tuple[Column, ...], squared: bool = False, **rows: tuple[float, ...]) -> PrintedTable:
    """With the order of the first column: each row above the next, and the best above every other."""
    named = {name.replace("_", " ").replace("TRNN", "T-RNN"): numbers for name, numbers in rows.items()}
    best = sorted((name for name in named if name != "Random"), key=lambda name: named[name][0])
    return PrintedTable(
        PAPER, title, COLLECTION, columns,
        tuple(_row(name, *numbers, squared=squared) for name, numbers in named.items()), IMAGES,
        orders=tuple(dict.fromkeys((*zip(best, best[1:], strict=False), *((best[0], other) for other in best[1:])))),
    )  # fmt: skip


RECALLS = ("mean_rank", "recall@1", "recall@5", "recall@10")
COMPARED = {
    "BoW": ((14.6, 21.1), (24.7, 30.7)),
    "CT-RNN": ((16.1, 23.9), (22.2, 29.4)),
    "Recurrent NN": ((19.2, 27.1), (28.4, 31.4)),
    "kCCA": ((15.9, 18.0), (13.7, 38.0)),
    "DT-RNN": ((13.6, 19.2), (13.3, 26.8)),
    "SDT-RNN": ((12.5, 16.9), (15.8, 37.5)),
}
"""Mean ranks of image search and of describing images: Table 1, Table 2."""
TABLES = (
    _table(
        "Table 1, left: sentences of the same image, among 500 of Pascal", (ALIKE,),
        Random=(101.1,), BoW=(11.8,), CTRNN=(15.8,), Recurrent_NN=(18.5,), kCCA=(10.7,), DTRNN=(11.1,), SDTRNN=(10.5,),
    ),
    _table(
        "Table 1, center: image search, 100 test images of Pascal", (SEARCH,),
        Random=(52.1,), BoW=(14.6,), CTRNN=(16.1,), Recurrent_NN=(19.2,), kCCA=(15.9,), DTRNN=(13.6,), SDTRNN=(12.5,),
    ),
    _table(
        "Table 1, right: describing images, 100 test images of Pascal", (DESCRIBE,),
        Random=(92.1,), BoW=(21.1,), CTRNN=(23.9,), Recurrent_NN=(27.1,), kCCA=(18.0,), DTRNN=(19.2,), SDTRNN=(16.9,),
    ),
    _table(
        "Table 2, left: image search, squared error and distances", (SEARCH,), squared=True,
        BoW=(24.7,), CTRNN=(22.2,), Recurrent_NN=(28.4,), kCCA=(13.7,), DTRNN=(13.3,), SDTRNN=(15.8,),
    ),
    _table(
        "Table 2, right: describing images, squared error and distances", (DESCRIBE,), squared=True,
        BoW=(30.7,), CTRNN=(29.4,), Recurrent_NN=(31.4,), kCCA=(38.0,), DTRNN=(26.8,), SDTRNN=(37.5,),
    ),
    PrintedTable(
        PAPER, "section 6.4: margin (Table 1) against squared error (Table 2), search and describing images",
        COLLECTION, (SEARCH, DESCRIBE),
        tuple(
            _row(name, *numbers, squared=squared, said=", squared" if squared else ", margin")
            for name, both in COMPARED.items() for squared, numbers in zip((False, True), both, strict=True)
        ),
        IMAGES,
        orders=tuple((f"{name}, margin", f"{name}, squared") for name in COMPARED),
    ),
    _table(
        "Table 3, image search", tuple(("sentence_to_image", measure) for measure in RECALLS),
        BoW=(14.6, 15.8, 42.2, 60.0), kCCA=(15.9, 16.4, 41.4, 58.0), SDTRNN=(12.5, 16.4, 46.6, 65.6),
    ),
    _table(
        "Table 3, describing images", tuple(("image_to_sentence", measure) for measure in RECALLS),
        BoW=(21.1, 19.0, 38.0, 57.0), kCCA=(18.0, 21.0, 47.0, 61.0), SDTRNN=(16.9, 23.0, 45.0, 63.0),
    ),
)  # fmt: skip
