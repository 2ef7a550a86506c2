"""torchvision's models are imported without torch's compiler, which can be asked for all the same."""

import json
import subprocess
import sys

import pytest

IN_FORKS = """
import json, os, sys, torch
for code in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Programs in children of a process that has imported torch alone, without its compiler and without torchvision."""
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


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    """The lines of CODE and of DEMANDING."""
    programs = [sys.executable, "-c", IN_FORKS, json.dumps([CODE, DEMANDING])]
    done = subprocess.run(programs, capture_output=True, text=True)
    first, second, rest = done.stdout.split("ended with 0\n")
    assert rest == "", done.stderr
    return [first.splitlines(), second.splitlines()]


def test_the_compiler_is_imported_by_whoever_asks_for_it(printed: list[list[str]]) -> None:
    assert printed[0] == ["False False", "(1, 1, 2, 2) torchvision.ops.roi_align", "True True"]


def test_a_torchvision_that_cannot_do_without_the_compiler_has_it(printed: list[list[str]]) -> None:
    assert printed[1] == ["True"]
