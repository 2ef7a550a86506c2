"""Tests of the folds and draws that decide the training pairs of a study, and of the settings of the rows that
reproduce Gong et al. 2014."""

from pathlib import Path

import numpy as np
import pytest
from small_settings import TRANSFER

from pipeline.config.loading import load
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.linear.sets import assign_folds
from pipeline.models.linear.study import StudyCell, draw_folds
from pipeline.papers.gong import FoldFacts, find_table, make_tables, measure_table

SPLITS = np.array(["train"] * 10 + ["weak"] * 7 + ["dev"], dtype=object)


def make_cell(**values) -> StudyCell:
    return StudyCell(**{"model": "ncca", "training": "sae", "encoders": ("net",), "documents": "all", **values})


@pytest.mark.parametrize("order", ["listed", "shuffled"])
def test_every_split_is_divided_evenly_into_folds(order: str) -> None:
    folds = assign_folds(SPLITS, 5, order, seed=0)
    assert np.bincount(folds[:10]).tolist() == [2] * 5
    assert sorted(np.bincount(folds[10:17], minlength=5)) == [1, 1, 1, 2, 2]


def test_listed_folds_follow_the_order_and_shuffled_folds_the_seed() -> None:
    assert assign_folds(SPLITS, 5, "listed", 0)[:10].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    first, again, other = (assign_folds(SPLITS, 5, "shuffled", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_no_fold_is_both_target_and_auxiliary_where_they_overlap() -> None:
    for draw in range(5):
        folds = draw_folds(make_cell(target_folds=2), draw, 5, overlap=True)
        assert folds.target[0] == draw
        assert sorted(folds.target + folds.auxiliary) == [0, 1, 2, 3, 4]
        cells = (make_cell(target_folds=size, auxiliary_folds=2) for size in (1, 2, 3))
        weak = {draw_folds(cell, draw, 5, overlap=True).auxiliary for cell in cells}
        # The auxiliary folds are the same for target sets of 1, 2 and 3 folds.
        assert weak == {((draw + 3) % 5, (draw + 4) % 5)}


CONFIG = load(Path(__file__).parents[2] / "config/papers/gong.yaml")
FACTS = FoldFacts(1000, 1000, {"title": 2.9, "tags": 5.1, "description": 23.4, "all": 31.0})


def test_reproduced_rows_have_the_settings_of_the_paper_whatever_the_configuration_says() -> None:
    """All cells of rows that reproduce published numbers have the settings of Gong et al. 2014: t = 4 and c = 96
    (section 3). Cells with auxiliary and target pairs also have 3,000 random features and k = 50 (sections 4.1 and
    4.2)."""
    reproduced = [row for table in make_tables(CONFIG, FACTS) for row in table.rows if row.published]
    assert len(reproduced) == 2 + 3 + 4 + 5 + 11 + 5 + 5
    for cell in (cell for row in reproduced for cell in row.reproduced):
        if cell.model.startswith("wsabie"):
            assert cell.settings["max_norm"] == [50, 100, 150, 200] and cell.settings["epochs"] == 300
            assert max(cell.settings["learning_rate"]) == 1 and len(cell.settings["learning_rate"]) >= 5
        assert cell.fit == {"dimensions": [96], "eigenvalue_power": [4], "eigenvalues": ["gong"]}
        if cell.training not in ("target", "auxiliary"):
            kept = TRANSFER.changed(cell.transfer)
            assert (kept.auxiliary_power, kept.auxiliary_eigenvalues) == ((4,), ("gong",))
            assert (kept.features, kept.neighbours, kept.second_beta, kept.weight) == (3000, 50, (0,), (1,))


def draws_of(folds: list[list[str]], ranks: np.ndarray) -> list[dict]:
    trials = {"trials": [], "chosen": {"image_ridge": 1, "text_ridge": 1, "transfer": {}}}
    recall = {"image_to_sentence": {"recall@10": 50.0}}
    return [{"folds": own, "ranks": one.tolist(), **trials, **recall} for own, one in zip(folds, ranks, strict=True)]


@pytest.mark.parametrize("weak", ["disjoint", "overlapping"])
def test_draws_that_share_weak_images_have_no_interval(weak: str) -> None:
    """The difference between the row SAE (linear) of Table 5 and the row without auxiliary images has no interval if
    the auxiliary sets of the three draws share a fold, and has an interval if the auxiliary sets are disjoint. The
    target sets of the draws have no image in common."""
    table = find_table(make_tables(CONFIG, FACTS), "Table 5")
    rng = np.random.default_rng(0)
    last = {"disjoint": 5, "overlapping": 3}[weak]
    target = draws_of([[f"target {draw}"] for draw in range(3)], rng.integers(1, 30, (3, 40)))
    folds = [[f"target {draw}", f"target {3 + draw % (last - 2)}"] for draw in range(3)]
    both = draws_of(folds, rng.integers(1, 30, (3, 40)))

    def measured(cell: StudyCell) -> list[dict]:
        return target if cell.training == "target" else both

    filled = measure_table(table, measured, Bootstrap(50, 0))
    (found,) = (one["found"] for one in filled["differences"] if one["above"] == "SAE (linear)")
    expected = [100 * np.mean(np.array([draw["ranks"] for draw in draws]) <= 10) for draws in (both, target)]
    assert found[0]["difference"] == pytest.approx(expected[0] - expected[1])
    assert (found[0]["ci95"] is None) == (weak == "overlapping")
