"""Tests of the OpenBLAS kernels that a process chooses, from the CPU and from the user's setting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os
from pipeline.compute import runtime
runtime.cpu_flags = lambda: frozenset({flags})
runtime.configure()
print(os.environ.get("OPENBLAS_CORETYPE"))
"""


@pytest.mark.parametrize(
    ("chosen", "flags", "expected"),
    [
        (None, {"avx512f"}, "SKYLAKEX"),
        (None, {"avx2"}, "None"),
        ("Haswell", {"avx512f"}, "Haswell"),
        ("", {"avx512f"}, "None"),
        ("", {"avx2"}, "None"),
    ],
)
def test_the_core_type_comes_from_the_user_the_cpu_or_openblas(chosen: str | None, flags: set, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    environment |= {} if chosen is None else {"OPENBLAS_CORETYPE": chosen}
    program = [sys.executable, "-c", CODE.format(flags=flags)]
    root = Path(__file__).parents[1]
    found = subprocess.run(program, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected
