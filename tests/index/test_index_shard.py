"""An index shard can be used without jointspace, and a shard whose files were changed is refused."""

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from synthetic_run import ENCODER_SETTINGS, build_bundle, make_run, open_run, retell, run_command

import jointspace
from pipeline.errors import IntegrityError
from pipeline.index.tuning_queries import TuningQueries
from pipeline.run.reading.indexes import add_indexes
from pipeline.storage import files
from pipeline.storage.card import MeasuredWith
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.index_changes import link_shard
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.manifest import Manifest

INDEXES = ("images", "sentences")
MODELS = ("", "text_encoders/tfidf/", "encoders/colour/")
FILES = [
    *("images.faiss", "sentences.faiss", "images.parquet", "sentences.parquet"),
    *(f"{folder}model.{suffix}" for folder in MODELS for suffix in ("safetensors", "json")),
]


def test_an_index_shard_can_be_used_with_faiss_and_parquet_alone(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    embeddings = Embeddings(manifest, run / "embeddings/ncca")
    for modality, count in (("images", 24), ("sentences", 48)):
        index = faiss.read_index(str(run / "bundle" / f"{modality}.faiss"))
        table = pq.read_table(run / "bundle" / f"{modality}.parquet")
        assert index.ntotal == table.num_rows == count
        vectors = embeddings.read(modality, np.arange(count))
        np.testing.assert_array_equal(index.reconstruct_n(0, count), vectors)
        assert table.equals(getattr(manifest, modality))


def test_titles_and_descriptions_are_stored_with_the_images(tmp_path: Path) -> None:
    bundle = build_bundle(make_run(tmp_path / "run", titled=True))
    table = pq.read_table(bundle / "images.parquet")
    assert table["title"].to_pylist() == [None if i % 2 else f"Title {i}" for i in range(24)]
    assert not {"tags", "description"} & {*table.column_names}
    asked = ("search", "--index", bundle, "--top-k", 1, "--where", "'title 8' in title")
    (hit,) = json.loads(run_command(*asked, "--json", "a dog"))
    assert (hit["image_id"], hit["title"]) == (8, "Title 8")
    assert "title=Title 8" in run_command(*asked, "a dog")


@pytest.mark.parametrize("measured_with", ["captions", "phrases", "images"])
@pytest.mark.parametrize("sentences", [48, 0])
def test_the_card_says_which_vectors_measured_an_index(
    run: Path, tmp_path: Path, sentences: int, measured_with: MeasuredWith
) -> None:
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    ids = {"images": np.arange(24), "sentences": np.arange(sentences)}
    queries = TuningQueries(np.eye(8, dtype=np.float32)[:5], measured_with)
    cards = add_indexes(IndexWriter(tmp_path), embeddings, ids, open_run(run).config.index, None, queries)
    assert cards.images is not None and cards.images.measured_with == measured_with
    assert cards.images.to_json()["queries"] == 5
    assert (cards.sentences and cards.sentences.measured_with) == ("images" if sentences else None)


def test_an_index_without_the_kind_of_its_queries_still_opens(run: Path, tmp_path: Path) -> None:
    bundle = IndexShard(run / "bundle")
    link_shard(bundle, tmp_path / "older")
    shutil.copytree(tmp_path / "older", tmp_path / "forged")
    card = json.loads((tmp_path / "older/card.json").read_text())
    older = {name: {key: value for key, value in card[name].items() if key != "measured_with"} for name in INDEXES}
    retell(tmp_path / "forged/card.json", "images", "measured_with", value=["images"] * 9)
    for name in INDEXES:
        retell(tmp_path / "older/card.json", name, value=older[name])
    assert IndexShard(tmp_path / "older").card.images.measured_with is None
    assert run_command("search", "--index", tmp_path / "older", "dog", "--top-k", 1)
    with pytest.raises(IntegrityError, match="measured_with"):
        IndexShard(tmp_path / "forged")


def test_the_card_describes_the_contents_of_the_shard(run: Path) -> None:
    card = json.loads((run / "bundle" / "card.json").read_text())
    assert sorted(card["files"]) == sorted(FILES)
    assert (card["model"], card["registered"], card["metric"], card["dim"]) == ("ncca", "ncca", "inner_product", 8)
    assert card["images"]["recall@10"] == card["sentences"]["recall@10"] == 1
    assert (card["images"]["count"], card["sentences"]["count"]) == (24, 48)
    assert card["images"]["bytes"] == card["files"]["images.faiss"]["bytes"]
    assert card["encoders"] == {"colour": ENCODER_SETTINGS}
    assert card["text_encoders"] == {"tfidf": {"kind": "tf-idf"}}
    assert card["data_root"] == str(run / "data")
    assert {"manifest", "model", "text_encoders/tfidf", "encoders/colour", "embeddings/00000"} <= set(card["inputs"])


@pytest.mark.parametrize("harm", ["change", "cut", "remove"])
def test_a_tampered_file_is_refused_by_name(run: Path, tmp_path: Path, harm: str) -> None:
    folder = shutil.copytree(run / "bundle", tmp_path / "bundle")
    for name in FILES:
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        if harm != "remove":
            (folder / name).write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            IndexShard(folder).check()
        (folder / name).write_bytes(data)
    IndexShard(folder).check()


def test_older_shard_stays_intact_until_the_new_one_is_complete(run: Path, tmp_path: Path) -> None:
    card = IndexShard(run / "bundle").card
    writer = IndexWriter(tmp_path)
    writer.add("images.faiss", b"old")
    writer.add_parameters(run / "bundle")
    writer.add_parameters(run / "bundle/encoders/colour", "encoders/former/")
    writer.add("vocabulary.json", b"old")
    writer.add("images.tradeoff.json", b"old")
    writer.commit(source=card)
    newer = IndexWriter(tmp_path)
    assert IndexShard(tmp_path).read("images.faiss") == b"old"
    newer.add("images.faiss", b"new")
    assert IndexShard(tmp_path).read("images.faiss") == b"old"
    (tmp_path / "card.json").unlink()  # Snakemake does this before a job.
    newer.commit(source=card)
    assert IndexShard(tmp_path).read("images.faiss") == b"new"
    whole = {"images.faiss", "card.json"}
    assert {path.name for path in tmp_path.rglob("*")} == whole
    for _ in range(2):  # The second time, the files have the same names.
        copy = IndexWriter(tmp_path / "copy")
        copy.link(IndexShard(tmp_path))
        copy.commit(source=card)
        assert {path.name for path in (tmp_path / "copy").rglob("*")} == {"images.faiss", "card.json"}


def test_a_newer_index_removes_the_files_of_former_encoders_and_no_others(run: Path, tmp_path: Path) -> None:
    index = shutil.copytree(run / "bundle", tmp_path / "index")
    own = ["notes.txt", "my_encoders/a.txt", "encoders/notes.txt", "encoders/mine/model.bin", "encoders/colour/a/b"]
    for name in own:
        (index / name).parent.mkdir(parents=True, exist_ok=True)
        (index / name).write_text("kept")
    card = IndexShard(index).card
    (index / "card.json").unlink()  # Snakemake does this before a job.
    writer = IndexWriter(index)
    writer.add("images.faiss", b"new")
    writer.commit(source=card)
    files = {path.relative_to(index).as_posix() for path in index.rglob("*") if path.is_file()}
    assert files == {"card.json", "images.faiss", *own}


def test_a_folder_that_was_not_an_index_keeps_all_of_its_files(run: Path, tmp_path: Path) -> None:
    own = ("vocabulary.json", "words.faiss", "model.json", "encoders/mine/model.json")
    for name in own:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    writer = IndexWriter(tmp_path)
    writer.add("images.faiss", b"new")
    writer.commit(source=IndexShard(run / "bundle").card)
    assert {name: (tmp_path / name).read_text() for name in own} == dict.fromkeys(own, "{}")


@pytest.mark.parametrize("linked", ["encoders", "encoders/colour"])
def test_nothing_is_removed_through_a_link_in_place_of_a_former_encoder(run: Path, tmp_path: Path, linked: str) -> None:
    index = shutil.copytree(run / "bundle", tmp_path / "index")
    card = IndexShard(index).card
    outside = shutil.move(index / linked, tmp_path / "outside")
    (index / linked).symlink_to(outside)
    (index / "card.json").unlink()
    before = sorted(outside.rglob("*"))
    writer = IndexWriter(index)
    writer.add("images.faiss", b"new")
    with pytest.raises(IntegrityError, match=f"{linked} is a link"):
        writer.commit(source=card)
    assert sorted(outside.rglob("*")) == before


# --- files that were verified before


def test_check_and_verify_hash_files_that_a_search_need_not_hash_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(files, "SETTLED_SECONDS", -1.0)
    monkeypatch.setattr(files, "MIN_REMEMBERED_BYTES", 1)
    # Simulate a file system that loses bytes of a file but keeps its size and times.
    monkeypatch.setattr(files, "_verification_key", lambda path, status, sha256: sha256)
    folder = shutil.copytree(run / "bundle", tmp_path / "index")
    search = ("search", "--index", folder, "--top", 1, "a dog")
    answer = run_command(*search)
    path = folder / "images.faiss"
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    assert run_command(*search) == answer
    refused = r"images\.faiss was changed or damaged"
    with pytest.raises(IntegrityError, match=refused):
        IndexShard(folder, skip_verified=True).check()
    with pytest.raises(IntegrityError, match=refused):
        jointspace.load(folder, verify=True).search("a dog")
    with pytest.raises(IntegrityError, match=refused):
        run_command(*search, "--verify")
