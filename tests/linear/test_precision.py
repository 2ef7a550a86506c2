"""Tests of the conversion from half precision, and of unit lengths for vectors whose squares overflow or underflow in
single precision."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from pipeline.compute.precision import FLOAT16_VALUES
from pipeline.encoders import tfidf
from pipeline.encoders.precomputed import require_made_by
from pipeline.images.copies import near_pairs
from pipeline.models.linear.device import normalise_tensor, unit_length
from pipeline.models.linear.ensemble import ZeroShot
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView, normalise
from pipeline.report.tables import measure_rows

ROOT = Path(__file__).parents[2]
SCALES = (1e-42, 1e-30, 1e-20, 1.0, 1e18, 1e20, 1e30, 3e37)
SCALERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "views": lambda rows: normalise(rows.copy(), ["l2"]),
    "projection": unit_rows,
    "zero-shot": lambda rows: ZeroShot("eyes", "words").embed_images({"eyes": rows}),
    "sparse": lambda rows: tfidf.unit_rows(sparse.csr_array(rows)).toarray(),
    "device": lambda rows: normalise_tensor(torch.from_numpy(rows), ["l2"]).numpy(),
    "network": lambda rows: unit_length(torch.from_numpy(rows)).numpy(),
}


def test_every_float16_becomes_the_same_float32_as_in_numpy() -> None:
    """`to_float32` converts each of the 65,536 float16 values to the same bits as NumPy, including NaN and the
    infinities, also in arrays that are not contiguous and with `out`. The test runs in a process without torch, because
    `to_float32` uses torch if torch is loaded."""
    code = """
import sys, numpy as np
from pipeline.compute.precision import to_float32
values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
block = np.stack([values, values[::-1]])
for rows in (block, block.T, np.stack([block, block])[:, :, ::2]):
    for out in (None, np.empty((3, *rows.shape[1:]), np.float32)[: len(rows)] if len(rows) < 3 else None):
        found = to_float32(rows, out)
        assert (found.view(np.uint32) == rows.astype(np.float32).view(np.uint32)).all()
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "steps", [(), ("l2",), ("sqrt", "l2"), ("sqrt", "times 3"), ("times 0.5", "l2", "sqrt")], ids=str
)
def test_a_float16_view_equals_the_normalised_float32_rows(steps: tuple[str, ...]) -> None:
    """A large block has every float16 value twice, and its steps before `l2` are looked up in a table. A small block is
    normalised directly. NaN, the infinities, negative and denormal numbers are among the values."""
    values = np.arange(FLOAT16_VALUES, dtype=np.uint16).view(np.float16)
    view = ImageView(("one",), (64,), steps)
    for rows in (np.tile(values, 2).reshape(-1, 64), values.reshape(-1, 64)):
        with np.errstate(all="ignore"):
            found = view.stack({"one": rows})
            expected = normalise(rows.astype(np.float32), steps)
        np.testing.assert_array_equal(found, expected)


def rows_of_all_sizes() -> np.ndarray:
    """Draw eight rows (8, 7) float32, one for each of SCALES, whose magnitudes cover the range of single precision."""
    return (np.random.default_rng(0).standard_normal((8, 7)) * np.array(SCALES)[:, None]).astype(np.float32)


@pytest.mark.parametrize("name", SCALERS)
def test_rows_of_all_sizes_get_unit_length_and_rows_of_zeros_stay_zero(name: str) -> None:
    rows = np.vstack([rows_of_all_sizes(), np.zeros((1, 7), np.float32)])
    before = rows.copy()
    found = SCALERS[name](rows)
    expected = rows[:8].astype(float) / np.linalg.norm(rows[:8].astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(found[:8], expected, atol=1e-6)
    assert found.dtype == np.float32 and not found[8].any()
    np.testing.assert_array_equal(rows, before)


def test_scaling_a_network_by_powers_of_two_changes_no_bit_and_no_gradient() -> None:
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((50, 9)).astype(np.float32))
    left = rows.clone().requires_grad_()
    right = rows.clone().requires_grad_()
    found = unit_length(left)
    expected = torch.nn.functional.normalize(right, dim=1)
    assert torch.equal(found, expected)
    for one in (found, expected):
        (one * torch.arange(9)).sum().backward()
    assert torch.equal(left.grad, right.grad)


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_vectors_of_any_size_are_compared(scale: float) -> None:
    """Vectors that are very small or very large give the same results as vectors of usual size: in the search for
    near-duplicates, in the check of imported vectors against the encoder that the user names, and in the lengths in
    the report."""
    features = np.random.default_rng(2).standard_normal((40, 16), dtype=np.float32)
    features[30:] = features[:10] + np.float32(0.01)
    large = features * np.float32(scale)
    np.testing.assert_array_equal(near_pairs(large), near_pairs(features))
    require_made_by(large, features, [str(row) for row in range(40)], "vectors.npy", "images", "net")
    assert measure_rows(large)["length"] == pytest.approx(scale * measure_rows(features)["length"])
