"""Socher et al. 2014."""

from benchmarks.papers.printed.form import PrintedRow, PrintedTable

LE = {"encoders": "the network of Le et al. 2012, 4,096 dimensions"}
RANKED = {"loss": "ranking", "negatives": "all"}
MEAN_RANKS = (("sentence_to_image", "mean_rank"), ("image_to_sentence", "mean_rank"))
"""Columns of Table 1, center and right: image search, then describing images."""

TABLES = (
    PrintedTable(
        "Socher et al.", "Table 1, 100 test images of 1,000 from Pascal", "pascal1k", MEAN_RANKS,
        (
            PrintedRow("BoW", (14.6, 21.1), "bow", settings={**RANKED, **LE}),
            PrintedRow("CT-RNN", (16.1, 23.9), "ctrnn", settings={**RANKED, **LE}),
            PrintedRow("Recurrent NN", (19.2, 27.1), "rnn", settings={**RANKED, **LE}),
            PrintedRow("kCCA", (15.9, 18.0), "kcca", settings=LE),
            PrintedRow("DT-RNN", (13.6, 19.2), "dtrnn", settings={**RANKED, **LE}),
            PrintedRow("SDT-RNN", (12.5, 16.9), "sdtrnn", settings={**RANKED, **LE}),
        ),
        orders=(
            ("SDT-RNN", "DT-RNN"), ("DT-RNN", "BoW"), ("DT-RNN", "kCCA"), ("BoW", "CT-RNN"),
            ("CT-RNN", "Recurrent NN"),
        ),
    ),
)  # fmt: skip
