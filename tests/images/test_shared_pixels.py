"""Pixels by shared memory: the same as by pickles, whatever happens to a process."""

import os
import signal

import numpy as np
import pytest

from pipeline.images.preprocess import shared_map
from pipeline.workers import Failure, ahead, isolated_map

SHAPE = (3, 4, 3)


def paint(number: int) -> np.ndarray:
    if number % 7 == 3:
        raise ValueError(f"no {number}")
    return np.random.default_rng(number).integers(0, 256, SHAPE, dtype=np.uint8)


def paint_or_die(number: int) -> np.ndarray:
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return paint(number)


def same(found: list, expected: list) -> bool:
    return all(a == b if isinstance(b, Failure) else np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_results_are_those_of_pickles_in_their_order_though_slots_are_used_again(processes: int) -> None:
    numbers = range(3 * ahead(2) + 5)
    found = list(shared_map(paint, numbers, processes, SHAPE))  # all kept: none is a view of a slot
    assert same(found, list(isolated_map(paint, numbers, 0)))


def test_a_death_costs_its_item() -> None:
    found = list(shared_map(paint_or_die, range(40), 2, SHAPE))
    assert found[20] == Failure("its worker process died")
    del found[20]
    assert same(found, [one for number, one in enumerate(isolated_map(paint, range(40), 0)) if number != 20])
