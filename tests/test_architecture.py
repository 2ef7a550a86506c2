"""The layering of the house, read from the imports themselves."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import jointspace

ROOT = Path(__file__).parents[1]
LOOSE_MODULES = {"errors", "printable"}
"""The only modules of `pipeline` outside of its packages."""
GROUND = LOOSE_MODULES | {"compute", "config"}
"""Packages and modules that every package may import."""
EVERYTHING = {path.name for path in (ROOT / "pipeline").iterdir() if path.is_dir()}
# What each room may import of ours beside the ground floor.
ROOMS: dict[str, set[str]] = {
    "images": set(),
    "foreign": {"images"},
    "storage": {"foreign"},
    "collections": {"foreign", "storage"},
    "metrics": set(),
    "text": set(),
    "encoders": {"foreign", "images", "text"},
    "models": {"encoders", "metrics", "text"},
    "index": {"encoders", "foreign", "text"},
    "evaluate": {"metrics", "index"},
    "generate": {"encoders", "images", "text", "models", "index"},
    "plan": set(),
    "run": {"models", "storage", "plan"},
    "report": {"metrics", "images", "index", "evaluate", "plan"},
    "serve": {"index", "generate"},
    "papers": {"metrics", "models", "evaluate"},
    "demo": set(),
    "reading": EVERYTHING,  # pipeline.run.reading, which the rest of `run` may not import
}
SHARED_BY_STAGES = {"catalogue", "commands"}
"""Modules of `stages` that a stage may import. It may not import another stage."""
ABOVE = {"stages", "benchmarks", "examples", "jointspace"}
MODULES = sorted(path for room in ("pipeline", "stages", "jointspace") for path in (ROOT / room).rglob("*.py"))


class Source(NamedTuple):
    """What a file says of itself: the modules that it `imports`, wherever in it; those that it `needs` for more than
    annotations; what is `taken` from each module; all `names` in it."""

    imports: set[str]
    needs: set[str]
    taken: list[tuple[str, str]]
    names: set[str | None]


@cache
def _source(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    annotating = {
        id(inside)
        for node in nodes
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for inside in ast.walk(node)
    }
    named = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Name | ast.alias))
    return Source(
        _imported(nodes),
        _imported([node for node in nodes if id(node) not in annotating]),
        [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names],
        {getattr(node, "name", None) or getattr(node, "id", None) for node in named},
    )


def _imported(nodes: list[ast.AST]) -> set[str]:
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return whole | {
        name for node in parts for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names))
    }


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    if module.startswith("pipeline.run.reading"):
        return "reading"
    return module.split(".")[1] if "." in module else ""


def _foreign(path: Path) -> set[str]:
    """What a module imports beside what its room may."""
    imports, room = _source(path).imports, _room(_module(path))
    tops = {name.split(".")[0] for name in imports}
    if path.is_relative_to(ROOT / "jointspace"):
        return tops & {"benchmarks", "examples"}
    if path.is_relative_to(ROOT / "stages"):
        ours = {name for name in imports if name.startswith("stages.") and name.split(".")[1] not in SHARED_BY_STAGES}
        return ours | tops & {"jointspace", "benchmarks", "examples"}
    allowed = GROUND | ({room} if room not in GROUND else set()) | ROOMS.get(room, set())
    foreign = {name for name in imports if name.startswith("pipeline.") and _room(name) not in allowed}
    if room == "storage":
        return foreign | tops & {"torch", "torchvision", "faiss", *ABOVE}
    if room not in GROUND | {"", "foreign"}:
        return foreign | tops & {"h5py", "click", *ABOVE}
    return foreign | tops & ABOVE


def test_every_module_imports_what_its_line_says() -> None:
    offenders = {_module(path): sorted(_foreign(path)) for path in MODULES}
    assert {module: foreign for module, foreign in offenders.items() if foreign} == {}


def test_no_module_is_loose() -> None:
    assert {path.stem for path in (ROOT / "pipeline").glob("*.py")} == LOOSE_MODULES | {"__init__"}
    assert {path.stem for path in (ROOT / "stages").glob("*.py")} == SHARED_BY_STAGES | {"cli", "__init__"}


def test_files_form_no_circle() -> None:
    """Imports within functions count, which would hide a circle; those that only annotate do not, since nothing runs by
    them. A CycleError names the files."""
    files = {_module(path): path for path in MODULES if path.name != "__init__.py"}
    TopologicalSorter({name: (_source(path).needs & files.keys()) - {name} for name, path in files.items()}).prepare()


def test_what_is_imported_of_ours_is_there() -> None:
    """Also what only functions import, which no other test may call."""
    ours = [
        path
        for folder in ("pipeline", "stages", "jointspace", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    names = {_module(path): _source(path).names for path in ours}
    for path in [*ours, *(ROOT / "tests").rglob("*.py")]:
        for module, name in _source(path).taken:
            if module.split(".")[0] in ("pipeline", "stages", "jointspace"):
                found = name in names.get(module, ()) or f"{module}.{name}" in names
                assert found, f"{path.relative_to(ROOT)}: {module} has no {name}"


HEAVY = ["torch", "torchvision", "faiss", "h5py", "snakemake", "scipy", "numpy"]
HELP = (
    "from click.testing import CliRunner; from stages.cli import cli;"
    " assert CliRunner().invoke(cli, ['--help']).exit_code == 0"
)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("from pipeline.config.loading import load; load()", []),
        (HELP, ["pyarrow", "pydantic"]),
        ("import jointspace; assert sorted(jointspace.__all__) == dir(jointspace)", ["pydantic", "pipeline"]),
    ],
    ids=["a configuration", "help", "the public package"],
)
def test_nothing_heavy_is_imported_for(what: str, more: list[str]) -> None:
    code = f"import sys; {what}; print([name for name in {HEAVY + more} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_the_public_package_has_what_it_names() -> None:
    assert [getattr(jointspace, name) for name in jointspace.__all__]


def test_every_command_has_a_help_line() -> None:
    from stages.catalogue import COMMANDS
    from stages.cli import cli
    from stages.commands import first_sentence

    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert command.name == name
        line = first_sentence(command.help)
        assert line.endswith(".") and line.count("(") == line.count(")"), f"{name}: {line!r} is cut"


def test_what_ruff_does_not_see_loads_no_code() -> None:
    """By their defaults old versions of torch unpickle what they read."""
    calls = [call for path in MODULES for call in re.findall(r"(?<!s\.)\b(?:torch|np)\.load\(.*", path.read_text())]
    assert len(calls) > 3 and all(re.search("weights_only=True|allow_pickle=False", call) for call in calls), calls
