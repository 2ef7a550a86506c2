"""Karpathy and Fei-Fei 2015."""

from pipeline.papers.printed.form import (
    ALIGNED,
    BLEU,
    M_RNN,
    MEAN_OF_WORDS,
    NIC,
    R_CNN,
    RANKED,
    RANKING,
    PrintedRow,
    PrintedTable,
)

PUBLISHED = "the same system as published by its authors; the paper's own training of it is a row of its own"
DONAHUE = "a generator (LRCN) of which there is none here"
DEFRAG = {**RANKED, "sum": "positive", **R_CNN}
CITED = "another generator, of which there is none here"
AGREEMENT = "how well annotators agree; the paper does not say which of their boxes were taken for the same one"
GENERATED = tuple(("images", metric) for metric in (*BLEU, "meteor", "cider"))
DESCRIBED = tuple(("boxes", metric) for metric in (*BLEU, "meteor", "rouge_l", "cider"))
ORDERS = (
    ("BRNN", "DepTree edges"), ("DepTree edges", "DeFrag, their implementation"), ("BRNN", "Kiros et al."),
    ("BRNN", "SDT-RNN"),
)  # fmt: skip
"""Section 4.1; against Kiros et al. with an equal network."""
VGG = {"encoders": "vgg16 fc7", "cell": "relu"}
REGIONAL = {"encoders": "not said for regions", "cell": "relu"}

