"""Bundles that grow and shrink: what an id means never changes."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from made_up import build_bundle, make_run, make_stage, run_command, write_config

from pipeline.errors import InputError, IntegrityError, RejectLimitError, UsageError
from pipeline.index.search import Searcher
from pipeline.run.layout import Layout
from pipeline.storage.atomic import read_json, to_json
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest

FACTORIES = ["Flat", "IVF3,Flat", "HNSW8", "IVF2,PQ4x4fsr,RFlat"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of 80 images, and the same run grown to 96."""
    folder = tmp_path_factory.mktemp("runs")
    return {"small": make_run(folder / "small", images=80), "large": make_run(folder / "large", images=96)}


def bundle_of(run: Path, factory: str) -> Path:
    limit = 1000 if factory == "Flat" else 10
    write_config(run, {"index": {"exact_limit": limit, "candidates": [factory], "sample": 1000, "recall_floor": 0.7}})
    return build_bundle(run)


def vectors_by_id(bundle: Path, run: Path, modality: str) -> None:
    """Every alive row's own vector finds that row, and no removed row is ever found."""
    table, index = Bundle(bundle).table(modality), faiss.read_index(str(bundle / f"{modality}.faiss"))
    number = "image_id" if modality == "images" else "sentence_id"
    told = "path" if modality == "images" else "text"
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    alive = [row for row, what in enumerate(table[told].to_pylist()) if what is not None]
    vectors = embeddings.read(modality, table[number].to_numpy()[alive])
    assert index.ntotal == len(alive)
    scores, found = index.search(vectors, min(30, len(alive)))
    assert set(found.ravel()) <= {-1, *alive}
    stored = {row: vector for row, vector in zip(alive, vectors, strict=True)}
    if modality == "sentences" and isinstance(faiss.downcast_index(index), faiss.IndexIDMap | faiss.IndexHNSW):
        return  # many sentences are the same vector, and a graph of these falls apart
    for i, row in enumerate(alive):
        best = scores[i] >= scores[i, 0] - 1e-2
        assert any(np.allclose(stored[hit], stored[row], atol=0.02) for hit in found[i][best] if hit >= 0)


@pytest.mark.parametrize("factory", FACTORIES)
def test_added_then_removed_then_added(runs: dict[str, Path], tmp_path: Path, factory: str) -> None:
    start = bundle_of(runs["small"], factory)
    run_command("index_remove", "--index", start, "--run", runs["small"], "--image", 3, "--image", 79,
                "--output", tmp_path / "less")  # fmt: skip
    run_command("index_add", "--index", tmp_path / "less", "--run", runs["large"], "--output", tmp_path / "more")
    before, less, more = (Bundle(folder) for folder in (start, tmp_path / "less", tmp_path / "more"))
    less.check()
    more.check()
    for modality, times in (("images", 1), ("sentences", 2)):
        old, new = before.table(modality), more.table(modality)
        assert (less.card[modality]["count"], less.table(modality).num_rows) == (78 * times, 80 * times)
        assert (more.card[modality]["count"], new.num_rows) == (94 * times, 96 * times)
        kept = [row for row, image in enumerate(old["image_id"].to_pylist()) if image not in (3, 79)]
        assert new.take(kept).equals(old.take(kept))
        vectors_by_id(tmp_path / "less", runs["small"], modality)
        vectors_by_id(tmp_path / "more", runs["large"], modality)
        card = more.card[modality]
        assert 0 <= card["recall@10"] <= 1 and 0 <= card["before"]["recall@10"] <= 1
        assert (card["imbalance"] is not None) == ("IVF" in factory)
    gone = more.table("images").slice(3, 1).to_pylist()[0]
    assert gone["image_id"] == 3 and set(gone.values()) == {3, None}
    assert not any(hit.row["image_id"] in (3, 79) for hit in Searcher(more).images("horse", 94))
    assert more.card["fingerprint"] != less.card["fingerprint"] != before.card["fingerprint"]


def test_what_cannot_be_done_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    start = bundle_of(runs["small"], "Flat")
    for number in (80, 10**23, int("9" * 4000)):  # more than 64 bits hold
        with pytest.raises(InputError, match=f"image {number} is not in"):
            run_command(
                "index_remove", "--index", start, "--run", runs["small"], "--image", number, "--output", tmp_path / "a"
            )
    with pytest.raises(UsageError, match="no image of .* is named"):
        run_command("index_remove", "--index", start, "--run", runs["small"], "--output", tmp_path / "a")
    with pytest.raises(UsageError, match="give --output another folder"):
        run_command("index_add", "--index", start, "--run", runs["large"], "--output", start)
    listed = ("--list", tmp_path / "gone.txt")
    (tmp_path / "gone.txt").write_text(f"80\n{'9' * 5000}\n")
    with pytest.raises(UsageError, match="no image of .* is named"):
        run_command("index_remove", "--index", start, "--run", runs["small"], *listed, "--output", tmp_path / "a")
    (tmp_path / "gone.txt").write_text("\n".join(map(str, range(80))))
    with pytest.raises(InputError, match="nothing would be left"):
        run_command("index_remove", "--index", start, "--run", runs["small"], *listed, "--output", tmp_path / "a")
    other = make_run(tmp_path / "other", images=20)
    with pytest.raises(IntegrityError, match="numbers its images otherwise|model of .* differ"):
        run_command("index_add", "--index", start, "--run", other, "--output", tmp_path / "a")
    assert not (tmp_path / "a" / "card.json").exists()
    Bundle(start).check()


