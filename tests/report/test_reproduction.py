"""Printed tables beside made-up rows."""

import pytest

from pipeline.config.root import Reproduce
from pipeline.models import REGISTRY
from pipeline.report.printed import TABLES
from pipeline.report.reproduction import render


def evaluation(model: str, **about: object) -> dict:
    values = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}
    base = {"model": model, "split": "test", "protocol": "all-sentences", "n_images": 1000, "n_sentences": 5000}
    return {**base, "image_to_sentence": values, "sentence_to_image": values, **about}


def test_ours_stands_beside_the_printed_number_with_the_difference() -> None:
    text = render([evaluation("dvsa")], "flickr8k", "mine")
    (row,) = [line for line in text.splitlines() if line.startswith("| BRNN | `dvsa` | 16.5")]
    assert row.startswith(r"| BRNN | `dvsa` | 16.5 \| **20.0** \| +3.5 | 40.6 \| **41.6** \| +1.0 |")
    assert r"| - \| **41.6** |" in text  # Niu et al. print no R@5
    assert "Without a row of ours: devise, sdtrnn, lstm, defrag (" in text


def test_other_splits_and_protocols_are_not_ours() -> None:
    others = [evaluation("dvsa", split="dev"), evaluation("dvsa", protocol="first-sentence")]
    assert "**" not in render(others, "flickr8k", "mine").replace("**ours**", "")


def test_a_table_of_another_collection_is_left_out_with_its_reason() -> None:
    text = render([evaluation("dvsa")], None, "mine")
    assert text.count("Left out: it was measured on") == len(TABLES)
    assert "measured on flickr30k, and these images are flickr8k" in render([], "flickr8k", "mine")


def of_coco(**about: object) -> dict:
    """5,000 test images, and the mean over five folds of them."""
    mean = {"recall@1": 40.0, "recall@5": 70.0, "recall@10": 81.0, "median_rank": 2.0, "mean_rank": 9.0}
    folds = {"folds": 5, "mean_of_folds": {"image_to_sentence": mean, "sentence_to_image": mean}}
    return evaluation("dvsa", n_images=5000, n_sentences=25010, **folds, **about)


def tables_of(text: str) -> dict[str, str]:
    return {part.splitlines()[0]: part for part in text.split("## ")[1:]}


def test_a_table_is_laid_beside_the_gallery_of_its_size() -> None:
    tables = tables_of(render([of_coco(), of_coco(protocol="first-sentence")], "coco", "mine"))
    thousand = tables["Karpathy and Fei-Fei: Table 1, MSCOCO, 1,000 test images"]
    assert "Ours: all-sentences, mean of 5 folds." in thousand
    assert r"| 38.4 \| **40.0** \| +1.6 | 69.9 \| **70.0** \| +0.1 |" in thousand
    assert r"| 36.4 \| **40.0** \| +3.6 |" in tables["Niu et al.: Table 3, MS-COCO, 1,000 test images"]
    whole = tables["Karpathy and Fei-Fei: Table 1, MSCOCO, 5,000 test images"]
    assert r"| 16.5 \| **20.0** \| +3.5 |" in whole and "folds" not in whole


def test_a_gallery_of_another_size_is_left_out_with_its_reason() -> None:
    tables = tables_of(render([evaluation("dvsa", n_images=5000)], "coco", "mine"))
    reason = "measured with 1,000 test images at once, and ours are 5,000; set evaluate.folds"
    assert reason in tables["Niu et al.: Table 3, MS-COCO, 1,000 test images"]
    few_missing = evaluation("dvsa", n_images=4998)  # duplicates are left out by ingest
    assert (
        "**20.0**"
        in tables_of(render([few_missing], "coco", ""))["Karpathy and Fei-Fei: Table 1, MSCOCO, 5,000 test images"]
    )


def test_every_row_named_here_is_registered_and_every_row_is_complete() -> None:
    for table in TABLES:
        assert all(model is None or model in REGISTRY for _, model, _ in table.rows)
        assert all(len(numbers) == len(table.columns) for _, _, numbers in table.rows)


@pytest.mark.parametrize("collection", sorted({table.collection for table in TABLES}))
def test_every_collection_can_be_named_in_the_configuration(collection: str) -> None:
    assert Reproduce(collection=collection, gong=False).collection == collection
