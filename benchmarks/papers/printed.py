"""The tables of the seeds as printed: what a reproduction is laid beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RANKING = (
    *(("image_to_sentence", measure) for measure in ("recall@1", "recall@5", "recall@10", "median_rank")),
    *(("sentence_to_image", measure) for measure in ("recall@1", "recall@5", "recall@10", "median_rank")),
)
"""Columns of an image-sentence ranking table: annotation, then search."""
MEAN_RANKS = (("sentence_to_image", "mean_rank"), ("image_to_sentence", "mean_rank"))
"""Columns of Socher et al.'s Table 1 (center and right): image search, then describing images."""


@dataclass(frozen=True)
class PrintedTable:
    """One table: `collection` is what it was measured on, with a gallery of `images` where several sizes are in use;
    each row a printed name, the registered model that it is here (None where it is another system), and numbers in the
    order of `columns`, None where the paper has none."""

    seed: str
    title: str
    collection: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, str | None, Sequence[float | None]]]
    images: int | None = None


TABLES: tuple[PrintedTable, ...] = (
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 5, Flickr8K", "flickr8k", RANKING,
        (
            ("DeViSE", "devise", (4.5, 18.1, 29.2, 26, 6.7, 21.9, 32.7, 25)),
            ("SDT-RNN", "sdtrnn", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16)),
            ("Kiros et al.", "lstm", (13.5, 36.2, 45.7, 13, 10.4, 31.0, 43.7, 14)),
            ("Mao et al.", None, (14.5, 37.2, 48.5, 11, 11.5, 31.0, 42.4, 15)),
            ("DeFrag, as published", None, (12.6, 32.9, 44.0, 14, 9.7, 29.6, 42.5, 15)),
            ("DeFrag, their implementation", "defrag", (13.8, 35.8, 48.2, 10.4, 9.5, 28.2, 40.3, 15.6)),
            ("DepTree edges", None, (14.8, 37.9, 50.0, 9.4, 11.6, 31.4, 43.8, 13.2)),
            ("BRNN", "dvsa", (16.5, 40.6, 54.2, 7.6, 11.8, 32.1, 44.7, 12.4)),
        ),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, Flickr30K", "flickr30k", RANKING,
        (
            ("SDT-RNN", "sdtrnn", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16)),
            ("Kiros et al.", "lstm", (14.8, 39.2, 50.9, 10, 11.8, 34.0, 46.3, 13)),
            ("Mao et al.", None, (18.4, 40.2, 50.9, 10, 12.6, 31.2, 41.5, 16)),
            ("Donahue et al.", None, (17.5, 40.3, 50.8, 9, None, None, None, None)),
            ("DeFrag, as published", None, (14.2, 37.7, 51.3, 10, 10.2, 30.8, 44.2, 14)),
            ("DeFrag, their implementation", "defrag", (19.2, 44.5, 58.0, 6.0, 12.9, 35.4, 47.5, 10.8)),
            ("DepTree edges", None, (20.0, 46.6, 59.4, 5.4, 15.0, 36.5, 48.2, 10.4)),
            ("BRNN", "dvsa", (22.2, 48.2, 61.4, 4.8, 15.2, 37.7, 50.5, 9.2)),
            ("Vinyals et al.", None, (23, None, 63, 5, 17, None, 57, 8)),
        ),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 1,000 test images", "coco", RANKING,
        (("BRNN", "dvsa", (38.4, 69.9, 80.5, 1.0, 27.4, 60.2, 74.8, 3.0)),), 1000,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 5,000 test images", "coco", RANKING,
        (("BRNN", "dvsa", (16.5, 39.2, 52.0, 9.0, 10.7, 29.6, 42.2, 14.0)),), 5000,
    ),
    PrintedTable(
        "Kiros et al.", "Table 1, Flickr8K", "flickr8k", RANKING,
        (
            ("DeViSE", "devise", (4.8, 16.5, 27.3, 28, 5.9, 20.1, 29.6, 29)),
            ("SDT-RNN", "sdtrnn", (6.0, 22.7, 34.0, 23, 6.6, 21.6, 31.7, 25)),
            ("DeFrag", "defrag", (12.6, 32.9, 44.0, 14, 9.7, 29.6, 42.5, 15)),
            ("m-RNN", None, (14.5, 37.2, 48.5, 11, 11.5, 31.0, 42.4, 15)),
            ("LSTM", None, (13.5, 36.2, 45.7, 13, 10.4, 31.0, 43.7, 14)),
            ("LSTM, OxfordNet", "lstm", (18.0, 40.9, 55.0, 8, 12.5, 37.0, 51.5, 10)),
        ),
    ),
    PrintedTable(
        "Kiros et al.", "Table 2, Flickr30K", "flickr30k", RANKING,
        (
            ("DeViSE", "devise", (4.5, 18.1, 29.2, 26, 6.7, 21.9, 32.7, 25)),
            ("SDT-RNN", "sdtrnn", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16)),
            ("DeFrag", "defrag", (14.2, 37.7, 51.3, 10, 10.2, 30.8, 44.2, 14)),
            ("DeFrag, finetuned CNN", None, (16.4, 40.2, 54.7, 8, 10.3, 31.4, 44.5, 13)),
            ("m-RNN", None, (18.4, 40.2, 50.9, 10, 12.6, 31.2, 41.5, 16)),
            ("LSTM", None, (14.8, 39.2, 50.9, 10, 11.8, 34.0, 46.3, 13)),
            ("LSTM, OxfordNet", "lstm", (23.0, 50.7, 62.9, 5, 16.8, 42.0, 56.5, 8)),
        ),
    ),
    PrintedTable(
        "Niu et al.", "Table 1, Flickr8K", "flickr8k", RANKING,
        (
            ("DeepVS", "dvsa", (16.5, None, 54.2, 7.6, 11.8, None, 44.7, 12.4)),
            ("NIC", None, (20, None, 61, 6, 19, None, 64, 5)),
            ("HM-LSTM", "hmlstm", (27.7, None, 68.6, 5, 24.4, None, 68.1, 4)),
        ),
    ),
    PrintedTable(
        "Niu et al.", "Table 2, Flickr30K", "flickr30k", RANKING,
        (
            ("DeepVS", "dvsa", (22.2, None, 61.4, 4.8, 15.2, None, 50.5, 9.2)),
            ("m-RNN-vgg", None, (35.4, None, 73.7, 3, 22.8, None, 63.1, 5)),
            ("DeepSP", None, (35.7, None, 74.4, None, 25.1, None, 66.5, None)),
            ("HM-LSTM", "hmlstm", (38.1, None, 76.5, 3, 27.7, None, 68.8, 4)),
        ),
    ),
    PrintedTable(
        "Niu et al.", "Table 3, MS-COCO, 1,000 test images", "coco", RANKING,
        (
            ("DeepVS", "dvsa", (36.4, None, 80.9, 3, 28.1, None, 76.1, 3)),
            ("m-RNN-vgg", None, (41.0, None, 83.5, 2, 29.0, None, 77.0, 3)),
            ("DeepSP", None, (40.7, None, 85.3, None, 33.5, None, 83.2, None)),
            ("HM-LSTM", "hmlstm", (43.9, None, 87.8, 2, 36.1, None, 86.7, 3)),
        ), 1000,
    ),
    PrintedTable(
        "Socher et al.", "Table 1, 100 test images of 1,000 from Pascal", "pascal1k", MEAN_RANKS,
        (
            ("BoW", "bow", (14.6, 21.1)),
            ("CT-RNN", "ctrnn", (16.1, 23.9)),
            ("Recurrent NN", "rnn", (19.2, 27.1)),
            ("kCCA", "kcca", (15.9, 18.0)),
            ("DT-RNN", "dtrnn", (13.6, 19.2)),
            ("SDT-RNN", "sdtrnn", (12.5, 16.9)),
        ),
    ),
)  # fmt: skip

