"""The layering of the house, read from the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GROUND = {
    *("config", "device", "errors", "mapreduce", "models", "plain_files", "precision", "printable", "runtime"),
    *("worker_process", "workers"),
}
COMPUTATION = {
    "images",
    "text",
    "linear",
    "neural",
    "language",
    "index",
    "evaluate",
    "collections",
    "plan",
    "report",
    "serve",
}
# Which of ours each kind of room may import; nothing imports upwards.
ALLOWED = {
    "ground": GROUND,
    "storage": GROUND | {"storage"},
    "computation": GROUND | COMPUTATION,
    "stages": GROUND | COMPUTATION | {"storage", "stages"},
}
MODULES = sorted([*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "stages").rglob("*.py")])


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _floor(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "stages":
        return "stages"
    if parts[1] in GROUND or parts == ("pipeline", "__init__"):
        return "ground"
    return "storage" if parts[1] == "storage" else "computation"


def _rooms(imports: set[str]) -> set[str]:
    rooms = {name.split(".")[1] for name in imports if name.startswith("pipeline.")}
    return rooms | ({"stages"} if any(name.split(".")[0] == "stages" for name in imports) else set())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_upwards(path: Path) -> None:
    imports, floor = _imports(path), _floor(path)
    assert _rooms(imports) <= ALLOWED[floor]
    if floor == "storage":
        assert not {name.split(".")[0] for name in imports} & {"torch", "torchvision", "faiss"}
    if floor == "computation":
        # Planning is about the configuration; every other room is told what it needs.
        told = {name for name in imports if name.startswith("pipeline.config.section")}
        assert "config" not in _rooms(imports - told) or path.parent.name == "plan"
        assert not {name.split(".")[0] for name in imports} & {"h5py", "click"}


@pytest.mark.parametrize("path", sorted((ROOT / "stages").glob("*.py")), ids=lambda p: p.name)
def test_stages_do_not_import_stages(path: Path) -> None:
    ours = {name.split(".")[1] for name in _imports(path) if name.startswith("stages.")}
    assert ours <= {"boxes", "generators", "options", "inputs", "scores", "starts"}


def test_help_is_light() -> None:
    heavy = ["torch", "torchvision", "faiss", "h5py", "snakemake", "numpy", "pyarrow", "pydantic", "scipy"]
    code = (
        "import sys; from click.testing import CliRunner; from stages.cli import cli\n"
        "result = CliRunner().invoke(cli, ['--help']); assert result.exit_code == 0, result.output\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_every_command_has_a_help_line() -> None:
    from stages.cli import COMMANDS, cli

    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert command.name == name
        assert command.get_short_help_str(), name
