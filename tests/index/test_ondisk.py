"""Inverted lists in a file: the same answers as in memory, in little memory, wherever the bundle is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run, make_stage, write_config
from test_build import ANY, clustered

from pipeline.errors import IntegrityError, JointspaceError, UsageError
from pipeline.index.build import build_index
from pipeline.index.candidates import build, unwatched
from pipeline.index.format import from_bytes, map_lists, to_bytes, view_bytes
from pipeline.index.ondisk import ListsFile, build_on_disk, goes_on_disk, to_bytes_naming
from pipeline.index.requirements import Requirements
from pipeline.index.search import Searcher
from pipeline.index.tuning import stages_of
from pipeline.index.vectors import ArrayVectors
from pipeline.run.layout import Layout
from pipeline.storage.bundle import Bundle


def assert_same_answers(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Scores and rows of two indices of the same vectors, which were added in blocks of other sizes.

    A product of matrices is rounded by its size and by the processor, and the transformed vectors are such products, as
    are the distances that choose a list. So scores are equal to single precision, neighbours as near as that may change
    places, and a vector as near to two lists may be in either: of 2,000 answers ten may be others.
    """
    close = np.isclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert close.mean() >= 0.995 and (found[1] == expected[1]).mean() >= 0.995


@pytest.mark.parametrize("factory", ["IVF50,Flat", "IVF50,SQ8", "PCA8,IVF50,Flat", "IVF50,RaBitQ4"])
@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_the_answers_are_those_of_the_index_in_memory(tmp_path: Path, factory: str, metric: str) -> None:
    vectors, queries = clustered(6000, 16)
    expected = build(factory, ArrayVectors(vectors), metric).index
    built = build_on_disk(factory, ArrayVectors(vectors, 1700), metric, tmp_path / "written", unwatched)
    data = to_bytes_naming(built.index, "images.lists")
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    (tmp_path / "moved").mkdir()
    lists = (tmp_path / "written").rename(tmp_path / "moved" / "images.lists")
    index = map_lists(data, "images.faiss", {"count": 6000, "dim": 16, "metric": metric}, lists)
    for nprobe in (1, 7):
        for one in (index, expected):
            stages_of(one).inverted.nprobe = nprobe
        assert_same_answers(index.search(queries, 10), expected.search(queries, 10))


def test_other_answers_are_found_out() -> None:
    """The tolerance is not that of another index: lists in another order, or one list fewer looked at."""
    vectors, queries = clustered(6000, 16)
    index = build("IVF50,Flat", ArrayVectors(vectors), "inner_product").index
    answers = {}
    for nprobe in (6, 7):
        stages_of(index).inverted.nprobe = nprobe
        answers[nprobe] = index.search(queries, 10)
    for scores, rows in (answers[6], (answers[7][0], answers[7][1][:, ::-1])):
        with pytest.raises(AssertionError):
            assert_same_answers((scores, rows), answers[7])


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from pipeline.index.format import from_bytes, map_lists
folder, kind = Path(sys.argv[1]), sys.argv[2]
card = {"count": 300_000, "dim": 128, "metric": "inner_product"}
def most():  # of this process alone: ru_maxrss begins with its parent's
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = most()
data = (folder / f"{kind}.faiss").read_bytes()
index = from_bytes(data, "it", card) if kind == "whole" else map_lists(data, "it", card, folder / "images.lists")
index.search(np.ones((1, 128), np.float32), 10)
print(most() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured as Linux tells it")
def test_little_of_it_is_in_memory(tmp_path: Path) -> None:
    vectors = ArrayVectors(np.random.default_rng(0).standard_normal((300_000, 128), dtype=np.float32))
    lists = tmp_path / "images.lists"
    built = build_on_disk("IVF64,Flat", vectors, "inner_product", lists, unwatched)
    (tmp_path / "mapped.faiss").write_bytes(to_bytes_naming(built.index, lists.name))
    (tmp_path / "whole.faiss").write_bytes(to_bytes(build("IVF64,Flat", vectors, "inner_product").index))
    kilobytes = {}
    for kind in ("mapped", "whole"):
        kilobytes[kind] = int(subprocess.check_output([sys.executable, "-c", MEMORY, tmp_path, kind]).splitlines()[-1])
    assert kilobytes["whole"] > 150_000 > 5 * kilobytes["mapped"], kilobytes


def test_only_inverted_files_go_on_disk(tmp_path: Path) -> None:
    assert goes_on_disk("IVF9,SQ8") and goes_on_disk("OPQ8_16,IVF9,PQ8x8")
    assert not any(map(goes_on_disk, ("HNSW32", "Flat", "IVF9,PQ4x4fsr", "IVF9,PQ8,Refine(SQ8)", "IVF9,PQ8,RFlat")))
    vectors, queries = clustered(2000, 16)
    lists = ListsFile(tmp_path / "lists", "lists")
    for factory in ("HNSW32", "IVF9,PQ4x4fsr"):
        asked = Requirements(**{**ANY, "candidates": (factory,)})
        with pytest.raises(UsageError, match=f"{factory} has no inverted lists that can be on disk or in pieces"):
            build_index(ArrayVectors(vectors), queries, "inner_product", asked, place=lists)
    asked = Requirements(**{**ANY, "candidates": "auto", "exact_limit": 5000, "memory": 1})
    built = build_index(ArrayVectors(vectors), queries, "inner_product", asked, place=lists)
    assert goes_on_disk(built.card.factory) and built.card.bytes == len(built.data) + lists.path.stat().st_size


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 1000))
    vectors, _ = clustered(2000, 16)
    with pytest.raises(JointspaceError, match="1,000 bytes free and lists on disk need 292,000"):
        build_on_disk("IVF9,Flat", ArrayVectors(vectors), "inner_product", tmp_path / "lists", unwatched)
    assert not list(tmp_path.iterdir())


