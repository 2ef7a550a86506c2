"""Karpathy and Fei-Fei 2015."""

from benchmarks.papers.printed.form import RANKING, PrintedRow, PrintedTable

R_CNN = {"encoders": "R-CNN (finetuned for detection), fc7", "regions": "19 detections and the whole image"}
RANKED = {"loss": "ranking", "negatives": "all"}
MAO = "a generator that ranks by the perplexity of a sentence, of which there is none here"
NIC = "a generator that ranks by the likelihood of a sentence, of which there is none here"
PUBLISHED = "the same system as published by its authors; the paper's own training of it is a row of its own"
DONAHUE = "a generator (LRCN) of which there is none here"
ALIGNED = {**RANKED, "margin": 1.0, "sum": "words", **R_CNN}
DEFRAG = {**RANKED, "sum": "positive", **R_CNN}

TABLES = (
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 5, Flickr8K", "flickr8k", RANKING,
        (
            PrintedRow("DeViSE", (4.5, 18.1, 29.2, 26, 6.7, 21.9, 32.7, 25), "devise"),
            PrintedRow("SDT-RNN", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16), "sdtrnn"),
            PrintedRow("Kiros et al.", (13.5, 36.2, 45.7, 13, 10.4, 31.0, 43.7, 14), "lstm"),
            PrintedRow("Mao et al.", (14.5, 37.2, 48.5, 11, 11.5, 31.0, 42.4, 15), reason=MAO),
            PrintedRow("DeFrag, as published", (12.6, 32.9, 44.0, 14, 9.7, 29.6, 42.5, 15), reason=PUBLISHED),
            PrintedRow("DeFrag, their implementation", (13.8, 35.8, 48.2, 10.4, 9.5, 28.2, 40.3, 15.6), "defrag",
                       settings=DEFRAG),
            PrintedRow("DepTree edges", (14.8, 37.9, 50.0, 9.4, 11.6, 31.4, 43.8, 13.2), "deptree", settings=ALIGNED),
            PrintedRow("BRNN", (16.5, 40.6, 54.2, 7.6, 11.8, 32.1, 44.7, 12.4), "dvsa", settings=ALIGNED),
        ),
        orders=(("BRNN", "DepTree edges"), ("DepTree edges", "DeFrag, their implementation")),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, Flickr30K", "flickr30k", RANKING,
        (
            PrintedRow("SDT-RNN", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16), "sdtrnn"),
            PrintedRow("Kiros et al.", (14.8, 39.2, 50.9, 10, 11.8, 34.0, 46.3, 13), "lstm"),
            PrintedRow("Mao et al.", (18.4, 40.2, 50.9, 10, 12.6, 31.2, 41.5, 16), reason=MAO),
            PrintedRow("Donahue et al.", (17.5, 40.3, 50.8, 9, None, None, None, None), reason=DONAHUE),
            PrintedRow("DeFrag, as published", (14.2, 37.7, 51.3, 10, 10.2, 30.8, 44.2, 14), reason=PUBLISHED),
            PrintedRow("DeFrag, their implementation", (19.2, 44.5, 58.0, 6.0, 12.9, 35.4, 47.5, 10.8), "defrag",
                       settings=DEFRAG),
            PrintedRow("DepTree edges", (20.0, 46.6, 59.4, 5.4, 15.0, 36.5, 48.2, 10.4), "deptree", settings=ALIGNED),
            PrintedRow("BRNN", (22.2, 48.2, 61.4, 4.8, 15.2, 37.7, 50.5, 9.2), "dvsa", settings=ALIGNED),
            PrintedRow("Vinyals et al.", (23, None, 63, 5, 17, None, 57, 8), reason=NIC),
        ),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 1,000 test images", "coco", RANKING,
        (
            PrintedRow("BRNN", (38.4, 69.9, 80.5, 1.0, 27.4, 60.2, 74.8, 3.0), "dvsa", settings=ALIGNED),
        ), 1000,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 5,000 test images", "coco", RANKING,
        (
            PrintedRow("BRNN", (16.5, 39.2, 52.0, 9.0, 10.7, 29.6, 42.2, 14.0), "dvsa", settings=ALIGNED),
        ), 5000,
    ),
)  # fmt: skip
