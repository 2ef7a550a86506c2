"""Tests of published tables with rows of synthetic models below the published rows."""

import numpy as np
import pytest

from pipeline.config.registry import GENERATORS, MODELS
from pipeline.metrics.paired import Columns, Draw, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.papers import page
from pipeline.papers.printed import AUTHORS, every_table, printed_tables
from pipeline.papers.reproduction import Reproduction, Standing, System, systems, verdict

BOOTSTRAP = Bootstrap(200, 0)
KARPATHY, NIU = "Karpathy and Fei-Fei: Table 5, Flickr8K", "Niu et al.: Table 1, Flickr8K"
VALUES = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}
PRINTED = {row.name: row.settings for table in printed_tables()["karpathy"] for row in table.rows}


def evaluation(model: str, **about: object) -> dict:
    base = {"model": model, "split": "test", "protocol": "all-sentences", "n_images": 1000, "n_sentences": 5000}
    return {**base, "image_to_sentence": VALUES, "sentence_to_image": VALUES, **about}


def system(name: str, model: str, *names: str, **settings: object) -> System:
    return System(name, names or (name,), model, settings)


def alike(name: str, columns: Columns) -> Draw:
    return Draw(np.arange(5), lambda weights: 0.0)


def tables(evaluations, ours, collection: str | None = "flickr8k", draws=None, others=()) -> dict[str, str]:
    run = Reproduction(evaluations, ours, collection, others, draws or alike, BOOTSTRAP, "all-sentences")
    return {f"{table['paper']}: {table['title']}": page.render(table) for table in run.tables(AUTHORS)}


def lines_of(text: str, beginning: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(beginning)]


def test_the_papers_own_settings_give_a_difference() -> None:
    text = tables([evaluation("mine")], [system("mine", "dvsa", **PRINTED["BRNN"])])[KARPATHY]
    printed, ours = text.splitlines()[text.splitlines().index(lines_of(text, "| BRNN |")[0]) :][:2]
    assert printed == "| BRNN |  | 16.5 | 40.6 | 54.2 | 7.6 | 11.8 | 32.1 | 44.7 | 12.4 |"
    assert ours.startswith("|  | `mine` | **20.0** (+3.5) | **41.6** (+1.0) | **55.0** (+0.8) | **7.0** (-0.6) |")
    assert "no difference" not in lines_of(text, "- `mine` beside BRNN")[0]
    for row in ("DepTree edges", "DeViSE"):
        assert f"- {row}: none of ours, " in text


@pytest.mark.parametrize("changed", ["margin", "encoders"])
def test_one_setting_that_differs_is_told_in_place_of_a_difference(changed: str) -> None:
    ours = {**PRINTED["BRNN"], changed: "another"}
    text = tables([evaluation("mine")], [system("mine", "dvsa", **ours)])[KARPATHY]
    (line,) = lines_of(text, "|  | `mine` |")
    assert line.startswith("|  | `mine` | **20.0** | **41.6** | **55.0** |")
    (note,) = lines_of(text, "- `mine` beside BRNN")
    theirs = PRINTED["BRNN"][changed]
    assert f"{changed} another (printed: {f'{theirs:g}' if isinstance(theirs, float) else theirs})" in note


def test_seeds_are_one_system_with_mean_and_deviation() -> None:
    described = [(f"brnn-seed{seed}", "dvsa", {**PRINTED["BRNN"], "seed": seed}) for seed in (0, 11)]
    described.insert(1, ("other", "dvsa", {"seed": 0}))
    found = systems(described)
    assert [(one.label, list(one.names)) for one in found] == [
        ("brnn, 2 seeds", ["brnn-seed0", "brnn-seed11"]), ("other", ["other"]),
    ]  # fmt: skip
    values = {**VALUES, "recall@1": 23.0}
    evaluations = [evaluation("brnn-seed0"), evaluation("brnn-seed11", image_to_sentence=values)]
    (line,) = lines_of(tables(evaluations, found[:1])[KARPATHY], "|  | `brnn, 2 seeds` |")
    assert line.startswith("|  | `brnn, 2 seeds` | **21.5** ± 2.1 (+5.0) | **41.6** ± 0.0 (+1.0) |")


