"""No path on which a file could run code: read from the sources themselves."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("pipeline", "stages", "jointspace", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MUST_SAY = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
FORBIDDEN = {("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("torch", "save")}
ALLOWED = {"UnpicklingError"}
"""What torch.load raises for a file that is none of tensors alone; a name, and no loader."""
BETWEEN_PROCESSES = "pipeline/workers.py"
"""Has what this process's own children send, by a pipe that pickles, too, and reads no file."""


def offences(source: str) -> list[str]:
    """What a source does that could load or write a pickle, with its lines."""
    tree, found, modules = ast.parse(source), [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names if name.name.split(".")[0] in LOADERS - {"pickle"}}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LOADERS:
            modules.add(node.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = node.value.id.replace("numpy", "np"), node.attr
            if pair[0] == "pickle" and pair[1] not in ALLOWED:
                found.append(f"line {node.lineno}: pickle.{pair[1]}")
            elif pair in FORBIDDEN:
                found.append(f"line {node.lineno}: {'.'.join(pair)}")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).replace("numpy.", "np.")
            said = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
            if called in MUST_SAY and said.get(MUST_SAY[called][0]) is not MUST_SAY[called][1]:
                found.append(f"line {node.lineno}: {called} without {MUST_SAY[called]}")
            elif said.get("allow_pickle", False) is not False or called in ("eval", "exec"):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found + [f"imports {module}" for module in sorted(modules)]


def test_no_source_can_load_code() -> None:
    found = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in SOURCES}
    between = found.pop(BETWEEN_PROCESSES)
    assert between and all("pickle" in line for line in between), between
    assert {path: lines for path, lines in found.items() if lines} == {}