def test_a_list_is_obeyed_but_for_the_lines_that_it_names(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By id, path, another spelling and the whole path; what matches nothing is named, each line, and the code is 3."""
    start = bundle_of(runs["small"], "Flat")
    bundle = Bundle(start)
    paths = bundle.table("images")["path"].to_pylist()
    lines = ["# asked for", "5", paths[6], f".\\{paths[7]}", f"{bundle.card['data_root']}/{paths[8]}", paths[9].upper()]
    strangers = ["80", "007", "9" * 50, "nobody.png"]
    (tmp_path / "gone.txt").write_bytes(("\ufeff" + "\r\n".join([*lines, *strangers, ""])).encode())
    with pytest.raises(RejectLimitError, match=r"is written, but 4 lines of .*gone\.txt") as failure:
        run_command("index_remove", "--index", start, "--list", tmp_path / "gone.txt", "--output", tmp_path / "less")
    assert failure.value.exit_code == 3
    gone = Bundle(tmp_path / "less").table("images")["path"].to_pylist()
    assert [row for row, path in enumerate(gone) if path is None] == [5, 6, 7, 8, 9]
    assert all(repr(line) in caplog.text for line in strangers)


@pytest.mark.parametrize("command", [("index_remove", "--image", 3), ("index_add",)], ids=lambda command: command[0])
def test_a_foreign_bundle_overwrites_nothing(runs: dict[str, Path], tmp_path: Path, command: tuple) -> None:
    """Its card names a file that, through a link in the output, would be somebody's `.bashrc`."""
    bundle, home, output = tmp_path / "bundle", tmp_path / "home", tmp_path / "work" / "new"
    shutil.copytree(bundle_of(runs["small"], "Flat"), bundle)
    for folder in (home / "deep" / "er", output, bundle / "k"):
        folder.mkdir(parents=True)
    (home / ".bashrc").write_text("precious")
    (output / "k").symlink_to(home / "deep" / "er")
    name, evil = "k/../../.bashrc", b"evil"
    (bundle / name).write_bytes(evil)
    card = read_json(bundle / "card.json")
    card.pop("check")
    card["files"][name] = {"bytes": len(evil), "sha256": hashlib.sha256(evil).hexdigest()}
    (bundle / "card.json").write_bytes(to_json(card))
    with pytest.raises(IntegrityError, match="card.json names 'k/../../.bashrc', which is not a plain name"):
        run_command(*command[:1], "--index", bundle, "--run", runs["large" if len(command) == 1 else "small"],
                    *command[1:], "--output", output)  # fmt: skip
    assert (home / ".bashrc").read_text() == "precious"


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_example_needs_none_of_our_code(runs: dict[str, Path], factory: str) -> None:
    source = (ROOT / "examples" / "query_bundle.py").read_text()
    assert len(source.splitlines()) <= 30 and "pipeline" not in source
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "query_bundle.py", bundle_of(runs["small"], factory), "8"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == 5 and lines[0][1].startswith("dog-")


def test_the_cost_of_approximation(runs: dict[str, Path]) -> None:
    costs = {}
    for factory in ("Flat", "IVF3,Flat"):
        run = runs["small"]
        shutil.copytree(bundle_of(run, factory), run / "index/ncca", dirs_exist_ok=True)
        make_stage("evaluate", run, "ncca", "test", "all-sentences", "--through-index")
        costs[factory] = json.loads(Layout(run).evaluation("ncca", "test", "all-sentences").path.read_text())
        costs[factory] = costs[factory]["through_index"]
    for direction, gallery in (("sentence_to_image", 80), ("image_to_sentence", 160)):
        exact = costs["Flat"][direction]
        told = [{k: v for k, v in exact[by].items() if k != "recall@10"} for by in ("by_exact_search", "through_index")]
        assert told[0] == told[1] and exact["gallery"] == gallery  # more than ten sentences are the same
        rough = costs["IVF3,Flat"][direction]
        assert rough["by_exact_search"] == exact["by_exact_search"]
        assert rough["through_index"]["recall@10"] <= exact["through_index"]["recall@10"]
        assert rough["factory"] == "IVF3,Flat"


def test_sentences_are_answered_in_a_batch(runs: dict[str, Path], tmp_path: Path) -> None:
    bundle = bundle_of(runs["small"], "Flat")
    (tmp_path / "queries.txt").write_text("a dog\n\na purple unicorn\nthe horse\n")
    printed = run_command("search", "--index", bundle, "--batch", tmp_path / "queries.txt", "--top", 2)
    first, second, third = map(json.loads, printed.splitlines())
    assert (first["query"], second["query"], third["query"]) == ("a dog", "a purple unicorn", "the horse")
    assert "no word of 'a purple unicorn'" in second["error"] and "results" not in second
    alone = json.loads(run_command("search", "--index", bundle, "--top", 2, "--json", "a dog"))
    assert [hit["image_id"] for hit in first["results"]] == [hit["image_id"] for hit in alone]
    assert all(hit["path"].startswith("horse") for hit in third["results"])
    (tmp_path / "queries.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read .*queries.txt"):
        run_command("search", "--index", bundle, "--batch", tmp_path / "queries.txt")
