"""What the report finds wrong in features, on rows whose faults are known."""

import numpy as np
import pytest

from pipeline.report.tables import measure_rows


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)


def test_lengths_are_those_of_the_rows(rows: np.ndarray) -> None:
    health, lengths = measure_rows(rows), np.sqrt((rows.astype(float) ** 2).sum(axis=1))
    assert (health.sampled, health.zero, health.equal, health.constant) == (20, 0, 0, 0)
    assert (health.length, health.spread) == (pytest.approx(lengths.mean()), pytest.approx(lengths.std()))


def test_zero_and_equal_rows_and_constant_columns_are_counted(rows: np.ndarray) -> None:
    rows[:, 3] = 2
    rows[5], rows[9] = rows[4], rows[4]
    health = measure_rows(rows)
    assert (health.zero, health.equal, health.constant) == (0, 2, 1)
    rows[0] = 0
    health = measure_rows(rows)
    assert (health.zero, health.equal, health.constant) == (1, 2, 0)


def test_one_row_has_no_constant_columns(rows: np.ndarray) -> None:
    assert measure_rows(rows[:1]).constant == 0
