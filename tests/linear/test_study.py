"""Folds and draws: which pairs a number of a table rests on."""

import numpy as np
import pytest

from benchmarks.papers.gong import GongSetting, tables
from pipeline.models.linear.sets import assign_folds
from pipeline.models.linear.study import StudyCell, count_draws, draw_folds, pinned

SPLITS = np.array(["train"] * 10 + ["weak"] * 7 + ["dev"], dtype=object)


def make_cell(**values) -> StudyCell:
    return StudyCell(**{"model": "ncca", "training": "sae", "encoders": ("net",), "documents": "all", **values})


@pytest.mark.parametrize("order", ["listed", "shuffled"])
def test_every_split_is_divided_evenly(order: str) -> None:
    folds = assign_folds(SPLITS, 5, order, seed=0)
    assert np.bincount(folds[:10]).tolist() == [2] * 5
    assert sorted(np.bincount(folds[10:17], minlength=5)) == [1, 1, 1, 2, 2]


def test_listed_folds_go_by_order_and_shuffled_ones_by_seed() -> None:
    assert assign_folds(SPLITS, 5, "listed", 0)[:10].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    first, again, other = (assign_folds(SPLITS, 5, "shuffled", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_no_fold_is_both_target_and_auxiliary_where_they_overlap() -> None:
    for draw in range(5):
        folds = draw_folds(make_cell(target_folds=2), draw, 5, overlap=True)
        assert folds.target[0] == draw
        assert sorted(folds.target + folds.auxiliary) == [0, 1, 2, 3, 4]


def test_auxiliary_sets_of_their_own_splits_keep_all_folds() -> None:
    folds = draw_folds(make_cell(target_folds=2), 3, 5, overlap=False)
    assert folds.target == (3, 4) and sorted(folds.auxiliary) == [0, 1, 2, 3, 4]
    assert len(draw_folds(make_cell(target_folds=1, auxiliary_folds=3), 0, 5, overlap=True).auxiliary) == 3


def test_all_of_the_target_set_is_one_draw() -> None:
    assert count_draws(make_cell(target_folds=5, training="target", draws=5), 5) == 1
    assert count_draws(make_cell(target_folds=0, training="auxiliary", draws=5), 5) == 1
    assert count_draws(make_cell(target_folds=1, draws=3), 5) == 3


def test_rates_are_pinned_after_the_first_draw() -> None:
    cell = make_cell(model="wsabie-sgd", training="target", target_folds=1)
    later = pinned(cell, {"transfer": {"learning_rate": 0.1, "max_norm": 50, "epochs": 30}})
    assert later.settings == {"learning_rate": (0.1,), "max_norm": (50,)}
    assert pinned(cell, {"transfer": {}}) == cell


def test_the_tables_are_rectangular_and_name_real_trainings() -> None:
    setting = GongSetting(
        ("net",), ("standard",), (1, 3, 5), (1, 2, 3), (1, 2, 3, 4), (10, 20, 30), ("mild",), 5, 2, 1000, 1000, (0.3, 1)
    )
    made = tables(setting)
    assert [table.number for table in made] == ["1", "2", "3", "4", "5", "6", "noise"]
    for table in made:
        for row in table.rows:
            assert len(row.cells) == len(table.columns)
            assert len(row.printed) in (0, len(table.printed_columns))


def test_our_rows_can_come_to_joint_training_and_to_the_target_set_alone() -> None:
    setting = GongSetting(("net",), (), (1,), (1,), (1, 2, 3, 4), (10, 20, 30), ("mild",), 5, 2, 1000, 1000, (0.3, 1))
    ours = [row for table in tables(setting) for row in table.rows if "second CCA joint" in row.label]
    assert len(ours) == 4
    for cell in (cell for row in ours for cell in row.cells):
        assert cell.transfer["second_beta"] == (0, 0.3, 1) and 0 in cell.transfer["weight"]