TABLES = (
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 5, Flickr8K", "flickr8k", RANKING,
        (
            PrintedRow("DeViSE", (4.5, 18.1, 29.2, 26, 6.7, 21.9, 32.7, 25), "bow", kind=MEAN_OF_WORDS),
            PrintedRow("SDT-RNN", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16), "sdtrnn"),
            PrintedRow("Kiros et al.", (13.5, 36.2, 45.7, 13, 10.4, 31.0, 43.7, 14), "lstm"),
            PrintedRow("Mao et al.", (14.5, 37.2, 48.5, 11, 11.5, 31.0, 42.4, 15), reason=M_RNN),
            PrintedRow("DeFrag, as published", (12.6, 32.9, 44.0, 14, 9.7, 29.6, 42.5, 15), reason=PUBLISHED),
            PrintedRow("DeFrag, their implementation", (13.8, 35.8, 48.2, 10.4, 9.5, 28.2, 40.3, 15.6), "defrag",
                       settings=DEFRAG),
            PrintedRow("DepTree edges", (14.8, 37.9, 50.0, 9.4, 11.6, 31.4, 43.8, 13.2), "deptree", settings=ALIGNED),
            PrintedRow("BRNN", (16.5, 40.6, 54.2, 7.6, 11.8, 32.1, 44.7, 12.4), "dvsa", settings=ALIGNED),
        ),
        orders=(*ORDERS, ("BRNN", "DeViSE")), top=5,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, Flickr30K", "flickr30k", RANKING,
        (
            PrintedRow("SDT-RNN", (9.6, 29.8, 41.1, 16, 8.9, 29.8, 41.1, 16), "sdtrnn"),
            PrintedRow("Kiros et al.", (14.8, 39.2, 50.9, 10, 11.8, 34.0, 46.3, 13), "lstm"),
            PrintedRow("Mao et al.", (18.4, 40.2, 50.9, 10, 12.6, 31.2, 41.5, 16), reason=M_RNN),
            PrintedRow("Donahue et al.", (17.5, 40.3, 50.8, 9, None, None, None, None), reason=DONAHUE),
            PrintedRow("DeFrag, as published", (14.2, 37.7, 51.3, 10, 10.2, 30.8, 44.2, 14), reason=PUBLISHED),
            PrintedRow("DeFrag, their implementation", (19.2, 44.5, 58.0, 6.0, 12.9, 35.4, 47.5, 10.8), "defrag",
                       settings=DEFRAG),
            PrintedRow("DepTree edges", (20.0, 46.6, 59.4, 5.4, 15.0, 36.5, 48.2, 10.4), "deptree", settings=ALIGNED),
            PrintedRow("BRNN", (22.2, 48.2, 61.4, 4.8, 15.2, 37.7, 50.5, 9.2), "dvsa", settings=ALIGNED),
            PrintedRow("Vinyals et al.", (23, None, 63, 5, 17, None, 57, 8), reason=NIC),
        ),
        orders=ORDERS, top=5,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 1,000 test images", "coco", RANKING,
        (
            PrintedRow("BRNN", (38.4, 69.9, 80.5, 1.0, 27.4, 60.2, 74.8, 3.0), "dvsa", settings=ALIGNED),
        ), 1000, top=5,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 1, MSCOCO, 5,000 test images", "coco", RANKING,
        (
            PrintedRow("BRNN", (16.5, 39.2, 52.0, 9.0, 10.7, 29.6, 42.2, 14.0), "dvsa", settings=ALIGNED),
        ), 5000, top=5,
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 2, Flickr8K, and section 4.2", "flickr8k", GENERATED,
        (
            PrintedRow("Mao et al.", (58, 28, 23, None, None, None), reason=CITED),
            PrintedRow("Google NIC", (63, 41, 27, None, None, None), reason=CITED),
            PrintedRow("Chen and Zitnick", (None, None, None, 14.1, None, None), reason=CITED),
            PrintedRow("Our model", (57.9, 38.3, 24.5, 16.0, 16.7, 31.8), "mrnn", settings=VGG),
        ),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 2, Flickr30K, and section 4.2", "flickr30k", GENERATED,
        (
            PrintedRow("Mao et al.", (55, 24, 20, None, None, None), reason=CITED),
            PrintedRow("Google NIC", (66.3, 42.3, 27.7, 18.3, None, None), reason=CITED),
            PrintedRow("LRCN", (58.8, 39.1, 25.1, 16.5, None, None), reason=CITED),
            PrintedRow("Chen and Zitnick", (None, None, None, 12.6, None, None), reason=CITED),
            PrintedRow("Our model", (57.3, 36.9, 24.0, 15.7, 15.3, 24.7), "mrnn", settings=VGG),
        ),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 2, MSCOCO", "coco", GENERATED,
        (
            PrintedRow("Nearest Neighbor", (48.0, 28.1, 16.6, 10.0, 15.7, 38.3), "nearest",
                       settings={"encoders": "vgg16 fc7", "by": "features", "distance": "euclidean"}),
            PrintedRow("Google NIC", (66.6, 46.1, 32.9, 24.6, None, None), reason=CITED),
            PrintedRow("LRCN", (62.8, 44.2, 30.4, None, None, None), reason=CITED),
            # Their numbers are BLEU-4 and METEOR: as BLEU-3 and BLEU-4, the second could not be the larger.
            PrintedRow("MS Research", (None, None, None, 21.1, 20.7, None), reason=CITED),
            PrintedRow("Chen and Zitnick", (None, None, None, 19.0, 20.4, None), reason=CITED),
            PrintedRow("Our model", (62.5, 45.0, 32.1, 23.0, 19.5, 66.0), "mrnn", settings=VGG),
        ),
        orders=(("Our model", "Nearest Neighbor"),),
    ),
    PrintedTable(
        "Karpathy and Fei-Fei", "Table 3, regions of MSCOCO, and section 4.3", "coco", DESCRIBED,
        (
            PrintedRow("Human agreement", (61.5, 45.2, 30.1, 22.0, None, None, None), reason=AGREEMENT),
            PrintedRow("Nearest Neighbor", (22.9, 10.5, 0.0, 0.0, None, None, None), "ranked-snippets",
                       settings={"encoders": R_CNN["encoders"]}),
            PrintedRow("RNN: Fullframe model", (14.2, 6.0, 2.2, 0.0, 13.3, 21.0, 20.3), "mrnn",
                       settings=REGIONAL),
            PrintedRow("RNN: Region level model", (35.2, 23.0, 16.1, 14.8, 15.8, 35.1, 61.6), "mrnn-regions",
                       settings=REGIONAL),
        ),
        orders=(
            ("RNN: Region level model", "RNN: Fullframe model"), ("RNN: Region level model", "Nearest Neighbor"),
        ),
    ),
)  # fmt: skip
