"""Moments computed by torch equal the moments computed by NumPy, also if the memory of a GPU is too small for a whole
block."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_devices import FullOnce, full_beyond
from scipy import sparse
from small_settings import text_view

from pipeline.compute.device import OomBatcher
from pipeline.models.linear.accumulation import sum_blocks
from pipeline.models.linear.device import DeviceAccumulator
from pipeline.models.linear.moments import MAX_DOUBLE_PRECISION_COLUMNS, Moments
from pipeline.models.linear.views import ImageView, TextView
from pipeline.storage.pairs import SplitRows


def make_blocks(dims: tuple[int, int], terms: int, dense: int = 0) -> list[SplitRows]:
    """Make five blocks of images with the features of two encoders, which have `dims` dimensions. The encoder `half`
    has float16 features and `single` has float32 features. The means of both are far from zero.

    Two of the blocks have 0 to 3 sentences per image. In the other blocks, all images have the same number of
    sentences: 0, 1 or 2. The sentences have sparse vectors with `terms` columns, and also dense vectors with `dense`
    columns unless `dense` is 0.
    """
    rng = np.random.default_rng(0)
    blocks = []
    for n, counts in ((300, None), (1, np.array([1])), (700, None), (256, np.full(256, 2)), (5, np.zeros(5, int))):
        counts = rng.integers(0, 4, n) if counts is None else counts
        owners = np.repeat(np.arange(n), counts)
        y = sparse.random_array((len(owners), terms), density=0.05, rng=rng, dtype=np.float32, format="csr")
        features = {
            "half": (rng.standard_normal((n, dims[0])) + 3).astype(np.float16),
            "single": (rng.standard_normal((n, dims[1])) - 5).astype(np.float32),
        }
        for block in features.values():
            block[0] = 0  # The first row of each block is zero, because such a row cannot be scaled to unit length.
        texts = {"tfidf": y}
        if dense:
            texts["words"] = (rng.standard_normal((len(owners), dense)) + 9).astype(np.float16)
        blocks.append(SplitRows(np.arange(n), features, texts, np.arange(len(owners)), owners))
    return blocks


def view_of(dims: tuple[int, int], *steps: str) -> ImageView:
    return ImageView(("half", "single"), dims, steps)


def assert_same(found: Moments, expected: Moments, tolerance: float) -> None:
    assert found.n == expected.n
    for name in ("mean_x", "mean_y", "xx", "xy", "yy"):
        left = getattr(found, name)
        right = getattr(expected, name)
        assert left.dtype == right.dtype and left.shape == right.shape, name
        np.testing.assert_allclose(left, right, atol=tolerance * np.abs(right).max(), err_msg=name)


@pytest.mark.parametrize(
    ("dims", "terms", "steps", "tolerance"),
    [((9, 4), 30, (), 1e-12), ((9, 4), 30, ("sqrt", "l2"), 1e-6), ((700, 500), 300, ("l2",), 1e-5)],
)
def test_moments_equal_those_of_numpy(device: torch.device, dims, terms: int, steps, tolerance: float) -> None:
    # Moments of few columns are summed in double precision, so their tolerance is smaller.
    assert (sum(dims) + terms <= MAX_DOUBLE_PRECISION_COLUMNS) == (tolerance < 1e-5)
    view = view_of(dims, *steps)
    blocks = make_blocks(dims, terms)
    found, expected = (sum_blocks(iter(blocks), view, text_view(terms), 1, where) for where in (device, None))
    assert_same(found, expected, tolerance)
    np.testing.assert_array_equal(found.xx, found.xx.T)
    twin = Moments.from_arrays(found.to_arrays())
    np.testing.assert_array_equal(twin.xx, found.xx)


@pytest.mark.parametrize(("dims", "tolerance"), [((9, 4), 1e-12), ((700, 500), 2e-5)])
def test_moments_of_sparse_and_dense_texts_equal_those_of_numpy(device: torch.device, dims, tolerance: float) -> None:
    blocks = make_blocks(dims, 30, dense=12)
    for names in (("tfidf", "words"), ("words", "tfidf"), ("words",)):
        chosen = [replace(block, sentences={name: block.sentences[name] for name in names}) for block in blocks]
        text = TextView.from_vectors(chosen[0].sentences)
        found, expected = (sum_blocks(chosen, view_of(dims), text, 1, where) for where in (device, None))
        assert_same(found, expected, tolerance)


@pytest.mark.parametrize("dense", [0, 12])
def test_each_pair_counts_once_if_the_memory_is_full_at_any_step(dense: int) -> None:
    """Adding two blocks takes many allocations and products. The blocks are added again and again, and each time the
    memory of the device is full at another one of these operations. The moments always equal the moments by NumPy."""
    dims = (9, 4)
    blocks = make_blocks((9, 4), 30, dense)[2:4]
    text = TextView.from_vectors(blocks[0].sentences)
    expected = sum_blocks(blocks, view_of(dims), text, 1)

    def accumulate(memory: FullOnce) -> DeviceAccumulator:
        accumulator = DeviceAccumulator(view_of(dims), text.dim, torch.device("cpu"))
        with memory:
            for block in blocks:
                accumulator.add(block.features, text.stack(block.sentences), block.owners)
        return accumulator

    accumulate(memory := FullOnce())
    assert memory.count > 30
    for at in range(memory.count):
        assert_same(accumulate(FullOnce(at)).result(), expected, 1e-12)


def test_a_full_gpu_continues_with_smaller_pieces_of_the_block(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims = (9, 4)
    terms = 30
    view = view_of(dims)
    blocks = make_blocks(dims, terms)
    done = []
    expected = sum_blocks(blocks, view, text_view(terms), 1)
    monkeypatch.setattr(OomBatcher, "map", full_beyond(100, done))
    assert_same(sum_blocks(blocks, view, text_view(terms), 1, device), expected, 1e-12)
    assert sum(done) == sum(len(block.image_id) for block in blocks) and max(done) <= 100
