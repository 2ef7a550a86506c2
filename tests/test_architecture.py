"""The layering of the house, read from the imports themselves."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
GROUND = {
    "arrow_tables",
    "clusters",
    "config",
    "device",
    "disk_tables",
    "errors",
    "given_vectors",
    "hubs",
    "hugging_face",
    "image_names",
    "mapreduce",
    "multivectors",
    "named_arrays",
    "onnx_graphs",
    "parquet_photographs",
    "plain_files",
    "precision",
    "printable",
    "private_folders",
    "ragged",
    "remote",
    "runtime",
    "trial",
    "worker_process",
    "workers",
}
# What each room may import of ours beside the ground floor.
ROOMS = {
    "storage": set(),
    "collections": set(),
    "metrics": set(),
    "images": set(),
    "text": set(),
    "models": {"metrics", "text"},
    "index": {"metrics", "text", "images"},
    "evaluate": {"metrics", "index"},
    "generate": {"images", "text", "models", "index"},
    "plan": set(),
    "run": {"storage", "plan"},
    "report": {"metrics", "images", "index", "evaluate", "plan"},
    "serve": {"index", "generate"},
}
MODULES = sorted(path for room in ("pipeline", "stages", "jointspace") for path in (ROOT / room).rglob("*.py"))


class Source(NamedTuple):
    """What a file says of itself: the modules that it `imports`, wherever in it, and those that it `needs`, all but
    those that only annotations name; what is `taken` from each module; its `classes`, and all `names` in it."""

    imports: set[str]
    needs: set[str]
    taken: list[tuple[str, str]]
    classes: list[str]
    names: set[str | None]


@cache
def _source(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    unseen = {
        id(one)
        for node in nodes
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for one in ast.walk(node)
    }
    whole = [node for node in nodes if isinstance(node, ast.Import)]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    by_node = {id(node): {alias.name for alias in node.names} for node in whole}
    by_node |= {id(node): {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} for node in parts}
    named = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Name | ast.alias))
    return Source(
        set().union(*by_node.values()),
        set().union(*(names for node, names in by_node.items() if node not in unseen)),
        [(node.module, alias.name) for node in parts for alias in node.names],
        [node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        {getattr(node, "name", None) or getattr(node, "id", None) for node in named},
    )


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_what_its_line_says(path: Path) -> None:
    imports, room = _source(path).imports, _room(_module(path))
    if not path.is_relative_to(ROOT / "jointspace"):
        assert not any(name.split(".")[0] == "jointspace" for name in imports)
    if not path.is_relative_to(ROOT / "pipeline"):
        return
    ours = {name for name in imports if name.startswith("pipeline.")}
    allowed = GROUND | ({room} if room not in GROUND else set()) | ROOMS.get(room, set())
    foreign = {name for name in ours if _room(name) not in allowed}
    assert foreign == set()
    assert not any(name.split(".")[0] in ("stages", "benchmarks", "examples") for name in imports)
    libraries = {name.split(".")[0] for name in imports}
    if room == "storage":
        assert not libraries & {"torch", "torchvision", "faiss"}
    elif room not in GROUND | {""}:
        assert not libraries & {"h5py", "click"}


def test_modules_form_no_circle() -> None:
    """Imports within functions count: they hide a circle, and do not end it."""
    known = {_module(path): path for path in MODULES}
    graph = {name: (_source(path).needs & known.keys()) - {name} for name, path in known.items()}
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    while leaves := {name for name, needed in graph.items() if not needed & graph.keys() - packages}:
        graph = {name: needed for name, needed in graph.items() if name not in leaves}
    assert sorted(graph) == []


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


@pytest.mark.parametrize("path", sorted((ROOT / "stages").rglob("*.py")), ids=lambda p: p.name)
def test_stages_do_not_import_stages(path: Path) -> None:
    ours = {name.split(".")[1] for name in _source(path).imports if name.startswith("stages.")}
    assert ours <= {
        "applied", "boxes", "bundled", "catalogue", "closing", "commands", "generators", "given",
        "indices", "inputs", "piece_upkeep", "pieces", "rates", "requirements", "studies", "texts",
    }  # fmt: skip


def test_help_is_light() -> None:
    heavy = ["torch", "torchvision", "faiss", "h5py", "snakemake", "numpy", "pyarrow", "pydantic", "scipy"]
    code = (
        "import sys; from click.testing import CliRunner; from stages.cli import cli\n"
        "result = CliRunner().invoke(cli, ['--help']); assert result.exit_code == 0, result.output\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_a_query_in_words_is_light() -> None:
    heavy = [
        "torch", "scipy.sparse", "scipy.linalg", "sklearn", "nltk", "simplemma", "spacy", "pyarrow.compute",
        "importlib.metadata", "pipeline.config.keys", "pipeline.models.linear.training", "pipeline.text.parsing",
    ]  # fmt: skip
    code = (
        "import sys\n"
        "from pipeline.index.search import Searcher; from pipeline.storage.bundle import Bundle\n"
        "from pipeline.config.registry.models import model_spec\n"
        "from pipeline.config.registry.stored import restore_text_encoder\n"
        "model_spec('ncca').load()\n"
        "words = dict(lowercase=True, tokenizer='words', lemmatise=True, stop_words=['the'], max_ngram=2)\n"
        "made = {'settings': {**words, 'lemmas': {'dogs': 'dog', 'run': 'run'}}, 'normalise': True}\n"
        "terms = {'terms': ['dog', 'run', 'dog run'], 'idf': [1.0, 2.0, 2.0], 'n_sentences': 4}\n"
        "encoder = restore_text_encoder({'kind': 'tf-idf', **made, **terms}, {})\n"
        "found = encoder.encode_query(['The dogs run'])\n"
        "assert [round(float(x), 3) for x in found[0]] == [.333, .667, .667]\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_the_public_package_imports_nothing_before_it_is_used() -> None:
    code = (
        "import sys, jointspace; assert sorted(jointspace.__all__) == dir(jointspace)\n"
        "print([name for name in ('torch', 'faiss', 'numpy', 'pydantic', 'pipeline') if name in sys.modules])\n"
        "assert [getattr(jointspace, name) for name in jointspace.__all__]"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_every_command_has_a_help_line() -> None:
    from stages.catalogue import COMMANDS
    from stages.cli import cli
    from stages.commands import first_sentence

    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert command.name == name
        line = first_sentence(command)
        assert line.endswith(".") and line.count("(") == line.count(")"), f"{name}: {line!r} is cut"


def test_names_of_classes_are_unique() -> None:
    where: dict[str, list[str]] = {}
    for folder in ("pipeline", "stages", "jointspace", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in _source(path).classes:
                where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
