"""Niu et al. 2017."""

from benchmarks.papers.printed.form import RANKING, PrintedRow, PrintedTable

R_CNN = {"encoders": "R-CNN (finetuned for detection), fc7", "regions": "19 detections and the whole image"}
RANKED = {"loss": "ranking", "negatives": "all"}
MAO = "a generator that ranks by the perplexity of a sentence, of which there is none here"
NIC = "a generator that ranks by the likelihood of a sentence, of which there is none here"
DEEP_SP = "a two-branch network that keeps neighbours together (Wang et al. 2016), of which there is none here"
DEEP_VS = {**RANKED, "sum": "words", **R_CNN}
HM_LSTM = {**RANKED, **R_CNN}

TABLES = (
    PrintedTable(
        "Niu et al.", "Table 1, Flickr8K", "flickr8k", RANKING,
        (
            PrintedRow("DeepVS", (16.5, None, 54.2, 7.6, 11.8, None, 44.7, 12.4), "dvsa", settings=DEEP_VS),
            PrintedRow("NIC", (20, None, 61, 6, 19, None, 64, 5), reason=NIC),
            PrintedRow("HM-LSTM", (27.7, None, 68.6, 5, 24.4, None, 68.1, 4), "hmlstm", settings=HM_LSTM),
        ),
        orders=(("HM-LSTM", "DeepVS"),),
    ),
    PrintedTable(
        "Niu et al.", "Table 2, Flickr30K", "flickr30k", RANKING,
        (
            PrintedRow("DeepVS", (22.2, None, 61.4, 4.8, 15.2, None, 50.5, 9.2), "dvsa", settings=DEEP_VS),
            PrintedRow("m-RNN-vgg", (35.4, None, 73.7, 3, 22.8, None, 63.1, 5), reason=MAO),
            PrintedRow("DeepSP", (35.7, None, 74.4, None, 25.1, None, 66.5, None), reason=DEEP_SP),
            PrintedRow("HM-LSTM", (38.1, None, 76.5, 3, 27.7, None, 68.8, 4), "hmlstm", settings=HM_LSTM),
        ),
    ),
    PrintedTable(
        "Niu et al.", "Table 3, MS-COCO, 1,000 test images", "coco", RANKING,
        (
            PrintedRow("DeepVS", (36.4, None, 80.9, 3, 28.1, None, 76.1, 3), "dvsa", settings=DEEP_VS),
            PrintedRow("m-RNN-vgg", (41.0, None, 83.5, 2, 29.0, None, 77.0, 3), reason=MAO),
            PrintedRow("DeepSP", (40.7, None, 85.3, None, 33.5, None, 83.2, None), reason=DEEP_SP),
            PrintedRow("HM-LSTM", (43.9, None, 87.8, 2, 36.1, None, 86.7, 3), "hmlstm", settings=HM_LSTM),
        ), 1000,
    ),
)  # fmt: skip
