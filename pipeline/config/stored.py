"""Stored models, restored, and the checks that stored encoders share with them."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pipeline.config.registry import import_place, model_spec
from pipeline.errors import MALFORMED, IntegrityError, brief

if TYPE_CHECKING:
    import numpy as np

CORRECTED = "pipeline.models.linear.corrected:HubCorrected"
"""What corrects the scores of any model for hubs."""


def restore(name: str, settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """The registered model `name` from the `settings` and `tensors` that were stored (`where`, for errors), its scores
    corrected for hubs where these say so. IntegrityError where their form is not that of its class."""
    spec = model_spec(name)
    registered = spec.load()
    with known_form(f"{name} in {where}" if where else name, spec.made_by), limited(tensors):
        if "hubness" in settings:
            return import_place(CORRECTED).from_parts(registered, settings, tensors)
        return registered.from_parts(settings, tensors)


FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "eye")
"""Functions of torch that make an array of a given size."""
FREE_ELEMENTS = 1 << 27
"""Numbers that may be allocated beside STORED_TIMES the stored numbers: a whole network is built before it is cut, and
the text side of a network can be a small part of it."""
STORED_TIMES = 8
LEAST_ELEMENTS = 1 << 10
"""Numbers that an array counts for at least, so that the number of arrays is limited too."""


def limited(tensors: Mapping[str, "np.ndarray"], weight_bytes: int = 0) -> AbstractContextManager[object]:
    """Return a context in which torch raises ValueError rather than allocate many more numbers than are stored.

    These are the numbers of `tensors` and of files of `weight_bytes`. The settings of a stranger are sizes of layers.
    Nothing is limited if torch is not loaded.
    """
    if "torch" not in sys.modules:
        return nullcontext()
    import torch
    from torch.overrides import TorchFunctionMode

    class Limit(TorchFunctionMode):
        stored = weight_bytes // 2 + sum(math.prod(tensor.shape) for tensor in tensors.values())
        room = FREE_ELEMENTS + STORED_TIMES * stored
        factories = frozenset(getattr(torch, name) for name in FACTORIES)

        def __torch_function__(self, function: Callable[..., Any], types: object, args: tuple = (), kwargs: Any = None):
            if function in self.factories:
                size = args[0] if args and isinstance(args[0], tuple | list | torch.Size) else args
                self.room -= max(LEAST_ELEMENTS, math.prod(side for side in size if isinstance(side, int)))
                if self.room < 0:
                    raise ValueError("its settings ask for larger layers than were stored")
            return function(*args, **(kwargs or {}))

    return Limit()


@contextmanager
def known_form(what: str, stage: str) -> Iterator[None]:
    """IntegrityError where the settings and tensors of `what` are not of the form that its class wrote."""
    try:
        yield
    except MALFORMED as error:
        raise IntegrityError(
            f"the stored {what} has another form than this version reads ({brief(error)}); run {stage} again"
        ) from error