def test_stdout_is_left_to_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=80)
    write_config(run, {"index": {"candidates": ["IVF2,Flat"], "sample": 1000, "recall_floor": 0.7}})
    command = [sys.executable, "-m", "stages.cli", "build-index", "ncca", "--run", run, "--on-disk"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == "" and "resizing" in told.stderr  # which is what FAISS prints there


def test_a_bundle_on_disk_is_searched_where_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=80)
    write_config(run, {"index": {"candidates": ["IVF2,Flat"], "sample": 1000, "recall_floor": 0.7}})
    folder = build_bundle(run, on_disk=True).rename(tmp_path / "moved")
    bundle = Bundle(folder)
    bundle.check()
    assert {"images.lists", "sentences.lists"} <= set(bundle.card["files"]) and not list(folder.glob(".*"))
    assert str(run).encode() not in (folder / "images.faiss").read_bytes()
    assert Searcher(bundle).images("dog", 1)[0].row["path"].startswith("dog")
    shutil.copytree(folder, run / "index/ncca")
    make_stage("evaluate", run, "ncca", "test", "all-sentences", "--through-index")
    evaluation = json.loads(Layout(run).evaluation("ncca", "test", "all-sentences").path.read_text())
    assert evaluation["through_index"]["sentence_to_image"]
    for command, more in (("index_add", ()), ("index_remove", ("--image", 3))):
        with pytest.raises(UsageError, match="moved has its inverted lists on disk, which cannot change; run"):
            make_stage(command, run, "--index", folder, *more, "--output", tmp_path / "changed")
    data = (folder / "images.lists").read_bytes()
    (folder / "images.lists").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="images.lists is not what its card says"):
        Searcher(Bundle(folder)).images("dog", 1)
    (folder / "images.lists").unlink()
    with pytest.raises(IntegrityError, match="images.lists is missing"):
        Searcher(Bundle(folder)).images("dog", 1)


@pytest.mark.parametrize("factory", ["IVF50,Flat", "PCA8,IVF50,Flat"])
def test_an_index_names_no_file_outside_of_its_bundle(tmp_path: Path, factory: str) -> None:
    """FAISS opens the file that the bytes name, and writes to it what is added to the index."""
    vectors, _ = clustered(6000, 16)
    victim, card = tmp_path / "victim", {"count": 6000, "dim": 16, "metric": "euclidean"}
    built = build_on_disk(factory, ArrayVectors(vectors), "euclidean", victim, unwatched)
    data, whole = to_bytes(built.index), victim.read_bytes()
    (tmp_path / "images.lists").write_bytes(whole)
    for read in (from_bytes, view_bytes):
        with pytest.raises(IntegrityError, match=f"images.faiss has its lists in '{victim}', which is not in"):
            read(data, "images.faiss", card)
    named = bytes(data) + len(b"images.lists").to_bytes(8, "little") + b"images.lists"  # FAISS reads no such ending
    with pytest.raises(IntegrityError, match="does not name images.lists as its lists"):
        map_lists(named, "images.faiss", card, tmp_path / "images.lists")
    assert victim.read_bytes() == whole
