"""The choice of a device, and the size of batches on a simulated GPU whose memory is full."""

import itertools
import time

import numpy as np
import pytest
import torch

from pipeline.compute.device import OomBatcher, find_device, find_gpu, grow_batch
from pipeline.errors import UsageError


def test_unknown_device_is_refused() -> None:
    for name in ("cuda:77", "abacus"):
        for find in (find_device, find_gpu):
            with pytest.raises(
                UsageError, match=f"^device {name} cannot be used on this machine .* Set device to auto"
            ):
                find(name)


OUT_OF_MEMORY_ERRORS = {
    "torch": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cuda": RuntimeError("CUDA error: out of memory"),
    "driver": RuntimeError("CUDA driver error: out of memory"),
    "outside": RuntimeError("CUDA ran out of memory outside PyTorch's allocator. If this workload uses many"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    "cudnn's host": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    "cudnn 8": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cusparse": RuntimeError("CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpGEMM"),
}
NO_ENGINE = RuntimeError("FIND was unable to find an engine to execute this computation")


@pytest.mark.parametrize("full", [*OUT_OF_MEMORY_ERRORS.values(), NO_ENGINE], ids=[*OUT_OF_MEMORY_ERRORS, "no engine"])
def test_batch_is_halved_when_memory_is_full(full: RuntimeError) -> None:
    asked: list[tuple[int, int]] = []

    def work(rows: slice) -> range:
        asked.append((rows.start, rows.stop))
        if rows.stop - rows.start > 3:
            raise full
        return range(rows.start, rows.stop)

    portions = OomBatcher(8, "pair")
    assert [number for part in portions.map(work, 11) for number in part] == list(range(11))
    assert asked[:3] == [(0, 8), (0, 4), (0, 2)] and portions.size == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        *((full, "too small for a single pair. Set device to cpu") for full in OUT_OF_MEMORY_ERRORS.values()),
        (NO_ENGINE, "engine"),
    ],
    ids=[*OUT_OF_MEMORY_ERRORS, "no engine"],
)
def test_row_that_does_not_fit_is_an_error(error: RuntimeError, message: str) -> None:
    with pytest.raises(RuntimeError if error is NO_ENGINE else UsageError, match=message):
        OomBatcher(2, "pair").map(lambda rows: (_ for _ in ()).throw(error), 4)


@pytest.mark.parametrize(
    ("most", "trouble", "expected"),
    [(100, None, 64), (256, OUT_OF_MEMORY_ERRORS["cudnn"], 128), (256, NO_ENGINE, 128), (256, "other features", 128)],
)
def test_batch_grows_while_it_is_faster_and_fits_and_features_agree(
    most: int, trouble: object, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With this clock, every batch takes the same time.
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    probes = np.random.default_rng(0).standard_normal((8, 5), dtype=np.float32)

    def describe(rows: int) -> np.ndarray:
        features = np.resize(probes, (rows, 5))
        if rows > 128 and isinstance(trouble, RuntimeError):
            raise trouble
        if rows > 128 and trouble:
            features[-1] = features[0]  # This simulates an overflow of a 32-bit index.
        return features

    assert grow_batch(describe, 8, most) == expected
