"""The programs in the documentation run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run

from pipeline.storage.shards import FEATURES, write_shard
from stages.catalogue import COMMANDS
from stages.reference import render

ROOT = Path(__file__).parents[1]
PROGRAMS = re.findall(r"^## (.+?)\n+```python\n(.+?)```", (ROOT / "docs" / "artefacts.md").read_text(), re.S | re.M)
ANSWERS = {
    "Features with h5py": "(24, 3) float32 [0 1 2]",
    "Which image is which, with pyarrow": "24 [{'image_id': 0, 'path': 'dog-0.png', 'split': 'train'}]",
    "Nearest images of an image, with faiss": "[('dog-0.png', ",
    "Several bundles, with faiss": "[(1.0, 'dog-0.png'), ",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder, {"index": {"bundles": 3}}, output="several")
    build_bundle(folder)
    arrays = {"features": np.ones((24, 3), np.float32), "image_id": np.arange(24)}
    write_shard(folder / "features" / "shard-00000.h5", FEATURES, arrays, rows=24, details={})
    return folder


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_the_programs_of_the_documentation_run(
    run: Path, title: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    places = {
        "Features": "features",
        "Which": "manifest",
        "Nearest": "bundle",
        "Several": "several",
    }
    folder = next(run / place for first, place in places.items() if title.startswith(first))
    monkeypatch.setattr(sys, "argv", ["program.py", str(folder)])
    exec(program, {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.startswith(ANSWERS[title])


def test_the_page_of_stages_is_what_its_generator_prints_and_has_every_command() -> None:
    page = (ROOT / "docs/stages.md").read_text()
    assert render() == page
    assert sorted(re.findall(r"^\| `([\w-]+)`", page, flags=re.M)) == sorted(COMMANDS)


def test_links_inside_the_documentation_lead_somewhere() -> None:
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_documentation_is_a_site_without_a_broken_link(tmp_path: Path) -> None:
    """Anchors too; every page is in the navigation."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    built = tmp_path / "site"
    words = ["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "-d", str(built)]
    command = [sys.executable, "-m", "mkdocs", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not included in the" not in result.stderr, result.stderr
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= {one.name for one in built.iterdir()}
    assert not re.search(r'(src|href)="https?://(?!squidfunk)', (built / "tutorial/index.html").read_text()), (
        "from elsewhere"
    )


def test_the_functions_of_the_way_from_a_photo_to_the_index_are_there() -> None:
    page = (ROOT / "docs/extending.md").read_text().partition("## From photo to index")[2]
    for file, names in re.findall(r"`([\w/]+\.py):(\w[\w.]*`(?:, `\w[\w.]*`)*)", page):
        path = ROOT / file if file.startswith(("stages/", "pipeline/")) else ROOT / "pipeline" / file
        text = path.read_text()
        for name in re.findall(r"[\w.]*\w", names):
            missing = [part for part in name.split(".") if not re.search(rf"^ *(def|class) {part}\b", text, flags=re.M)]
            assert name.endswith(".py") or not missing, f"{file} has no {name}"
