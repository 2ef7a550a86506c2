"""The programs in the documentation run as they stand there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run

from pipeline.config import default_path
from pipeline.config.reference import render
from pipeline.storage.bundle import Bundle
from pipeline.storage.shards import FEATURES, write_shard

ROOT = Path(__file__).parents[1]
PROGRAMS = re.findall(r"^## (.+?)\n+```python\n(.+?)```", (ROOT / "docs" / "artefacts.md").read_text(), re.S | re.M)
ANSWERS = {
    "Features with h5py": "(24, 3) float32 [0 1 2]",
    "Which image is which, with pyarrow": "24 [{'image_id': 0, 'path': 'dog-0.png', 'split': 'train'}]",
    "A model's matrices with safetensors": "model {",
    "Nearest images of an image, with faiss": "[('dog-0.png', ",
    "An index in pieces, with faiss": "[10, 10, 4] 24 (1, 3)",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    in_pieces = {"exact_limit": 5, "piece": 10, "candidates": ["IVF2,SQ8"], "sample": 1000, "recall_floor": 0.1}
    build_bundle(folder, {"index": in_pieces}, output="pieces")
    build_bundle(folder)
    arrays = {"features": np.ones((24, 3), np.float32), "image_id": np.arange(24)}
    write_shard(folder / "features" / "shard-00000.h5", FEATURES, arrays, rows=24, details={})
    return folder


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_the_programs_of_the_documentation_run(run: Path, tmp_path: Path, title: str, program: str) -> None:
    places = {
        "Features": "features",
        "Which": "manifest",
        "A model's": "models/ncca",
        "Nearest": "bundle",
        "An index": "pieces",
    }
    folder = next(run / place for first, place in places.items() if title.startswith(first))
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(ANSWERS[title])


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of one run whose indices are of each kind that `build-index` makes."""
    run, found = make_run(tmp_path_factory.mktemp("kinds") / "run", images=80), {}
    for kind, factory, on_disk in (
        ("flat", "Flat", False),
        ("inverted", "IVF4,Flat", False),
        ("refined", "IVF2,PQ4x4fsr,RFlat", False),
        ("on-disk", "IVF4,Flat", True),
    ):
        limit = 1000 if factory == "Flat" else 10
        index = {"exact_limit": limit, "candidates": [factory], "sample": 1000, "recall_floor": 0.5}
        found[kind] = build_bundle(run, {"index": index}, output=kind, on_disk=on_disk)
        assert Bundle(found[kind]).card["images"]["factory"] == factory
    return found


@pytest.mark.parametrize("kind", ["flat", "inverted", "refined", "on-disk"])
def test_every_kind_of_index_is_read_by_the_programs_of_the_documentation(
    bundles: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    moved = shutil.copytree(bundles[kind], tmp_path / "elsewhere")
    (tmp_path / "program.py").write_text(dict(PROGRAMS)["Nearest images of an image, with faiss"])
    for arguments in ([tmp_path / "program.py", moved], [ROOT / "examples" / "query_bundle.py", moved, "0"]):
        command = [sys.executable, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert re.findall(r"[a-z]+-\d+\.png", result.stdout)[0] == "dog-0.png", result.stdout


def test_the_reference_of_keys_is_of_this_configuration() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == render(default_path().read_text())


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.md")) + sorted(ROOT.glob("*.md")), ids=lambda path: path.name
)
def test_links_inside_the_documentation_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_documentation_is_a_site_without_a_broken_link(tmp_path: Path) -> None:
    """Anchors too; every page is in the navigation."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    built = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
        "-d",
        built,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not included in the" not in result.stderr, result.stderr
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= {one.name for one in built.iterdir()}
    assert not re.search(r'(src|href)="https?://(?!squidfunk)', (built / "tutorial/index.html").read_text()), (
        "from elsewhere"
    )
