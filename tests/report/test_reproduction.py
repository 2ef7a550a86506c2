"""Tests of published tables with rows of synthetic models below the published rows."""

import numpy as np
import pytest

from pipeline.config.registry import GENERATORS, MODELS
from pipeline.config.results import ReproduceSettings
from pipeline.errors import InputError
from pipeline.metrics.paired import Columns, Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.papers import tables
from pipeline.papers.published import AUTHORS, every_table
from pipeline.papers.reproduction import Reproduction, System, group_seeds

BOOTSTRAP = Bootstrap(200, 0)
KARPATHY = "Karpathy and Fei-Fei: Table 5, Flickr8K"
NIU = "Niu et al.: Table 1, Flickr8K"
VALUES = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}


def evaluation(model: str, **about: object) -> dict:
    base = {"model": model, "split": "test", "protocol": "all-sentences", "n_images": 1000, "n_sentences": 5000}
    return {**base, "image_to_sentence": VALUES, "sentence_to_image": VALUES, **about}


def system(label: str, model: str, *names: str) -> System:
    return System(label, names or (label,), model, [0])


def alike(name: str, columns: Columns) -> Draw:
    return Draw(np.arange(5), lambda weights: 0.0)


def fill(evaluations, systems, reproduced=None, collection: str | None = "flickr8k", measure=alike) -> dict[str, dict]:
    settings = ReproduceSettings(
        collection=collection, others=[], papers=list(AUTHORS), trees=False, reproduced=reproduced or {}
    )
    run = Reproduction(evaluations, systems, settings, measure, BOOTSTRAP, "all-sentences")
    return {f"{table['paper']}: {table['title']}": table for table in run.make_tables()}


def line_of(table: dict, beginning: str) -> str:
    (line,) = (line for line in tables.render(table).splitlines() if line.startswith(beginning))
    return line


def test_models_with_published_settings_are_reproduced_and_others_improved() -> None:
    run = [evaluation("paper"), evaluation("mine", image_to_sentence={**VALUES, "recall@1": 25.0})]
    table = fill(run, [system("paper", "dvsa"), system("mine", "dvsa")], {"paper": "dvsa"})[KARPATHY]
    assert line_of(table, "| BRNN |") == (
        "| BRNN | 16.5 / 40.6 / 54.2 / 7.6 | 11.8 / 32.1 / 44.7 / 12.4 "
        "| 20.0 / 41.6 / 55.0 / 7.0 | 20.0 / 41.6 / 55.0 / 7.0 | `paper`: 1 "
        "| 25.0 / 41.6 / 55.0 / 7.0 | 20.0 / 41.6 / 55.0 / 7.0 | `mine`: 1 |"
    )
    assert line_of(table, "| DeViSE |").endswith(" |  |  |  |  |  |  |")


def test_unknown_published_system_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"reproduced.mine: no table has the system brnn\. Choose one of .*dvsa"):
        fill([], [], {"mine": "brnn"})


def test_seeds_are_one_system_with_mean_and_deviation() -> None:
    found = group_seeds([("brnn-seed0", "dvsa", 0), ("other", "dvsa", 0), ("brnn-seed11", "dvsa", 11)])
    assert [(one.label, one.names, one.seeds) for one in found] == [
        ("brnn", ["brnn-seed0", "brnn-seed11"], [0, 11]), ("other", ["other"], [0]),
    ]  # fmt: skip
    values = {**VALUES, "recall@1": 23.0}
    evaluations = [evaluation("brnn-seed0"), evaluation("brnn-seed11", image_to_sentence=values)]
    line = line_of(fill(evaluations, found[:1])[KARPATHY], "| BRNN |")
    assert "| 21.5 ± 2.1 / 41.6 ± 0.0 / 55.0 ± 0.0 / 7.0 ± 0.0 |" in line and line.endswith("| `brnn`: 2 |")


def test_scores_of_generated_captions_are_shown_with_the_published_ones() -> None:
    metrics = {f"bleu_{n}": 60.0 - 10 * n for n in range(1, 5)} | {"meteor": None, "rouge_l": 40.0, "cider": 30.0}
    title = "Karpathy and Fei-Fei: Table 2, Flickr8K, and section 4.2"
    table = fill([evaluation("relu", images=metrics), evaluation("dvsa")], [system("relu", "mrnn")])[title]
    assert "| 50.0 / 40.0 / 30.0 / 20.0 / - / 30.0 | `relu`: 1 |" in line_of(table, "| Our model |")
    without = fill([evaluation("dvsa")], [system("dvsa", "dvsa")])[title]
    assert without["left_out"] == "this run has not measured images"


