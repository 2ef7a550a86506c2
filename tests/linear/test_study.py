"""Folds and draws: which pairs a number of a table rests on."""

from pathlib import Path

import numpy as np
import pytest
from made_up_settings import TRANSFER

from benchmarks.papers.gong import FIELDS, OUR_SAE, GongSetting, tables
from pipeline.config import load
from pipeline.models.linear.sets import assign_folds
from pipeline.models.linear.study import StudyCell, count_draws, draw_folds, nearest_images, pinned
from pipeline.run.layout import Layout
from stages.models import accumulate

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


SETTING = GongSetting(
    encoders=("net",), standard=("standard",), sizes=(1, 3, 5), transfer_sizes=(1, 2, 3), weak_sizes=(1, 2, 3, 4),
    terms=(10, 20, 30), noise=("mild",), draws=5, further_draws=2, fold_images=1000, weak_fold_images=1000,
    betas=(0.3, 1), weights=(0, 0.3, 1), lengths=dict.fromkeys(FIELDS, 2.5), text="tf-idf",
)  # fmt: skip


def test_the_tables_are_rectangular_and_order_rows_of_their_own() -> None:
    made = tables(SETTING)
    assert [table.number for table in made] == ["1", "2", "3", "4", "5", "6", "4.3", "of our own"]
    for table in made:
        for row in table.rows:
            assert len(row.cells) == len(table.columns)
            assert len(row.printed) in (0, len(table.printed_columns))
        assert len({row.label for row in table.rows}) == len(table.rows)
        assert all(table.row(label) for pair in table.orders for label in pair)


def test_every_cell_finds_its_encoders_in_the_sums_that_it_reads() -> None:
    """Of Gong et al.'s configuration, whose standard features are encoders of the study alone."""
    config = load(Path(__file__).parents[2] / "config/papers/gong.yaml")
    study, names = config.study, [one.name for one in config.encoders]
    setting = GongSetting(
        encoders=tuple(names), standard=tuple(one.name for one in study.encoders), fold_images=1000,
        weak_fold_images=1000, betas=config.transfer.beta, lengths=dict.fromkeys(FIELDS, 1.0), text="",
        **study.model_dump(
            include={"sizes", "transfer_sizes", "weak_sizes", "terms", "noise", "draws", "further_draws", "weights"}
        ),
    )  # fmt: skip
    assert setting.standard
    for cell in (cell for table in tables(setting) for row in table.rows for cell in row.cells):
        needed = ["study/target"] + [f"study/auxiliary/{cell.documents}"] * (cell.training != "target")
        for pairs in needed:
            found = accumulate.STAGE.reads(config, Layout(Path("run"), Path("data")), pairs)
            assert {f"features/{name}" for name in cell.encoders} <= found.keys(), (cell, pairs)


def test_rows_of_the_papers_names_have_its_settings_whatever_the_configuration_says() -> None:
    """t = 4 and c = 96 (section 3), c1 = 128, 3,000 random features and k = 50 (sections 4.1 and 4.2)."""
    printed = [row for table in tables(SETTING) for row in table.rows if row.printed]
    assert len(printed) == 2 + 3 + 4 + 5 + 9 + 5 + 5
    for cell in (cell for row in printed for cell in row.cells):
        assert cell.fit == {"dimensions": (96,), "eigenvalue_power": (4,), "eigenvalues": ("gong",)}
        if cell.training not in ("target", "auxiliary"):
            kept = TRANSFER.changed(cell.transfer)
            assert (kept.auxiliary_power, kept.auxiliary_eigenvalues) == ((4,), ("gong",))
            assert (kept.features, kept.neighbours, kept.second_beta, kept.weight) == (3000, 50, (0,), (1,))


def test_our_row_can_come_to_joint_training_and_to_the_target_set_alone() -> None:
    ours = [row for table in tables(SETTING) for row in table.rows if row.label == OUR_SAE]
    assert len(ours) == 2
    for cell in (cell for row in ours for cell in row.cells):
        assert cell.transfer["second_beta"] == (0, 0.3, 1) and {0, 1} <= set(cell.transfer["weight"])
        assert cell.fit == {}


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_nearest_images_are_those_of_a_plain_sort_whatever_the_blocks(size: int) -> None:
    rng = np.random.default_rng(0)
    queries, gallery, ids = rng.standard_normal((3, 5)), rng.standard_normal((40, 5)), rng.permutation(100)[:40]
    blocks = [(ids[i : i + size], gallery[i : i + size].astype(np.float32)) for i in range(0, 40, size)]
    for query, found in zip(queries, nearest_images(queries, blocks, 4), strict=True):
        assert found.tolist() == ids[np.argsort(np.linalg.norm(gallery - query, axis=1))[:4]].tolist()


def test_a_small_gallery_has_fewer() -> None:
    assert nearest_images(np.ones((2, 3)), [(np.array([5, 9]), np.eye(3)[:2])], 4).shape == (2, 2)