def test_descriptions_stand_below_the_printed_ones() -> None:
    metrics = {f"bleu_{n}": 60.0 - 10 * n for n in range(1, 5)} | {"meteor": None, "rouge_l": 40.0, "cider": 30.0}
    ours = [system("mrnn", "mrnn", cell="lstm", encoders="mobilenet_v2 average")]
    found = tables([evaluation("mrnn", images=metrics), evaluation("dvsa")], [*ours, system("dvsa", "dvsa")])
    title = "Karpathy and Fei-Fei: Table 2, Flickr8K, and section 4.2"
    text = found[title]
    assert "|  | `mrnn` | **50.0** | **40.0** | **30.0** | **20.0** | - | **30.0** |" in text
    assert "cell lstm (printed: relu)" in text
    without = tables([evaluation("dvsa")], [system("dvsa", "dvsa")])[title]
    assert "| Our model |  | 57.9 | 38.3 |" in without and "this run has not measured descriptions" in without


def ranked(image_to_sentence: np.ndarray, sentence_to_image: np.ndarray, columns: Columns) -> Draw:
    """Ranks of images with two sentences each."""
    ranks = {"image_to_sentence": image_to_sentence, "sentence_to_image": sentence_to_image}
    each = np.arange(len(image_to_sentence))
    return draw_of_ranks(ranks, {"image_to_sentence": each, "sentence_to_image": np.repeat(each, 2)}, columns)


def test_orders_have_paired_intervals() -> None:
    rng = np.random.default_rng(0)
    good = {seed: (rng.integers(1, 4, 50), rng.integers(1, 4, 100)) for seed in "ab"}
    bad = rng.integers(8, 40, 50), rng.integers(8, 40, 100)

    def draws(name: str, columns: Columns) -> Draw:
        return ranked(*(good[name[-1]] if name.startswith("hm") else bad), columns)

    ours = [system("dvsa", "dvsa"), system("hm, 2 seeds", "hmlstm", "hm-a", "hm-b")]
    evaluations = [evaluation(name) for name in ("dvsa", "hm-a", "hm-b")]
    (line,) = lines_of(tables(evaluations, ours, draws=draws)[NIU], "| HM-LSTM above DeepVS |")
    assert "`hm, 2 seeds` - `dvsa`" in line and line.endswith(": holds |")
    ours = [system("hmlstm", "hmlstm"), system("dvsa", "dvsa")]
    trained = {"sentence_to_image": {**VALUES, "recall@10": 85.0}}  # HM-LSTM's is 188.8 of four recalls
    evaluations = [evaluation("hmlstm", **trained), evaluation("dvsa")]

    def worse(name: str, columns: Columns) -> Draw:
        return ranked(*(bad if name == "hmlstm" else good["a"]), columns)

    assert lines_of(tables(evaluations, ours, draws=worse)[NIU], "| HM-LSTM above DeepVS |")[0].endswith(": no |")
    text = tables(evaluations, ours, draws=lambda name, columns: ranked(*bad, columns))[NIU]
    assert lines_of(text, "| HM-LSTM above DeepVS |")[0].endswith("| +0.0 (0.0 to 0.0), printed +61.6: open |")


RECALL, RANK = "recall@10", "mean_rank"


@pytest.mark.parametrize(
    ("column", "printed", "reached", "own", "interval", "expected"),
    [
        (RECALL, 50.0, 45.0, 60.0, (1.0, 9.0), "holds"),
        (RECALL, None, 45.0, 60.0, (1.0, 9.0), "holds"),
        (RECALL, 50.0, 44.0, 44.0, (1.0, 9.0), "not tested: base is 6.0 short of its print (88%)"),
        (RECALL, 50.0, 48.0, 80.0, (1.0, 9.0), "not tested: base is at 60% of ours"),
        (RECALL, 50.0, 10.0, 80.0, (-1.0, 9.0), "open"),
        (RECALL, 50.0, 10.0, 80.0, (-9.0, -1.0), "no"),
        (RANK, 18.0, 20.0, 15.0, (-9.0, -1.0), "holds"),
        (RANK, 18.0, 24.0, 24.0, (-9.0, -1.0), "not tested: base is 6.0 short of its print (75%)"),
        (RANK, 18.0, 13.0, 5.2, (-9.0, -1.0), "not tested: base is at 40% of ours"),
        (RANK, 18.0, 20.0, 15.0, (1.0, 9.0), "no"),
    ],
)
def test_an_order_is_tested_against_a_baseline_that_was_trained_well_enough(
    column: str, printed: float | None, reached: float, own: float, interval: tuple, expected: str
) -> None:
    base = Standing("base", reached, printed and (reached, printed), {"base": reached, "ours": own})
    fewer = column == "mean_rank"
    assert verdict(interval, Standing(), base, fewer) == expected
    contrary = verdict((-interval[1], -interval[0]), base, Standing(), fewer)
    assert contrary == {"holds": "no", "no": "holds"}.get(expected, expected), "the one that comes out second"


