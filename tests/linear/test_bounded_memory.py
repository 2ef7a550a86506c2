"""The memory of fits, of the search for near-duplicates and of caption scores does not grow with the number of photos,
and data that are processed in blocks or from disk give the same results as data in memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import sparse
from small_settings import make_grid
from synthetic_tasks import make_fit_task

from pipeline.compute.lazy_rows import DiskRows
from pipeline.config.registry import model_spec
from pipeline.images import copies
from pipeline.models.linear import cross_fit, kernels, wsabie
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, TextView, ViewBlock
from pipeline.storage.pairs import SplitRows

WIDE = 256
"""Number of values in the feature vector of a photo."""

ROWS = 100
"""Number of photos in a block."""


def blocks_of(count: int) -> Iterator[ViewBlock]:
    """Generate blocks of ROWS photos, `count` photos in total, where `count` is a multiple of ROWS. A photo has WIDE
    random features and one caption with one word."""
    for number in range(count // ROWS):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((ROWS, WIDE), dtype=np.float32)
        words = sparse.csr_array((np.ones(ROWS, np.float32), x[:, :20].argmax(axis=1), np.arange(ROWS + 1)), (ROWS, 20))
        yield ViewBlock(x, words, np.arange(ROWS))


def task_of(name: str, count: int) -> FitTask:
    """Make the task of fitting the model `name` to `count` photos. The photos are generated block by block whenever the
    fit reads them. The moments are placeholders, because only the memory of the fit is measured."""
    task, _ = make_fit_task(name)
    moments = task.sets.target
    dev = next(blocks_of(ROWS))
    wide = np.zeros(WIDE)
    moments = replace(
        moments, n=float(count), mean_x=wide, xx=np.eye(WIDE), xy=np.zeros((WIDE, 20)), mean_y=np.zeros(20)
    )
    settings = task.settings.model_copy(update={"epochs": 1}) if name.startswith("wsabie") else task.settings
    return replace(
        task,
        view=ImageView(("one",), (WIDE,), ()),
        text=TextView.from_vectors({"tfidf": dev.y}),
        sets=replace(task.sets, target=moments, target_blocks=lambda: blocks_of(count)),
        dev=PairArrays({"one": dev.x}, {"tfidf": dev.y}, dev.owners),
        grid=make_grid([4], [0.1], [0.1], [1]),
        settings=settings,
    )


def peak(work: Callable[[], object]) -> int:
    """Run `work`, and return the greatest number of bytes that `work` has allocated at once in Python and NumPy."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["kcca", "wsabie-sgd"])
