"""Niu et al. 2017."""

from pipeline.papers.printed.form import (
    ALIGNED,
    M_RNN,
    MEAN_OF_WORDS,
    NIC,
    R_CNN,
    RANKED,
    RANKING,
    PrintedRow,
    PrintedTable,
)

REGIONS = tuple(("region_to_phrase", measure) for measure in ("recall@1", "recall@5", "recall@10", "median_rank"))
"""Columns of Table 4, "Region Annotation"."""
DEEP_SP = "a two-branch network that keeps neighbours together (Wang et al. 2016), of which there is none here"
TRAINED = {**RANKED, "dimensions": 512, "optimiser": "adam", "learning_rate": 0.008, "batch_size": 64}
HM_LSTM = {**TRAINED, **R_CNN}
MCG = {"encoders": "R-CNN's network", "regions": "19 proposals of MCG and the whole image"}
"""Of COCO, whose labels the R-CNN was trained on (section 5.1.2)."""
ANNOTATED = {"encoders": "R-CNN's network", "regions": "4,467 that people drew (section 5.2)"}
NO_PHRASES = "it ranks sentences by their likelihood, and has no vectors of phrases and regions"
RANDOM = (0.1, None, 1.1, 631, 0.1, None, 1.0, 500)

TABLES = (
    PrintedTable(
        "Niu et al.", "Table 1, Flickr8K", "flickr8k", RANKING,
        (
            PrintedRow("Random", RANDOM, chance=True),
            PrintedRow("SDT-RNN", (6.0, None, 34.0, 23, 6.6, None, 31.7, 25), "sdtrnn"),
            PrintedRow("DeViSE", (4.8, None, 27.3, 28, 5.9, None, 29.6, 29), "bow", kind=MEAN_OF_WORDS),
            PrintedRow("DeFrag", (12.6, None, 44.0, 14, 9.7, None, 42.5, 15), "defrag"),
            PrintedRow("SC-NLM", (13.5, None, 45.7, 13, 10.4, None, 43.7, 14), "lstm"),
            PrintedRow("DeepVS", (16.5, None, 54.2, 7.6, 11.8, None, 44.7, 12.4), "dvsa", settings=ALIGNED),
            PrintedRow("m-RNN", (14.5, None, 48.5, 11, 11.5, None, 42.4, 15), reason=M_RNN),
            PrintedRow("NIC", (20, None, 61, 6, 19, None, 64, 5), reason=NIC),
            PrintedRow("HM-LSTM", (27.7, None, 68.6, 5, 24.4, None, 68.1, 4), "hmlstm", settings=HM_LSTM),
        ),
        orders=tuple(("HM-LSTM", name) for name in ("DeepVS", "SC-NLM", "DeFrag", "DeViSE", "SDT-RNN")),
    ),
    PrintedTable(
        "Niu et al.", "Table 2, Flickr30K", "flickr30k", RANKING,
        (
            PrintedRow("Random", RANDOM, chance=True),
            PrintedRow("SDT-RNN", (9.6, None, 41.1, 16, 8.9, None, 41.1, 16), "sdtrnn"),
            PrintedRow("DeViSE", (4.5, None, 29.2, 26, 6.7, None, 32.7, 25), "bow", kind=MEAN_OF_WORDS),
            PrintedRow("DeFrag", (14.2, None, 51.3, 10, 10.2, None, 44.2, 14), "defrag"),
            PrintedRow("SC-NLM", (14.8, None, 50.9, 10, 11.8, None, 46.3, 13), "lstm"),
            PrintedRow("DeepVS", (22.2, None, 61.4, 4.8, 15.2, None, 50.5, 9.2), "dvsa", settings=ALIGNED),
            PrintedRow("m-RNN", (18.4, None, 50.9, 10, 12.6, None, 41.5, 16), reason=M_RNN),
            PrintedRow("NIC", (17.0, None, 56.0, 7, 17.0, None, 57.0, 7), reason=NIC),
            PrintedRow("m-RNN-vgg", (35.4, None, 73.7, 3, 22.8, None, 63.1, 5), reason=M_RNN),
            PrintedRow("DeepSP", (35.7, None, 74.4, None, 25.1, None, 66.5, None), reason=DEEP_SP),
            PrintedRow("HM-LSTM", (38.1, None, 76.5, 3, 27.7, None, 68.8, 4), "hmlstm", settings=HM_LSTM),
        ),
        orders=tuple(("HM-LSTM", name) for name in ("DeepVS", "SC-NLM", "DeFrag", "DeViSE", "SDT-RNN")),
    ),
    PrintedTable(
        "Niu et al.", "Table 3, MS-COCO, 1,000 test images", "coco", RANKING,
        (
            PrintedRow("Random", RANDOM, chance=True),
            PrintedRow("DeepVS", (36.4, None, 80.9, 3, 28.1, None, 76.1, 3), "dvsa", settings={**ALIGNED, **MCG}),
            PrintedRow("m-RNN-vgg", (41.0, None, 83.5, 2, 29.0, None, 77.0, 3), reason=M_RNN),
            PrintedRow("DeepSP", (40.7, None, 85.3, None, 33.5, None, 83.2, None), reason=DEEP_SP),
            PrintedRow("HM-LSTM", (43.9, None, 87.8, 2, 36.1, None, 86.7, 3), "hmlstm", settings={**TRAINED, **MCG}),
        ), 1000, orders=(("HM-LSTM", "DeepVS"),),
    ),
    PrintedTable(
        "Niu et al.", "Table 4, region-phrase ranking", "coco-region", REGIONS,
        (
            PrintedRow("Random", (0.02, 0.12, 0.24, 3133), chance=True),
            PrintedRow("DeepVS", (7.2, 18.1, 26.8, 64), "dvsa", settings={**ALIGNED, **ANNOTATED}),
            PrintedRow("m-RNN-vgg", (8.1, 20.6, 28.2, 56), reason=NO_PHRASES),
            PrintedRow("HM-LSTM", (10.8, 22.6, 30.7, 42), "hmlstm", settings={**TRAINED, **ANNOTATED}),
        ),
        orders=(("HM-LSTM", "DeepVS"),),
    ),
)  # fmt: skip
