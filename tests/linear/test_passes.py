"""Products that keep no lock, and blocks that are made ahead."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.models.linear.blas import add_gram
from pipeline.models.linear.passes import ahead


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (7, 3), (40, 65)])
def test_the_upper_triangle_gains_the_products(dtype: type, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    z, before = rng.standard_normal(shape).astype(dtype), rng.standard_normal((shape[1], shape[1])).astype(dtype)
    for rows in (z, np.asfortranarray(z), z[::-1]):
        total = np.array(before, order="F")
        add_gram(total, rows, 3)
        expected = before.astype(np.float64) + 3 * (z.astype(np.float64).T @ z.astype(np.float64))
        np.testing.assert_allclose(np.triu(total), np.triu(expected), rtol=1e-4, atol=1e-4)
        assert (np.tril(total, -1) == np.tril(before, -1)).all()


def test_what_does_not_fit_is_refused() -> None:
    z = np.zeros((4, 3), np.float32)
    for total in (np.zeros((2, 2), np.float32), np.zeros((3, 3)), np.zeros((3, 3), np.float32)):
        if total.dtype == z.dtype and len(total) == 3:
            add_gram(np.asfortranarray(total), z)
        else:
            with pytest.raises(ValueError, match="cannot add the products of"):
                add_gram(np.asfortranarray(total), z)


def test_other_threads_go_on_during_the_product() -> None:
    z, total, turns = np.ones((2500, 2500), np.float32), np.zeros((2500, 2500), np.float32, order="F"), [0]
    begun, done = threading.Event(), threading.Event()

    def count() -> None:
        begun.set()
        while not done.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    begun.wait()
    before = turns[0]
    add_gram(total, z)
    during = turns[0] - before
    done.set()
    thread.join()
    assert during > 100


def test_each_item_is_made_while_the_one_before_is_used() -> None:
    made = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    seen = []
    for number in ahead(items()):
        assert all(event.wait(20) for event in made[: number + 2])
        seen.append(number)
    assert seen == [0, 1, 2, 3] and list(ahead([])) == []


def test_a_failure_comes_after_what_was_made_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    coming = ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="the second"):
        next(coming)