def test_memory_of_a_fit_does_not_grow_with_the_number_of_photos(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_LANDMARKS", 100)
    fit = model_spec(name).load().fit
    fit(task_of(name, ROWS))  # The imports of the first fit must not be measured.
    few, many = (peak(lambda count=count: fit(task_of(name, count))) for count in (1000, 4000))
    assert many <= 1.2 * few, (few, many)


@pytest.mark.parametrize("exact", [8000, 100])
def test_memory_of_a_neighbour_search_does_not_grow_with_the_number_of_photos(
    exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak memory of `near_pairs` for 4,000 photos is at most 1.2 times the peak for 1,000 photos. The random
    photos have no near-duplicates, so that the result, which may grow, is empty. The search is exact up to `exact`
    photos."""
    limits = {"MAX_EXACT_PHOTOS": exact, "BLOCK_ROWS": 200, "INDEX_ROWS": 300, "TRAINING_PHOTOS": 1}
    for name, value in limits.items():
        monkeypatch.setattr(copies, name, value)

    class Rows:
        def __init__(self, count: int) -> None:
            self.shape = (count, WIDE)

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            return np.random.default_rng(int(rows[0])).standard_normal((len(rows), WIDE), dtype=np.float32)

    copies.near_pairs(Rows(400))
    few, many = (peak(lambda count=count: copies.near_pairs(Rows(count))) for count in (1000, 4000))
    assert many <= 1.2 * few, (few, many)


def test_several_indexes_find_what_one_index_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_EXACT_PHOTOS", 100)
    features = np.random.default_rng(4).standard_normal((3000, 8), dtype=np.float32)
    whole = copies.near_pairs(features)
    monkeypatch.setattr(copies, "INDEX_ROWS", 700)
    monkeypatch.setattr(copies, "BLOCK_ROWS", 400)
    np.testing.assert_array_equal(copies.near_pairs(features), whole)
    monkeypatch.setattr(copies, "MAX_EXACT_PHOTOS", 3000)
    exact = set(map(tuple, copies.near_pairs(features).tolist()))
    assert len(exact & set(map(tuple, whole.tolist()))) > 0.95 * len(exact)


def test_memory_of_caption_scores_does_not_grow_with_the_number_of_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_fit, "MAX_RIVALS", 100)
    view = ImageView(("one",), (WIDE,), ())
    text = TextView.from_vectors({"tfidf": next(blocks_of(ROWS)).y})

    def blocks(count: int, fold: int) -> Iterator[SplitRows]:
        for number, block in enumerate(blocks_of(count)):
            if number % cross_fit.FOLDS == fold:
                ids = number * ROWS + block.owners
                yield SplitRows(ids, {"one": block.x}, {"tfidf": block.y}, ids, block.owners)

    def score(count: int) -> None:
        photos, captions = cross_fit.cross_fit(partial(blocks, count), view, text, 1)
        assert photos.pairs.shape == captions.pairs.shape == (count, 5)

    score(ROWS * cross_fit.FOLDS)  # The imports of the first call must not be measured.
    few, many = (peak(lambda count=count: score(count)) for count in (2000, 8000))
    assert many <= 1.2 * few, (few, many)


@pytest.mark.parametrize("size", [7, 30, 1000])
def test_neighbours_in_blocks_are_the_neighbours_of_all(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs that `near_pairs` finds with blocks of `size` rows are compared with the pairs by one matrix of all
    cosines in double precision."""
    monkeypatch.setattr(copies, "BLOCK_ROWS", size)
    features = np.random.default_rng(5).standard_normal((90, 6), dtype=np.float32) + 2
    centred = features - features.mean(axis=0, dtype=float)
    cosines = centred @ centred.T / np.outer(*[np.linalg.norm(centred, axis=1)] * 2)
    nearest = np.argsort(-cosines, axis=1)[:, : copies.NEIGHBOURS + 1]
    expected = {
        (min(i, j), max(i, j))
        for i in range(90)
        for j in nearest[i]
        if i != j and cosines[i, j] >= copies.MIN_CANDIDATE_COSINE
    }
    assert set(map(tuple, copies.near_pairs(features).tolist())) == expected


def test_integers_on_disk_stay_exact() -> None:
    rows = DiskRows(2, dtype=np.int64)
    numbers = np.array([[1 << 40, -1], [(1 << 40) + 1, 2]])
    rows.append(numbers)
    np.testing.assert_array_equal(rows[np.arange(2)], numbers)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_on_disk_are_the_rows_that_were_appended(is_sparse: bool) -> None:
    rng = np.random.default_rng(6)
    whole = sparse.random_array((50, 9), density=0.3, rng=rng, dtype=np.float32, format="csr")
    rows = DiskRows(9, is_sparse)
    for part in np.split(np.arange(50), (1, 1, 20)):
        rows.append(whole[part] if is_sparse else whole[part].toarray())
    for chosen in (np.array([49, 0, 7, 7]), np.arange(50), np.array([], int)):
        found = rows[chosen]
        np.testing.assert_array_equal(found.toarray() if is_sparse else found, whole[chosen].toarray())
    assert rows.shape == (50, 9)


def test_wsabie_learns_the_same_from_rows_on_disk() -> None:
    task = task_of("wsabie-sgd", 400)
    images, sentences, owners = wsabie._gather(task, task.sets.target.mean_x.astype(np.float32))
    schedule = wsabie.WsabieSchedule(2, 0.5, 10.0, False, 4, seed=0, batch=50)
    x = images[np.arange(400)]
    y = sentences[np.arange(400)]
    for stored, held in zip(
        wsabie.train(images, sentences, owners, schedule), wsabie.train(x, y, owners, schedule), strict=True
    ):
        np.testing.assert_array_equal(stored.w, held.w)
        np.testing.assert_array_equal(stored.u, held.u)


def test_landmarks_and_variance_from_blocks_equal_those_from_all_rows() -> None:
    rows = np.random.default_rng(7).standard_normal((90, 5)).astype(np.float32) * [1, 2, 3, 4, 5] + 100
    rows = rows.astype(np.float32)
    whole = kernels.KernelFeatures.fit(lambda: [rows], "rbf", 0.5, 20, seed=3)
    parts = kernels.KernelFeatures.fit(lambda: np.split(rows, (10, 11, 60)), "rbf", 0.5, 20, seed=3)
    assert whole.gamma == pytest.approx(0.5 / rows.var(axis=0, dtype=float).sum()) == parts.gamma
    drawn = rows[np.random.RandomState(3).permutation(90)[:20]]
    for found in (whole, parts):
        assert {tuple(row) for row in found.landmarks} == {tuple(row) for row in drawn.astype(float)}
