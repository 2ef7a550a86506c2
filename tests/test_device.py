"""The choice of a device, with GPUs that are made up, and what is done when one of them is full."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from devices import FakeStream

from pipeline import device
from pipeline.device import (
    Arriving,
    OomBatcher,
    drawn_from,
    find_device,
    find_gpu,
    full_float32,
    grow_batch,
    may_have_gpu,
    place,
    upload,
)
from pipeline.errors import UsageError

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


def test_auto_is_the_first_gpu_or_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == CPU and find_gpu("auto") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto") == find_gpu("auto") == torch.device("cuda")
    assert find_device("cpu") == CPU and find_gpu("cpu") is None


def test_a_device_that_is_not_there_is_refused() -> None:
    for name in ("cuda:77", "abacus"):
        for find in (find_device, find_gpu):
            with pytest.raises(UsageError, match=f"^device {name} cannot be used here .*; choose auto"):
                find(name)


@pytest.mark.parametrize(
    ("files", "visible", "expected"),
    [
        (["null", "tty"], None, False),
        (["null", "nvidia0", "nvidiactl"], None, True),
        (["dxg"], None, True),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["nvidia0"], "0", True),
        (["null"], "0", False),
    ],
)
def test_a_gpu_is_looked_for_by_its_driver(
    files: list[str], visible: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    monkeypatch.setattr(device.sys, "platform", "linux")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert may_have_gpu() == expected


def test_without_a_gpu_torch_is_not_imported_to_learn_so() -> None:
    code = (
        "import sys; from pipeline import device; device.may_have_gpu = lambda: False\n"
        "assert device.find_gpu('auto') is None and device.find_gpu('cpu') is None; print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "False"


class Both(NamedTuple):
    left: object
    right: object


@dataclass(frozen=True)
class Kept:
    vectors: torch.Tensor
    offsets: np.ndarray


def test_tensors_are_placed_wherever_they_are() -> None:
    offsets, meta = np.arange(3), torch.device("meta")
    value = Both([torch.zeros(2), 5], (Kept(torch.ones(3), offsets), None))
    placed = place(value, meta)
    assert isinstance(placed, Both) and placed.left[0].device == meta and placed.left[1] == 5
    assert placed.right[0].vectors.device == meta and placed.right[0].offsets is offsets and placed.right[1] is None
    assert place(value, CPU) is value
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.testing.assert_array_equal(upload(array, CPU), array)


FULL = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


@pytest.mark.parametrize("full", FULL, ids=lambda error: f"{type(error).__name__}-{error}"[:40])
def test_work_that_does_not_fit_is_halved_and_goes_on(full: RuntimeError, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[int, int]] = []

    def work(rows: slice) -> range:
        asked.append((rows.start, rows.stop))
        if rows.stop - rows.start > 3:
            raise full
        return range(rows.start, rows.stop)

    portions = OomBatcher(8, "pair")
    assert [number for part in portions.map(work, 11) for number in part] == list(range(11))
    assert asked[:3] == [(0, 8), (0, 4), (0, 2)] and portions.size == 2
    assert "going on with 2 pairs at once" in caplog.text
    asked.clear()
    portions.map(work, 5)
    assert asked == [(0, 2), (2, 4), (4, 5)]
    assert OomBatcher(8, "pair").map(work, 0) == []


@pytest.mark.parametrize(
    ("fastest", "largest", "found"), [(300, 4096, 512), (100, 4096, 256), (1 << 20, 1000, 512), (1 << 20, 4096, 2048)]
)
def test_a_batch_grows_while_it_gains_and_fits(fastest: int, largest: int, found: int) -> None:
    """On a device that does `fastest` rows in the time of one, and has memory for `largest`; the first call is slow."""
    called = set()

    def seconds(rows: int) -> float:
        if rows > largest:
            raise RuntimeError("CUDA error: out of memory")
        late = 0 if rows in called else 1000
        called.add(rows)
        return max(1, rows / fastest) + late

    assert grow_batch(seconds, 256) == found


def test_a_batch_that_cannot_be_computed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="illegal"):
        grow_batch(lambda rows: 1 if rows == 256 else throw(RuntimeError("CUDA error: illegal memory access")), 256)


def throw(error: Exception) -> float:
    raise error


def test_what_is_wrong_otherwise_is_not_tried_again() -> None:
    def work(rows: slice) -> None:
        asked.append(rows)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    asked: list[slice] = []
    with pytest.raises(RuntimeError, match="illegal"):
        OomBatcher(4, "pair").map(work, 4)
    assert len(asked) == 1


def test_one_row_that_does_not_fit_is_an_error_with_its_remedy() -> None:
    def work(rows: slice) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UsageError, match="no memory for even one pair; set device to cpu"):
        OomBatcher(4, "pair").map(work, 4)


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_numbers_follow_from_the_seed_and_are_as_before_afterwards(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    where = torch.device(name)
    torch.manual_seed(7)
    expected = torch.rand(3, device=where)
    torch.manual_seed(7)
    drawn = []
    for _ in range(2):
        with drawn_from((5 << 32) + 1, where):
            drawn.append(torch.rand(3, device=where))
    assert torch.equal(*drawn) and torch.equal(torch.rand(3, device=where), expected)


def test_products_and_convolutions_are_full_within_and_as_before_afterwards() -> None:
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        with full_float32():
            assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


def test_what_arrives_from_a_gpu_is_read_after_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeStream(monkeypatch)
    first, second = (Arriving(stream.computed(torch.full((3, 2), value))) for value in (1.0, 2.0))
    assert stream.copied == 0  # both are only under way
    assert (first.numpy() == 1).all() and stream.copied == 1
    assert (second.numpy() == 2).all()
    plain = torch.rand(4, 3)
    assert np.array_equal(Arriving(plain).numpy(), plain.numpy())


def test_a_copy_that_is_read_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    arriving = Arriving(FakeStream(monkeypatch).computed(torch.ones(3)))
    arriving._copied = None
    assert np.isnan(arriving.numpy()).all()