R_CNN = {"encoders": "R-CNN (finetuned for detection), fc7", "regions": "19 detections"}
LE = {"encoders": "the network of Le et al. 2012, 4,096 dimensions"}
RANKED = {"loss": "ranking, negatives all"}
SYSTEMS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("Karpathy and Fei-Fei", "BRNN"): {**RANKED, "margin": "1", "score": "words", **R_CNN},
    ("Karpathy and Fei-Fei", "DeFrag, their implementation"): {**RANKED, "score": "positive", **R_CNN},
    ("Kiros et al.", "LSTM, OxfordNet"): {
        "loss": "ranking, negatives sampled", "margin": "0.2", "dimensions": "300", "encoders": "vgg19 fc7",
    },
    ("Niu et al.", "DeepVS"): {**RANKED, "score": "words", **R_CNN},
    ("Niu et al.", "HM-LSTM"): {**RANKED, **R_CNN},
    **{("Socher et al.", name): {**RANKED, **LE} for name in ("BoW", "CT-RNN", "Recurrent NN", "DT-RNN", "SDT-RNN")},
    ("Socher et al.", "kCCA"): LE,
}  # fmt: skip
"""Settings of the printed systems that decide whether a number of ours is of the same one, (seed, printed row) -> what
-> value, in the words in which `reproduce` describes ours. A row without them is of a system that the seed cites."""


def ranking_tables(collection: str | None) -> list[PrintedTable]:
    """The tables of image-sentence ranking that are printed of a collection."""
    return [one for one in TABLES if one.collection == collection and one.columns == RANKING]
