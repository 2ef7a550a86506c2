"""Tests of the report's tables against values worked out by hand."""

import numpy as np
import pytest

from pipeline.errors import IntegrityError
from pipeline.metrics.summary import compare_briefly, markdown
from pipeline.report.tables import best_model, compare_models, describe_models, measure_rows


def evaluation(model: str, split: str, recall: float, protocol: str = "all-sentences") -> dict:
    values = {"recall@1": recall, "recall@5": 40.0, "recall@10": 60.0, "median_rank": 100 - recall, "mean_rank": 9.0}
    values |= {f"{name}_ci95": [value - 1, value + 1] for name, value in list(values.items())}
    about = {"model": model, "split": split, "protocol": protocol, "n_images": 100, "n_sentences": 500}
    return {**about, "image_to_sentence": values, "sentence_to_image": values, "chance": {"image_to_sentence": {}}}


EVALUATIONS = [evaluation(*about) for about in (("a", "test", 20), ("a", "dev", 1), ("b", "test", 10), ("b", "dev", 2))]


def test_rows_are_compared_within_a_split_and_protocol() -> None:
    test, dev = compare_models(EVALUATIONS)
    assert (test.split, dev.split) == ("test", "dev")
    a, b = (test.cells[model]["image_to_sentence"] for model in ("a", "b"))
    assert (a["recall@1"].value, a["recall@1"].interval, a["recall@1"].best) == (20, (19, 21), True)
    assert not b["recall@1"].best and not b["median_rank"].best and a["median_rank"].best
    assert a["recall@5"].best and b["recall@5"].best
    assert test.chance == {"image_to_sentence": {}}


def test_seeds_of_a_model_are_one_row_with_mean_and_deviation() -> None:
    trained = [evaluation("a-seed0", "test", 20), evaluation("a-seed7", "test", 24), evaluation("b", "test", 23)]
    (test,) = compare_models(trained)
    assert list(test.cells) == ["a", "b"] and test.cells_of("a-seed7") is test.cells["a"]
    mean, single = (test.cells[model]["sentence_to_image"]["recall@1"] for model in ("a", "b"))
    assert (mean.value, mean.deviation, mean.interval) == (22, pytest.approx(8**0.5), None)
    assert (single.value, single.deviation, single.interval, single.best) == (23, None, (22, 24), True)
    lines = [line for line in markdown(trained).splitlines() if "photo to caption" in line]
    assert lines[0].startswith("| a, 2 seeds | photo to caption | 22.0 ± 2.8 | 40.0 ± 0.0 | 60.0 ± 0.0 |")
    assert lines[1].startswith("| b | photo to caption | 23.0 [22.0, 24.0] |")
    _, first, second = compare_briefly(trained)
    assert first.startswith("  b  photo to caption 23.0 / 40.0 / 60.0")
    assert second.startswith("  a  photo to caption 22.0 ± 2.8 / 40.0 ± 0.0 / 60.0 ± 0.0")


def test_the_best_model_is_chosen_on_dev() -> None:
    assert best_model(EVALUATIONS, ["a", "b"]) == "b"
    assert best_model([e for e in EVALUATIONS if e["split"] == "test"], ["a", "b"]) == "a"
    assert best_model(EVALUATIONS, ["a"]) == "a"
    with pytest.raises(IntegrityError, match="no evaluation of c"):
        best_model(EVALUATIONS, ["c"])


def test_models_without_a_choice_are_omitted() -> None:
    log = {
        "chosen": {"image_ridge": 0.1, "dimensions": 96},
        "train_correlations": [0.8, 0.6],
        "dev_correlations": [0.5, 0.1],
    }
    recorded = {"registered": "ncca", "named": {"fit.eigenvalue_power": [4]}, "training_log": log}
    (note,) = describe_models({"ours": recorded, "other": {}}, {"ncca": "Normalized CCA."})
    assert (note["name"], note["chosen"]) == ("ours", "image ridge 0.1, dimensions 96")
    assert (note["registered"], note["about"]) == ("ncca, fit.eigenvalue power [4]", "Normalized CCA.")
    assert (note["train_correlation"], note["dev_correlation"]) == (pytest.approx(0.7), pytest.approx(0.3))


def test_faulty_rows_of_features_are_counted() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    health = measure_rows(rows)
    lengths = np.sqrt((rows.astype(float) ** 2).sum(axis=1))
    assert [health[fault] for fault in ("sampled", "zero", "equal", "constant")] == [20, 0, 0, 0]
    assert (health["length"], health["spread"]) == (pytest.approx(lengths.mean()), pytest.approx(lengths.std()))
    rows[:, 3] = 2
    rows[[5, 9]] = rows[4]
    rows[0] = 0
    health = measure_rows(rows)
    assert [health[fault] for fault in ("zero", "equal", "constant")] == [1, 2, 0]
    assert measure_rows(rows[1:])["constant"] == 1
    assert measure_rows(rows[:1])["constant"] == 0
