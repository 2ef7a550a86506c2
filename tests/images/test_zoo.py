"""torchvision's models are imported without torch's compiler, which can be asked for all the same."""

import subprocess
import sys

CODE = """
import sys
from pipeline.images.zoo import models
print("torch._dynamo" in sys.modules, "torch._dynamo.utils" in sys.modules)
from torchvision.ops import roi_align
import torch
torch.manual_seed(0)
maps, boxes = torch.rand(1, 1, 8, 8, requires_grad=True), torch.tensor([[0, 0.0, 0.0, 4.0, 4.0]])
print(tuple(roi_align(maps, boxes, 2).shape), roi_align.__module__)
import importlib
module = importlib.import_module("torchvision.ops.roi_align")
from torch._dynamo.utils import is_compile_supported as true
print(module.is_compile_supported("cpu") == true("cpu"), len(models.list_models()) > 50)
"""


def test_the_compiler_is_imported_by_whoever_asks_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["False False", "(1, 1, 2, 2) torchvision.ops.roi_align", "True True"]


DEMANDING = """
import builtins, sys, torch
usual = builtins.__import__
def demanding(name, *rest):
    asked = sys.modules.get("torch._dynamo")
    if name == "torchvision" and asked is not None and not hasattr(asked, "optimize"):
        raise ImportError("asks for more")
    return usual(name, *rest)
builtins.__import__ = demanding
from pipeline.images.zoo import models
print(len(models.list_models()) > 50)
"""


def test_a_torchvision_that_cannot_do_without_the_compiler_has_it() -> None:
    done = subprocess.run([sys.executable, "-c", DEMANDING], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
