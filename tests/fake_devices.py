"""A simulated device that computes on the CPU but refuses operations that a GPU would refuse, and simulated GPUs whose
memory is full.

Within `fake_device()`, tensors on `DEVICE` do not mix with CPU tensors, have no `numpy()`, and are copied between
devices only by explicit calls. The name of the device is `meta`. torch knows this name, and its tensors have no values
outside of this simulation.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map

from pipeline.compute.device import OomBatcher

DEVICE = torch.device("meta")
CROSSING = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
"""Operators of torch that copy a tensor, and therefore may take a CPU tensor and a tensor of the simulated device in
one call.
"""


class FakeDeviceTensor(torch.Tensor):
    """A tensor that pretends to be on `DEVICE`. Its values are in the CPU tensor `inner`."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "FakeDeviceTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE, requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"FakeDeviceTensor({self.inner!r})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        return compute(function, arguments, named or {})


class FakeDeviceMode(TorchDispatchMode):
    """A mode of torch in which a new tensor for `DEVICE` is a FakeDeviceTensor."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return compute(function, arguments, named or {})


def compute(function: Any, arguments: tuple, named: dict[str, Any]) -> Any:
    """Call the operator `function` of torch on CPU tensors, and return its result.

    The result is on `DEVICE` if the argument `device` is `DEVICE`, or if there is no argument `device` and a tensor
    among the arguments is on `DEVICE`. Raises RuntimeError if the arguments mix CPU tensors of at least one dimension
    with tensors on `DEVICE`, unless `function` is one of CROSSING.
    """
    tensors = [one for one in leaves((*arguments, *named.values())) if isinstance(one, torch.Tensor)]
    elsewhere = [one for one in tensors if isinstance(one, FakeDeviceTensor)]
    asked = named.get("device")
    there = bool(elsewhere) if asked is None else torch.device(asked) == DEVICE
    if (
        elsewhere
        and function not in CROSSING
        and any(one.dim() for one in tensors if not isinstance(one, FakeDeviceTensor))
    ):
        shapes = [("there" if isinstance(one, FakeDeviceTensor) else "here", tuple(one.shape)) for one in tensors]
        raise RuntimeError(f"{function} takes tensors of two devices: {shapes}")
    if asked is not None:
        named = {**named, "device": torch.device("cpu")}
    made = function(*map(inner_of, arguments), **{name: inner_of(one) for name, one in named.items()})
    if function is torch.ops.aten.copy_.default:
        return arguments[0]
    if not there:
        return made
    made = moved(made) if isinstance(made, torch.Tensor) else tree_map(moved, made)
    if not elsewhere or asked is not None or not returns_an_argument(function):
        return made
    return return_and_correct_aliasing(function, arguments, named, made)


def moved(value: Any) -> Any:
    return FakeDeviceTensor(value) if type(value) is torch.Tensor else value


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield each value in nested lists and tuples. Operators of torch take tensors in such lists."""
    for one in values:
        if isinstance(one, list | tuple):
            yield from leaves(one)
        else:
            yield one


def inner_of(value: Any) -> Any:
    """Return `value`, in which each tensor of the simulated device is replaced by its CPU tensor. Lists and tuples are
    replaced by copies with CPU tensors.
    """
    if isinstance(value, FakeDeviceTensor):
        return value.inner
    return type(value)(map(inner_of, value)) if isinstance(value, list | tuple) else value


@cache
def returns_an_argument(function: Any) -> bool:
    """Return whether the operator `function` of torch returns one of its arguments, or a view of an argument."""
    return any(one.alias_info is not None for one in function._schema.returns)


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """Let torch compute with tensors on `DEVICE` within the context, and yield `DEVICE`. Random numbers on `DEVICE` are
    equal to random numbers of the CPU with the same seed.
    """
    with ExitStack() as stack:
        # A subclass of torch.Tensor cannot be made in inference mode.
        stack.enter_context(patch.object(torch.inference_mode, "__enter__", _enter_without_gradients))
        stack.enter_context(patch.object(torch.inference_mode, "__exit__", _leave_without_gradients))
        stack.enter_context(FakeDeviceMode())
        yield DEVICE


def _enter_without_gradients(mode: torch.inference_mode) -> None:
    mode.without_gradients = torch.no_grad()
    mode.without_gradients.__enter__()


def _leave_without_gradients(mode: torch.inference_mode, *error: Any) -> None:
    mode.without_gradients.__exit__(*error)


class FullOnce(TorchDispatchMode):
    """A mode of torch that simulates a memory that is full once: OutOfMemoryError is raised at operation number `at`
    (from 0) of the operations that take memory.

    If `at` is None, no operation fails. `count` is the number of operations so far that take memory. A matrix product
    takes memory even if an existing tensor receives its result, because cuBLAS needs working memory.
    """

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if not returns_an_argument(function) or "mm" in function.name() or "addr" in function.name():
            self.count += 1
            if self.count - 1 == self.at:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return function(*arguments, **(named or {}))


def full_beyond(most: int, done: list[int]) -> Callable[..., list[Any]]:
    """Return a replacement of `OomBatcher.map` for a simulated GPU that has memory for `most` rows.

    A portion of more rows raises OutOfMemoryError. The number of rows of each other portion is appended to `done`.
    """
    original = OomBatcher.map

    def map_portions(self: OomBatcher, function: Callable[[slice], Any], count: int) -> list[Any]:
        def limited(rows: slice) -> Any:
            if rows.stop - rows.start > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            result = function(rows)
            done.append(rows.stop - rows.start)
            return result

        return original(self, limited, count)

    return map_portions
