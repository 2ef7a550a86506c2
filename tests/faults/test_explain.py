"""The command `explain`: the rows of an image in the files of a run, and the reason why an image has none."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import tiny_run
from click.testing import CliRunner
from synthetic_run import retell, run_command

from pipeline.errors import InputError
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.verify import find_image
from stages.operations.verify import explain as command


def explain(run: Path, image: str) -> dict:
    """Return the JSON output of the command `explain`."""
    result = CliRunner().invoke(command, [str(run), image, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["35", "id:35", "35.png", "images/35.png"])
def test_an_image_is_followed_to_every_row(run: Path, name: str) -> None:
    """Image 35 is row 3 of shard 2 and row 35 of the index. The moments do not contain this image, because it is in the
    split `test`."""
    value = explain(run, name)
    (found,) = value["images"]
    assert (found["image"]["path"], found["shard"], value["rejects"]) == ("images/35.png", 2, [])
    assert [row["sentence_id"] for row in found["sentences"]] == [70, 71]
    places = {(Path(p["file"]).relative_to(run).as_posix(), p["of"]): p["rows"] for p in found["places"]}
    assert places["features/colour/shard-00002.h5", "image"] == [3]
    assert places["text/tfidf/shard-00002.h5", "texts"] == places["text/tokens/shard-00002.h5", "texts"] == [6, 7]
    assert places["embeddings/ncca/shard-00002.h5", "image"] == [3]
    assert places["embeddings/ncca/shard-00002.h5", "sentences"] == [6, 7]
    assert places["moments/target/chunk-00000.h5", "image"] == []
    notes = {Path(p["file"]).name: p["note"] for p in found["places"]}
    conditions = "if a condition allows a part of the items, 1.000 (50.0%), 1.000 (10.0%)"
    assert notes["images.parquet"] == f"index recall@10 1.000, measured with captions; {conditions}"
    assert notes["sentences.parquet"] == f"index recall@10 1.000, measured with images; {conditions}, 1.000 (1.0%)"
    assert places["index/ncca/images.parquet", "images"] == [35]
    assert places["index/ncca/sentences.parquet", "sentences"] == [70, 71]


def test_a_row_of_an_older_index_has_no_note(run: Path) -> None:
    for card in run.glob("index/*/card.json"):
        for name in ("images", "sentences"):
            retell(card, name, value={k: v for k, v in read_json(card)[name].items() if k != "measured_with"})
    notes = {Path(place["file"]).name: place["note"] for place in explain(run, "35")["images"][0]["places"]}
    assert notes["images.parquet"] == notes["sentences.parquet"] == ""


def test_a_reject_has_its_reason(run: Path) -> None:
    value = explain(run, tiny_run.MISSING)
    assert value["images"] == [] and value["rejects"][0]["reason"].startswith("missing")


def test_a_removed_image_is_reported_as_removed(run: Path) -> None:
    (index,) = run.glob("index/*")
    run_command("remove", index, "images/35.png")
    notes = {Path(place["file"]).name: place["note"] for place in explain(run, "35")["images"][0]["places"]}
    assert notes["images.parquet"] == notes["sentences.parquet"] == "removed from the index"
    (index / "removed.txt").write_text("gone.png\n")
    (index / "added").mkdir()
    (index / "added/removed.txt").write_text(f"images/gone.png\t{'0' * 64}\n")
    with pytest.raises(InputError, match=f"delete its line in {index}/added/removed.txt and in {index}/removed.txt"):
        explain(run, "gone.png")


def test_an_image_without_captions_is_not_reported_as_not_indexed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_image = Manifest.of_image

    def without_captions(manifest: Manifest, name: str, image_id: int) -> pa.Table:
        table = of_image(manifest, name, image_id)
        return table.slice(0, 0) if name == "sentences" else table

    monkeypatch.setattr(Manifest, "of_image", without_captions)
    notes = {Path(place["file"]).name: place["note"] for place in explain(run, "35")["images"][0]["places"]}
    assert notes["images.parquet"].startswith("index recall@10")
    assert notes["sentences.parquet"] == "the image has no captions"


def test_a_name_that_may_be_two_images_is_not_traced(run: Path, tmp_path: Path) -> None:
    names = {"path": ["1.png", "0.png", "x/2.png"], "member": pa.nulls(3, pa.string()), "sha256": ["", "", ""]}
    manifest = SimpleNamespace(n_shards=1, shard_size=3, root=tmp_path, table=lambda name, number: pa.table(names))
    assert [find_image(manifest, name).image_id for name in ("id:1", "0.png", "2", f"{tmp_path}/1.png")] == [1, 1, 2, 0]
    with pytest.raises(InputError, match=rf"'1' \(it may be id:0 \({tmp_path}/1.png\) or id:1 \({tmp_path}/0.png\)"):
        find_image(manifest, "1")
    assert find_image(manifest, "id:3") is find_image(manifest, "png") is None


@pytest.mark.parametrize("name", ["zebra.jpg", str(10**23), "9" * 5000], ids=["name", "large", "endless"])
def test_an_unknown_name_says_so(run: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"has no photo {name}"):
        explain(run, name)
