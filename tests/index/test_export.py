"""Exported indexes give the same results in the programs for which they are exported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from synthetic_run import features_of, run_command

from pipeline.index.search import Searcher
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index


@pytest.fixture
def bundle(run: Path) -> Path:
    return run / "bundle"


def make(bundle: Path, kind: str, output: Path) -> Path:
    run_command("export", bundle, "--to", kind, "--output", output)
    card = json.loads((output / "export.json").read_text())
    assert (card["model"], card["kind"], card["counts"]) == ("ncca", kind, {"images": 24, "sentences": 48})
    return output


@pytest.fixture
def query(bundle: Path) -> np.ndarray:
    return Searcher(open_index(bundle)).embed_image(features_of("dog"))[0]


@pytest.fixture
def right(bundle: Path) -> list[str]:
    """Return the paths of the images that are nearest to the query."""
    return [hit.row["path"] for hit in Searcher(open_index(bundle)).similar(features_of("dog"), 3)]


def test_exported_numpy_arrays_and_json_lines_give_the_same_results(
    run: Path, bundle: Path, query: np.ndarray, right: list[str], tmp_path: Path
) -> None:
    folder = make(bundle, "npy", tmp_path / "out")
    stored = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    for modality, count in (("images", 24), ("sentences", 48)):
        np.testing.assert_array_equal(np.load(folder / f"{modality}.npy"), stored.read(modality, np.arange(count)))
    rows = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
    assert [rows[at]["path"] for at in np.argsort(-(np.load(folder / "images.npy") @ query))[:3]] == right


BLOCKS = re.findall(r"```python\n(.+?)```", (Path(__file__).parents[2] / "docs/searching.md").read_text(), re.S)
PROGRAMS = [block for block in BLOCKS if "vectors/images.parquet" in block]


@pytest.mark.parametrize(("place", "module"), [(0, "lancedb"), (1, "qdrant_client"), (2, "numpy")])
def test_programs_of_the_documentation_read_the_exported_parquet(
    bundle: Path, tmp_path: Path, place: int, module: str
) -> None:
    assert len(PROGRAMS) == 3 and module in PROGRAMS[place]
    compile(PROGRAMS[place], module, "exec")
    pytest.importorskip(module)
    make(bundle, "parquet", tmp_path / "vectors")
    command = [sys.executable, "-c", PROGRAMS[place]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    if module == "numpy":
        table = pq.read_table(tmp_path / "clip/metadata/metadata_0.parquet")
        assert table["image_path"].to_pylist()[0] == "dog-0.png"
        assert np.load(tmp_path / "clip/img_emb/img_emb_0.npy").shape == (24, 8)