def test_a_mean_of_words_is_laid_beside_the_best_mean_of_words() -> None:
    """DeViSE as printed (150 of the four recalls, above its print) beside a `bow` of this run with twice as much."""
    values = {"dev": VALUES, "bow": {**VALUES, "recall@1": 70.0, "recall@5": 90.0, "recall@10": 95.0}}
    sides = {name: dict.fromkeys(("image_to_sentence", "sentence_to_image"), value) for name, value in values.items()}
    evaluations = [evaluation("hmlstm"), *(evaluation(name, **sides[name]) for name in values)]
    ours = [system("hmlstm", "hmlstm"), system("dev", "bow", loss="ranking"), system("bow", "bow")]
    text = tables(evaluations, ours, draws=lambda name, _: Draw(np.arange(5), lambda weights: float(name == "hmlstm")))
    (line,) = lines_of(text[NIU], "| HM-LSTM above DeViSE |")
    assert line.endswith(": not tested: `dev` is at 46% of `bow` |")


def test_a_table_of_another_collection_is_left_out_with_its_reason() -> None:
    ours = [system("dvsa", "dvsa")]
    left_out = [
        part for part in tables([evaluation("dvsa")], ours, None).values() if "Left out: it was measured" in part
    ]
    assert len(left_out) == len(every_table())
    assert any("measured on flickr30k, and these images are flickr8k" in part for part in tables([], []).values())


def of_coco(**about: object) -> dict:
    """5,000 test images, and the mean over five folds of them."""
    mean = {"recall@1": 40.0, "recall@5": 70.0, "recall@10": 81.0, "median_rank": 2.0, "mean_rank": 9.0}
    subset = {**mean, "recall@1": 39.0}
    first = {"n_images": 1000, "n_sentences": 5002, "image_to_sentence": subset, "sentence_to_image": subset}
    folds = {"folds": 5, "mean_of_folds": {"image_to_sentence": mean, "sentence_to_image": mean}, "each_fold": [first]}
    return evaluation("dvsa", n_images=5000, n_sentences=25010, **folds, **about)


def test_a_table_is_laid_beside_the_gallery_of_its_size() -> None:
    ours = [system("dvsa", "dvsa", **PRINTED["BRNN"])]
    found = tables([of_coco(), of_coco(protocol="first-sentence")], ours, "coco")
    thousand = found["Karpathy and Fei-Fei: Table 1, MSCOCO, 1,000 test images"]
    assert "Ours: all-sentences, mean of 5 folds." in thousand
    assert "|  | `dvsa`, mean of 5 folds | **40.0** (+1.6) | **70.0** (+0.1) |" in thousand
    assert "`dvsa`, the first of 5 folds" not in thousand
    whole = found["Karpathy and Fei-Fei: Table 1, MSCOCO, 5,000 test images"]
    assert "|  | `dvsa` | **20.0** (+3.5) |" in whole and "folds" not in whole


def test_every_row_is_complete_and_has_a_model() -> None:
    registered = {spec.name for spec in (*MODELS, *GENERATORS)}
    for table in every_table():
        rows = {row.name: row for row in table.rows}
        assert len(rows) == len(table.rows)
        assert all(row.model in registered | {"chance"} for row in rows.values()), table.title
        assert all(len(row.numbers) == len(table.columns) for row in rows.values())
        assert {name for order in table.orders for name in order} <= set(rows)
