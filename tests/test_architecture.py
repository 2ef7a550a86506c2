"""Tests of the layering of the packages: each package may import only certain other packages."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import jointspace

ROOT = Path(__file__).parents[1]
LOOSE_MODULES = {"errors", "printable"}
"""The modules of `pipeline` that are in none of its packages."""
COMMON_MODULES = LOOSE_MODULES | {"compute", "config"}
"""Modules and packages of `pipeline` that all of its packages may import."""
ALL_PACKAGES = {path.name for path in (ROOT / "pipeline").iterdir() if path.is_dir()}
# Mapping from a package to the packages of `pipeline` that it may import, in addition to COMMON_MODULES.
ALLOWED_IMPORTS: dict[str, set[str]] = {
    "images": set(),
    "foreign": {"images"},
    "storage": {"foreign"},
    "collections": {"foreign", "storage"},
    "metrics": set(),
    "text": set(),
    "encoders": {"foreign", "images", "text"},
    "models": {"encoders", "metrics", "text"},
    "index": {"encoders", "foreign", "models", "storage", "text"},
    "generate": {"encoders", "text", "models", "index"},
    "run": {"storage"},
    "report": {"metrics", "images", "index", "storage"},
    "serve": {"index", "generate", "storage"},
    "papers": {"metrics", "models"},
    "demo": set(),
    "reading": ALL_PACKAGES,  # This is pipeline.run.reading, which the other modules of `run` may not import.
}
# Mapping from a package to additional packages that it may import for annotations only, under TYPE_CHECKING.
ANNOTATION_IMPORTS: dict[str, set[str]] = {"collections": {"images"}, "run": {"models"}}
SHARED_BY_STAGES = {"catalogue", "commands"}
"""Modules of `stages` that a stage may import. A stage may not import another stage."""
ABOVE = {"stages", "benchmarks", "examples", "jointspace"}
KNOWN_CYCLES: set[frozenset[str]] = set()
"""Groups of modules that import each other although they should not. Each group is a task to separate its modules."""
MODULES = sorted(path for room in ("pipeline", "stages", "jointspace") for path in (ROOT / room).rglob("*.py"))


class Source(NamedTuple):
    """The imports and the names of one Python file. Imports inside functions and under TYPE_CHECKING are included."""

    modules: set[str]
    """The modules that the file imports by `import MODULE`."""
    taken: list[tuple[str, str]]
    """Pairs (MODULE, NAME) of `from MODULE import NAME`, as the file has them."""
    names: set[str | None]
    """All names that the file defines, imports or uses, also inside functions and classes."""
    imports: set[str]
    """Every module that the file imports. `from a import b` adds both `a` and `a.b`, because `b` may be a module."""
    executed: set[str]
    """The members of `imports` that are imported outside of TYPE_CHECKING blocks."""


@cache
def _source(path: Path) -> Source:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    blocks = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    annotating = {id(node) for block in blocks for statement in block.body for node in ast.walk(statement)}
    named = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Name | ast.alias))
    return Source(
        {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names},
        [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names],
        {getattr(node, "name", None) or getattr(node, "id", None) for node in named},
        _imported(nodes),
        _imported([node for node in nodes if id(node) not in annotating]),
    )


def _imported(nodes: list[ast.AST]) -> set[str]:
    """Return the modules that the import statements among `nodes` import. `from a import b` adds `a` and `a.b`."""
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    return whole | {name for module, taken in parts for name in (module, f"{module}.{taken}")}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    if module.startswith("pipeline.run.reading"):
        return "reading"
    return module.split(".")[1] if "." in module else ""


def _foreign(path: Path) -> set[str]:
    """Return the modules and packages that the file `path` imports, although its package may not import them."""
    imports = _source(path).imports
    executed = _source(path).executed
    room = _room(_module(path))
    tops = {name.split(".")[0] for name in imports}
    if path.is_relative_to(ROOT / "jointspace"):
        return tops & {"benchmarks", "examples"}
    if path.is_relative_to(ROOT / "stages"):
        ours = {name for name in imports if name.startswith("stages.") and name.split(".")[1] not in SHARED_BY_STAGES}
        return ours | tops & {"jointspace", "benchmarks", "examples"}
    allowed = COMMON_MODULES | ({room} if room not in COMMON_MODULES else set()) | ALLOWED_IMPORTS.get(room, set())
    others = {name for name in imports if name.startswith("pipeline.") and _room(name) not in allowed}
    foreign = {name for name in others if name in executed or _room(name) not in ANNOTATION_IMPORTS.get(room, set())}
    if room == "storage":
        return foreign | tops & {"torch", "torchvision", "faiss", *ABOVE}
    if room not in COMMON_MODULES | {"", "foreign"}:
        return foreign | tops & {"h5py", "click", *ABOVE}
    return foreign | tops & ABOVE


def test_every_package_imports_only_the_packages_below_it() -> None:
    offenders = {_module(path): sorted(_foreign(path)) for path in MODULES}
    assert {module: foreign for module, foreign in offenders.items() if foreign} == {}


def test_every_allowed_import_is_used() -> None:
    imported: dict[str, set[str]] = {room: set() for room in ALLOWED_IMPORTS}
    annotated: dict[str, set[str]] = {room: set() for room in ALLOWED_IMPORTS}
    for path in (ROOT / "pipeline").rglob("*.py"):
        source = _source(path)
        room = _room(_module(path))
        if room in ALLOWED_IMPORTS:
            imported[room] |= {_room(name) for name in source.executed if name.startswith("pipeline.")}
            annotated[room] |= {_room(name) for name in source.imports if name.startswith("pipeline.")}
    unneeded = {
        room: sorted(allowed - imported[room]) for room, allowed in ALLOWED_IMPORTS.items() if room != "reading"
    }
    unneeded |= {
        f"{room}, annotations": sorted(allowed - annotated[room]) for room, allowed in ANNOTATION_IMPORTS.items()
    }
    assert {room: packages for room, packages in unneeded.items() if packages} == {}


def test_every_module_of_the_pipeline_is_in_a_package() -> None:
    assert {path.stem for path in (ROOT / "pipeline").glob("*.py")} == LOOSE_MODULES | {"__init__"}
    assert {path.stem for path in (ROOT / "stages").glob("*.py")} == SHARED_BY_STAGES | {"cli", "__init__"}


def _import_cycles() -> set[frozenset[str]]:
    """Return the groups of modules of the project that import each other, directly or through other modules of the
    project. Each module is in at most one group.
    """
    sources = {_module(path): _source(path) for path in MODULES}
    needed: dict[str, set[str]] = {}
    for name, source in sources.items():
        taken = {f"{module}.{part}" if f"{module}.{part}" in sources else module for module, part in source.taken}
        needed[name] = (source.modules | taken) & sources.keys() - {name}
    reached = {name: _reachable(name, needed) for name in sources}
    groups = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in sources}
    return {group for group in groups if len(group) > 1}


def _reachable(start: str, needed: dict[str, set[str]]) -> set[str]:
    """Return all modules that `start` imports, directly or through other modules. `needed` maps a module to the modules
    that it imports directly."""
    found: set[str] = set()
    queue = [start]
    while queue:
        new = needed[queue.pop()] - found
        found |= new
        queue += new
    return found


def test_modules_import_each_other_only_in_the_known_cycles() -> None:
    """Imports for annotations are included. The test fails for a new cycle. It also fails for a cycle of KNOWN_CYCLES
    that has disappeared, which must then be deleted from KNOWN_CYCLES.
    """
    assert _import_cycles() == KNOWN_CYCLES


def test_every_imported_name_of_the_project_exists() -> None:
    """Every name that a file imports from the project is defined there. Imports inside functions are checked too,
    because possibly no other test runs them.
    """
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
                assert found, f"{path.relative_to(ROOT)} imports {name} from {module}, which does not define it"


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
def test_no_large_library_is_imported_for(what: str, more: list[str]) -> None:
    code = f"import sys; {what}; print([name for name in {HEAVY + more} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_the_public_package_defines_the_names_that_it_exports() -> None:
    assert [getattr(jointspace, name) for name in jointspace.__all__]


def test_every_command_has_a_help_line() -> None:
    from stages.catalogue import COMMANDS, first_sentence
    from stages.cli import cli

    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert command.name == name
        line = first_sentence(command.help)
        assert line.endswith(".") and line.count("(") == line.count(")"), f"{name}: {line!r} is cut"


def test_no_file_is_loaded_with_pickle() -> None:
    """Every call of `torch.load` and `np.load` in the project forbids pickled objects, which old versions of torch load
    by default.
    """
    calls = [call for path in MODULES for call in re.findall(r"(?<!s\.)\b(?:torch|np)\.load\(.*", path.read_text())]
    assert len(calls) > 3 and all(re.search("weights_only=True|allow_pickle=False", call) for call in calls), calls
