"""torchvision's models and what takes features out of them, without torch's compiler.

An operation of torchvision's detectors asks torch._dynamo whether there is a compiler; importing that takes about as
long as importing all else. Here the question is passed on when it is asked.
"""

import sys
from importlib import import_module
from types import ModuleType

COMPILER = ("torch._dynamo", "torch._dynamo.utils")


def _import_models() -> ModuleType:
    if any(name in sys.modules for name in COMPILER):
        from torchvision import models

        return models
    package, utils = map(ModuleType, COMPILER)
    package.utils, utils.is_compile_supported = utils, _is_compile_supported
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
