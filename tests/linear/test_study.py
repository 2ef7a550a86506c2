"""Folds and draws: which pairs a number of a table rests on."""

import numpy as np
import pytest
from small_settings import TRANSFER

from pipeline.models.linear.sets import assign_folds
from pipeline.models.linear.study import StudyCell, draw_folds
from pipeline.papers.gong import GongSetting, tables

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
        cells = (make_cell(target_folds=size, auxiliary_folds=2) for size in (1, 2, 3))
        weak = {draw_folds(cell, draw, 5, overlap=True).auxiliary for cell in cells}
        assert weak == {((draw + 3) % 5, (draw + 4) % 5)}  # whatever the target set


SETTING = GongSetting(
    encoders=("net",), standard=("standard",), sizes=(1, 3, 5), transfer_sizes=(1, 2, 3), weak_sizes=(1, 2, 3, 4),
    weak_folds=2, terms=(10, 20, 30), draws=5, further_draws=2, fold_images=1000,
    weak_fold_images=1000, betas=(0.3, 1), weights=(0, 0.3, 1),
    lengths={"title": 2.9, "tags": 5.1, "description": 23.4, "all": 31.0}, text="tf-idf",
)  # fmt: skip


def test_rows_of_the_papers_names_have_its_settings_whatever_the_configuration_says() -> None:
    """t = 4 and c = 96 (section 3), c1 = 128, 3,000 random features and k = 50 (sections 4.1 and 4.2)."""
    printed = [row for table in tables(SETTING) for row in table.rows if row.printed]
    assert len(printed) == 2 + 3 + 4 + 5 + 11 + 5 + 5
    for cell in (cell for row in printed for cell in row.cells):
        if cell.model.startswith("wsabie"):
            assert cell.settings["max_norm"] == [50, 100, 150, 200] and cell.settings["epochs"] == 300
            assert max(cell.settings["learning_rate"]) == 1 and len(cell.settings["learning_rate"]) >= 5
        assert cell.fit == {"dimensions": [96], "eigenvalue_power": [4], "eigenvalues": ["gong"]}
        if cell.training not in ("target", "auxiliary"):
            kept = TRANSFER.changed(cell.transfer)
            assert (kept.auxiliary_power, kept.auxiliary_eigenvalues) == ((4,), ("gong",))
            assert (kept.features, kept.neighbours, kept.second_beta, kept.weight) == (3000, 50, (0,), (1,))
