"""Restores stored models, and has checks for stored models and stored encoders."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pipeline.config.registry import import_object, model_spec
from pipeline.errors import MALFORMED, IntegrityError, brief

if TYPE_CHECKING:
    import numpy as np

CORRECTED = "pipeline.models.linear.corrected:HubCorrected"
"""The import path of the class that corrects the scores of any model for hubs."""


def restore(name: str, settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """Restore the registered model `name` from stored settings and tensors.

    `where` is the location of the settings and tensors for messages. If the settings have a hubness correction, the
    scores of the model are corrected. Raises IntegrityError if the settings and tensors do not have the form that the
    class of the model writes.
    """
    spec = model_spec(name)
    registered = spec.load()
    with known_form(f"{name} in {where}" if where else name, spec.made_by), limited(tensors):
        if "hubness" in settings:
            return import_object(CORRECTED).from_parts(registered, settings, tensors)
        return registered.from_parts(settings, tensors)


FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "eye")
"""Functions of torch that make a tensor of a given size."""
FREE_ELEMENTS = 1 << 27
"""Number of tensor elements that torch may allocate while a stored network is restored, in addition to STORED_TIMES
elements for each stored element. A whole network is built before it is cut, and the stored side of a dual encoder can
be a small part of the whole network."""
STORED_TIMES = 8
"""Number of tensor elements that torch may allocate for each stored element while a stored network is restored."""
MIN_COUNTED_ELEMENTS = 1 << 10
"""Smallest number of elements that `limited` counts for a new tensor, so that the number of tensors is limited too."""


def limited(tensors: Mapping[str, "np.ndarray"], weight_bytes: int = 0) -> AbstractContextManager[object]:
    """Return a context in which torch raises ValueError if many more elements are allocated than are stored.

    Stored settings have the sizes of layers, and settings from an untrusted source could be huge. The stored elements
    are the elements of `tensors` and of weight files with `weight_bytes` bytes in total, at two bytes per element. If
    torch has not been imported, nothing is limited.
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
                self.room -= max(MIN_COUNTED_ELEMENTS, math.prod(side for side in size if isinstance(side, int)))
                if self.room < 0:
                    raise ValueError("the settings describe larger layers than the stored tensors have")
            return function(*args, **(kwargs or {}))

    return Limit()


@contextmanager
def known_form(what: str, stage: str) -> Iterator[None]:
    """Convert exceptions that malformed settings and tensors cause in the block to IntegrityError.

    For the message, `what` is the model or encoder, and `stage` is the stage that makes the model or encoder again.
    """
    try:
        yield
    except MALFORMED as error:
        raise IntegrityError(
            f"the stored {what} has a form that this version cannot read ({brief(error)}). Run the stage {stage} again."
        ) from error