def ranked(image_to_sentence: np.ndarray, sentence_to_image: np.ndarray, columns: Columns) -> Draw:
    """Make a draw from the ranks of images and of captions as queries. Each image has two captions."""
    ranks = {"image_to_sentence": image_to_sentence, "sentence_to_image": sentence_to_image}
    each = np.arange(len(image_to_sentence))
    return draw_of_ranks(ranks, {"image_to_sentence": each, "sentence_to_image": np.repeat(each, 2)}, columns)


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_difference_has_an_interval_with_three_trainings_of_both_systems(seeds: int) -> None:
    rng = np.random.default_rng(0)
    ranks = {
        f"{name}-seed{seed}": (rng.integers(1, worst, 50), rng.integers(1, worst, 100))
        for name, worst in (("hm", 6), ("dv", 30))
        for seed in range(seeds)
    }
    systems = group_seeds([(name, {"hm": "hmlstm", "dv": "dvsa"}[name[:2]], 0) for name in ranks])

    def measure(name: str, columns: Columns) -> Draw:
        return ranked(*ranks[name], columns)

    reproduced = {"hm": "hmlstm", "dv": "dvsa"}
    table = fill([evaluation(name) for name in ranks], systems, reproduced, measure=measure)[NIU]
    (found,) = (one for one in table["differences"] if one["below"] == "DeepVS")
    recalls = [(side, f"recall@{k}") for side in ("image_to_sentence", "sentence_to_image") for k in (1, 5, 10)]
    above, below = ([measure(name, recalls) for name in ranks if name.startswith(kind)] for kind in ("hm", "dv"))
    expected = compare_draws(above, below, BOOTSTRAP)
    assert found["published"] == [pytest.approx(27.7 + 68.6 + 24.4 + 68.1 - 16.5 - 54.2 - 11.8 - 44.7)]
    assert found["found"][0]["difference"] == expected["difference"]
    assert found["found"][0]["ci95"] == (expected["ci95"] if seeds == 3 else None)
    line = line_of(table, "| HM-LSTM minus DeepVS |")
    assert line.startswith(f"| HM-LSTM minus DeepVS | +61.6 | {expected['difference']:+.1f} |")
    assert (" to " in line) == (seeds == 3)


def test_a_difference_of_mean_ranks_keeps_the_directions_apart() -> None:
    (table,) = (table for table in every_table() if table.title.startswith("Tables 1 and 2"))
    assert table.compared == ((("sentence_to_image", "mean_rank"),), (("image_to_sentence", "mean_rank"),))


def test_a_table_of_another_collection_is_omitted_with_a_reason() -> None:
    run = [evaluation("dvsa")], [system("dvsa", "dvsa")]
    left_out = [table.get("left_out", "") for table in fill(*run, collection=None).values()]
    assert len(left_out) == len(every_table()) and all("it was measured" in reason for reason in left_out)
    reasons = [table.get("left_out", "") for table in fill(*run).values()]
    assert "it was measured on flickr30k, and these images are flickr8k" in reasons


def coco_evaluation(**about: object) -> dict:
    """Make an evaluation of 5,000 test images that also has the mean over five folds."""
    mean = {"recall@1": 40.0, "recall@5": 70.0, "recall@10": 81.0, "median_rank": 2.0, "mean_rank": 9.0}
    subset = {**mean, "recall@1": 39.0}
    first = {"n_images": 1000, "n_sentences": 5002, "image_to_sentence": subset, "sentence_to_image": subset}
    folds = {"folds": 5, "mean_of_folds": {"image_to_sentence": mean, "sentence_to_image": mean}, "each_fold": [first]}
    return evaluation("dvsa", n_images=5000, n_sentences=25010, **folds, **about)


def test_a_table_is_filled_with_results_for_a_gallery_of_its_size() -> None:
    found = fill(
        [coco_evaluation(), coco_evaluation(protocol="first-sentence")], [system("dvsa", "dvsa")], collection="coco"
    )
    thousand = found["Karpathy and Fei-Fei: Table 1, MSCOCO, 1,000 test images"]
    assert thousand["notes"] == ["Measured by all-sentences, mean of 5 folds."]
    assert "| 40.0 / 70.0 / 81.0 / 2.0 |" in line_of(thousand, "| BRNN |")
    whole = found["Karpathy and Fei-Fei: Table 1, MSCOCO, 5,000 test images"]
    assert "| 20.0 / 41.6 / 55.0 / 7.0 |" in line_of(whole, "| BRNN |") and whole["notes"] == []


def test_every_row_is_complete_and_has_a_model() -> None:
    registered = {spec.name for spec in (*MODELS, *GENERATORS)}
    for table in every_table():
        rows = {row.name: row for row in table.rows}
        assert len(rows) == len(table.rows)
        assert all(row.model in registered | {"chance"} for row in rows.values()), table.title
        assert all(len(row.numbers) == len(table.columns) for row in rows.values())
        assert {name for pair in table.differences for name in pair} <= set(rows)
