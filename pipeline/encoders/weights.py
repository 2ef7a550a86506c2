"""torchvision's models without torch's compiler, and pretrained weights, checked against their network.

An operation of torchvision's detectors asks torch._dynamo whether there is a compiler; importing that takes about as
long as importing all else. Here the question is passed on when it is asked.
"""

import io
import pickle
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from urllib.error import URLError

import torch

from pipeline.errors import InputError

COMPILER = ("torch._dynamo", "torch._dynamo.utils")


def _import_models() -> ModuleType:
    if any(name in sys.modules for name in COMPILER):
        from torchvision import models

        return models
    package, utils = map(ModuleType, COMPILER)
    vars(package)["utils"] = utils
    vars(utils)["is_compile_supported"] = _is_compile_supported
    stand_ins = dict(zip(COMPILER, (package, utils), strict=True))
    sys.modules |= stand_ins
    try:
        from torchvision import models
    except ImportError:  # this torchvision asks for more: it is imported again, with what it asks for
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
    from torchvision import models

    return models


def _is_compile_supported(device: str) -> bool:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device)


models = _import_models()
feature_extraction = import_module("torchvision.models.feature_extraction")
ops = import_module("torchvision.ops")


State = Mapping[str, torch.Tensor]


def parse(data: bytes, source: str) -> State:
    """The tensors in the bytes of the safetensors file or `.pt` / `.pth` state dict `source`.

    Runs no code from the file. Raises InputError for anything but a mapping of names to tensors.
    """
    import safetensors.torch  # not needed by encoders that have their weights

    try:
        if source.endswith(".safetensors"):
            return safetensors.torch.load(data)
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{source} is neither a safetensors file nor a state dict of tensors alone ({reason});"
            " save the network's state_dict() with safetensors"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise InputError(f"{source} is not a mapping of names to tensors; save the network's state_dict() alone")
    return state


def fetch(architecture: str, remedy: str) -> tuple[State, str]:
    """Torchvision's best weights of any of its models, and their name; `remedy` says how to configure a file instead.
    Raises InputError if the download fails."""
    weights = models.get_model_weights(architecture).DEFAULT
    try:
        return weights.get_state_dict(progress=True, check_hash=True), str(weights)
    except (URLError, OSError, RuntimeError) as error:
        raise InputError(
            f"cannot download {weights.url} ({error}); go online, or put that file under weights_root and {remedy}"
        ) from error


def select(state: State, needed: State, known: State, source: str) -> dict[str, torch.Tensor]:
    """The tensors of `state` that `needed` names, in its dtypes; `known` has the names in the whole network.

    Other tensors (the classifier, for most layers) may be missing. Raises InputError naming `source` and the first
    tensor that is missing, has another shape, is not finite, or is unknown to the network.
    """
    if unknown := sorted(set(state) - set(known)):
        raise InputError(f"{source} holds {unknown[0]}, which the architecture does not have; check `architecture`")
    chosen = {}
    for name, expected in needed.items():
        if name.endswith("num_batches_tracked"):  # a count of training steps that many files omit
            chosen[name] = torch.zeros_like(expected)
            continue
        if name not in state:
            raise InputError(f"{source} lacks {name}, which the architecture needs; check `architecture`")
        # Check the shape first: a file of a few bytes can claim a tensor of any size.
        if state[name].shape != expected.shape:
            shapes = f"{tuple(state[name].shape)} and not {tuple(expected.shape)}"
            raise InputError(f"{source}: {name} has the shape {shapes}; check `architecture`")
        chosen[name] = state[name].to(expected.dtype).contiguous()
        if not torch.isfinite(chosen[name]).all():
            raise InputError(f"{source}: {name} holds NaN or infinity; get the file again")
    return chosen
