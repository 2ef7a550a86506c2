"""Kiros et al. 2014."""

from pipeline.papers.printed.form import BLEU, M_RNN, MEAN_OF_WORDS, RANKING, PrintedRow, PrintedTable

FULL_FRAME = "the same system on whole images, without regions"
FINETUNED = "DeFrag on a network finetuned with it, which is not done here"
LSTM = {
    "loss": "ranking",
    "score": "cosine",
    "reduction": "sum",
    "margin": 0.2,
    "negatives": "sampled",
    "peepholes": True,
    "dimensions": 300,
    "optimiser": "sgd",
    "learning_rate": 1.0,
    "batch_size": 40,
}
OXFORD, TORONTO = ({**LSTM, "encoders": encoders} for encoders in ("vgg19 fc7", "Toronto ConvNet, 4,096 dimensions"))
OXFORD_30K, TORONTO_30K = ({**settings, "batch_size": 100} for settings in (OXFORD, TORONTO))
LANGUAGE = {"optimiser": "sgd", "dropout": 0.0, "averaging": 0.0, "dimensions": 300, "candidates": 1000}
"""Sections 2.3, 2.5 and 5.2."""
GATED = {**LANGUAGE, "factors": 100, "gate_bias": False}
NOT_PRINTED = (None,) * 6
RANDOM = (0.1, 0.6, 1.1, 631, 0.1, 0.5, 1.0, 500)

TABLES = (
    PrintedTable(
        "Kiros et al.", "Table 1, Flickr8K", "flickr8k", RANKING,
        (
            PrintedRow("Random Ranking", RANDOM, chance=True),
            PrintedRow("SDT-RNN, full frame", (4.5, 18.0, 28.6, 32, 6.1, 18.5, 29.0, 29), "sdtrnn"),
            PrintedRow("DeViSE", (4.8, 16.5, 27.3, 28, 5.9, 20.1, 29.6, 29), "bow", kind=MEAN_OF_WORDS),
            PrintedRow("SDT-RNN", (6.0, 22.7, 34.0, 23, 6.6, 21.6, 31.7, 25), "sdtrnn"),
            PrintedRow("DeFrag, full frame", (5.9, 19.2, 27.3, 34, 5.2, 17.6, 26.5, 32), reason=FULL_FRAME),
            PrintedRow("DeFrag", (12.6, 32.9, 44.0, 14, 9.7, 29.6, 42.5, 15), "defrag"),
            PrintedRow("m-RNN", (14.5, 37.2, 48.5, 11, 11.5, 31.0, 42.4, 15), reason=M_RNN),
            PrintedRow("LSTM", (13.5, 36.2, 45.7, 13, 10.4, 31.0, 43.7, 14), "lstm", settings=TORONTO),
            PrintedRow("LSTM, OxfordNet", (18.0, 40.9, 55.0, 8, 12.5, 37.0, 51.5, 10), "lstm", settings=OXFORD),
        ),
        orders=(
            ("LSTM, OxfordNet", "DeViSE"), ("LSTM, OxfordNet", "SDT-RNN"), ("LSTM, OxfordNet", "DeFrag"),
            ("LSTM, OxfordNet", "LSTM"), ("LSTM", "DeViSE"), ("LSTM", "DeFrag"), ("LSTM", "SDT-RNN"),
        ),
    ),
    PrintedTable(
        "Kiros et al.", "Table 2, Flickr30K", "flickr30k", RANKING,
        (
            PrintedRow("Random Ranking", RANDOM, chance=True),
            PrintedRow("DeViSE", (4.5, 18.1, 29.2, 26, 6.7, 21.9, 32.7, 25), "bow", kind=MEAN_OF_WORDS),
            PrintedRow("SDT-RNN", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16), "sdtrnn"),
            PrintedRow("DeFrag", (14.2, 37.7, 51.3, 10, 10.2, 30.8, 44.2, 14), "defrag"),
            PrintedRow("DeFrag, finetuned CNN", (16.4, 40.2, 54.7, 8, 10.3, 31.4, 44.5, 13), reason=FINETUNED),
            PrintedRow("m-RNN", (18.4, 40.2, 50.9, 10, 12.6, 31.2, 41.5, 16), reason=M_RNN),
            PrintedRow("LSTM", (14.8, 39.2, 50.9, 10, 11.8, 34.0, 46.3, 13), "lstm", settings=TORONTO_30K),
            PrintedRow("LSTM, OxfordNet", (23.0, 50.7, 62.9, 5, 16.8, 42.0, 56.5, 8), "lstm", settings=OXFORD_30K),
        ),
        orders=(
            ("LSTM, OxfordNet", "DeViSE"), ("LSTM, OxfordNet", "DeFrag"),
            ("LSTM, OxfordNet", "LSTM"),
        ),
    ),
    PrintedTable(
        "Kiros et al.", "sections 2.4, 2.5 and 3.3, descriptions, of which no figure is printed", "sbu",
        tuple(("images", metric) for metric in (*BLEU, "meteor", "cider")),
        (
            PrintedRow("MLBL, the additive variant", NOT_PRINTED, "mlbl", settings=LANGUAGE),
            PrintedRow("MNLM", NOT_PRINTED, "mnlm", settings=GATED),
            PrintedRow("SC-NLM", NOT_PRINTED, "sc-nlm", settings=GATED),
        ),
        orders=(("MNLM", "MLBL, the additive variant"),),
    ),
)  # fmt: skip
