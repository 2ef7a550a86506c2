"""Imports torchvision's models without torch's compiler, and reads pretrained weights and checks them.

The import of torchvision's detectors imports torch._dynamo for a single function, `is_compile_supported`. The import of
torch._dynamo takes about as long as all other imports together. Here torch._dynamo is imported only when this function
is called.
"""

import io
import pickle
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.error import URLError

import torch

from pipeline.errors import InputError

COMPILER = ("torch._dynamo", "torch._dynamo.utils")
"""Modules of torch's compiler, which are replaced while torchvision is imported."""


def _import_models() -> ModuleType:
    """Import and return torchvision.models, without torch's compiler, whose import is slow.

    Small modules stand in for the modules COMPILER during the import, unless one of these is already imported. The
    stand-ins are removed afterwards. If torchvision needs more of the compiler, torchvision is imported again with the
    real modules.
    """
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
    except ImportError:  # This version of torchvision needs the real modules, and is imported with them below.
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
    """Read tensors from the content of a safetensors file or of a state dict (`.pt`, `.pth`).

    `source` is the name of the file. Code in the file is never run. Raises InputError if the file is not a mapping of
    names to tensors.
    """
    # This import is here, because restoring stored encoders does not need safetensors.torch.
    import safetensors.torch

    try:
        if source.endswith(".safetensors"):
            return safetensors.torch.load(data)
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        # The message of torch is left out, because this message advises to let the file run code.
        raise InputError(
            f"{source} is neither a safetensors file nor a state dict that contains only tensors, or it is damaged."
            " Save the state_dict() of the network with safetensors."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise InputError(f"{source} is not a mapping of names to tensors. Save only the state_dict() of the network.")
    return state


def fetch(architecture: str, weights_root: Path | str, remedy: str) -> tuple[State, str]:
    """Download torchvision's best weights for the model `architecture`. Return the weights and their name.

    torchvision keeps downloaded files. Raises InputError if the download fails. The message advises the user to put a
    file into the folder `weights_root`, and `remedy` says how the configuration must name this file.
    """
    weights = models.get_model_weights(architecture).DEFAULT
    try:
        return weights.get_state_dict(progress=True, check_hash=True), str(weights)
    except (URLError, OSError, RuntimeError) as error:
        raise InputError(
            f"jointspace cannot download {weights.url} ({error}). Connect to the internet, or put this file into the"
            f" folder {Path(weights_root).absolute()} (weights_root) and {remedy}."
        ) from error


def select(state: State, needed: State, known: State, source: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict that a part of a network needs, in the dtypes of `needed`.

    `needed` has tensors of the right shapes and dtypes for the part, and `known` has the tensors of the whole network.
    Tensors of the rest of the network (usually the classifier) may be missing. Raises InputError if a needed tensor is
    missing, has another shape or is not finite, or if the network does not have a tensor of the weights. The message
    names the tensor and the weights, whose name is `source`.
    """
    if unknown := sorted(set(state) - set(known)):
        raise InputError(
            f"{source} has the tensor {unknown[0]}, which the architecture does not have. Correct `architecture`."
        )
    chosen = {}
    for name, expected in needed.items():
        if name.endswith("num_batches_tracked"):  # a count of training steps that many files omit
            chosen[name] = torch.zeros_like(expected)
            continue
        if name not in state:
            raise InputError(f"{source} lacks the tensor {name}, which the architecture needs. Correct `architecture`.")
        # Check the shape first: a file of a few bytes can claim a tensor of any size.
        if state[name].shape != expected.shape:
            shapes = f"{tuple(state[name].shape)}, but the architecture needs {tuple(expected.shape)}"
            raise InputError(f"{source}: the tensor {name} has the shape {shapes}. Correct `architecture`.")
        chosen[name] = state[name].to(expected.dtype).contiguous()
        if not torch.isfinite(chosen[name]).all():
            raise InputError(f"{source}: the tensor {name} contains NaN or infinity. Download the file again.")
    return chosen
