"""The choice of a device, with GPUs that are made up, and what is done when one of them is full."""

import pytest
import torch

from pipeline.device import (
    OomBatcher,
    drawn_from,
    find_device,
    find_gpu,
)
from pipeline.errors import UsageError

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    for name in ("cuda:77", "abacus"):
        for find in (find_device, find_gpu):
            with pytest.raises(UsageError, match=f"^device {name} cannot be used here .*; choose auto"):
                find(name)


FULL = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


@pytest.mark.parametrize("full", FULL, ids=["torch", "cublas", "cudnn"])
def test_work_that_does_not_fit_is_halved_and_goes_on(full: RuntimeError) -> None:
    asked: list[tuple[int, int]] = []

    def work(rows: slice) -> range:
        asked.append((rows.start, rows.stop))
        if rows.stop - rows.start > 3:
            raise full
        return range(rows.start, rows.stop)

    portions = OomBatcher(8, "pair")
    assert [number for part in portions.map(work, 11) for number in part] == list(range(11))
    assert asked[:3] == [(0, 8), (0, 4), (0, 2)] and portions.size == 2
    with pytest.raises(UsageError, match="no memory for even one pair; set device to cpu"):
        OomBatcher(1, "pair").map(lambda rows: (_ for _ in ()).throw(full), 4)


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
