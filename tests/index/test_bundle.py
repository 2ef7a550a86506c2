"""The bundle as a program without our code sees it, and what happens to one that was tampered with."""

import json
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up import ENCODER_SETTINGS, build_bundle, make_run, open_run

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import CHECK
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.manifest_writer import write_manifest
from stages.indices import describe_training

FILES = [
    "images.faiss",
    "sentences.faiss",
    "images.parquet",
    "sentences.parquet",
    "model.safetensors",
    "model.json",
    "text_encoders/tfidf/model.safetensors",
    "text_encoders/tfidf/model.json",
    "encoders/colour/model.safetensors",
    "encoders/colour/model.json",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder)
    return folder


def test_faiss_and_parquet_alone_can_use_it(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    embeddings = Embeddings(manifest, run / "embeddings/ncca")
    for modality, count in (("images", 24), ("sentences", 48)):
        index = faiss.read_index(str(run / "bundle" / f"{modality}.faiss"))
        table = pq.read_table(run / "bundle" / f"{modality}.parquet")
        assert index.ntotal == table.num_rows == count
        vectors = embeddings.read(modality, np.arange(count))
        np.testing.assert_array_equal(index.reconstruct_n(0, count), vectors)
        assert table.equals(getattr(manifest, modality))


def test_a_card_claims_no_training_where_there_was_none(tmp_path: Path) -> None:
    """Neither of a model without training sentences, nor of one that takes two encoders' space as it is."""
    folder = make_run(tmp_path / "run")
    text = {"name": "theirs", "kind": "transformers", "transformers": {"architecture": "x"}}
    adopted = open_run(folder, {"models": ["zero-shot", "ncca"], "text_encoders": [text]})
    assert describe_training(adopted, "zero-shot") == {}
    assert describe_training(adopted, "ncca")["trained_on"]["sentences"] == 32
    manifest = Manifest(folder / "manifest")
    images = manifest.images.drop_columns("split").append_column("split", pa.array(["test"] * 24))
    tables = {"images": images.select(manifest.images.column_names)}
    tables |= {name: getattr(manifest, name) for name in ("sentences", "documents", "boxes")}
    write_manifest(folder / "manifest", manifest.root, [tables], [], {}, manifest.shard_size)
    card = Bundle(build_bundle(folder, {"index": {"splits": ["test"]}})).card
    assert "trained_on" not in card and card["images"]["count"] == 24


def test_the_card_says_what_is_in_it(run: Path) -> None:
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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["change", "cut", "remove"])
def test_a_tampered_file_is_refused_by_name(run: Path, tmp_path: Path, name: str, harm: str) -> None:
    path = run / "bundle" / name
    data = path.read_bytes()
    try:
        if harm == "remove":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            Bundle(run / "bundle").check()
    finally:
        path.write_bytes(data)
    Bundle(run / "bundle").check()


def test_parts_are_checked_when_they_are_read(run: Path) -> None:
    bundle = Bundle(run / "bundle")
    readers = {
        "images.faiss": lambda: bundle.index("images"),
        "sentences.parquet": lambda: bundle.table("sentences"),
        "text_encoders/tfidf/model.json": lambda: bundle.text_encoder("tfidf"),
        "model.json": bundle.model,
        "model.safetensors": bundle.model,
        "encoders/colour/model.json": lambda: bundle.encoder("colour"),
        "encoders/colour/model.safetensors": lambda: bundle.encoder("colour"),
    }
    for name, read in readers.items():
        path = run / "bundle" / name
        data = path.read_bytes()
        read()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
        with pytest.raises(IntegrityError, match=name):
            read()
        path.write_bytes(data)


def test_another_model_with_a_sidecar_of_its_own_is_refused(run: Path) -> None:
    path = run / "bundle" / "model.json"
    data = path.read_bytes()
    try:
        path.write_text(json.dumps({**json.loads(data), "fingerprint": "another"}))
        with pytest.raises(IntegrityError, match="model.json is not what its card says"):
            Bundle(run / "bundle").model()
    finally:
        path.write_bytes(data)


def test_a_folder_without_a_card_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="is not a bundle: it has no card.json"):
        Bundle(tmp_path)
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(IntegrityError, match="card.json is not a bundle's card"):
        Bundle(tmp_path)


def test_a_folder_inside_or_beside_bundles_leads_to_one(run: Path) -> None:
    for name in ("encoders", "bundl"):
        wrong = run / "bundle" / name if name == "encoders" else run / name
        with pytest.raises(IntegrityError, match=rf"did you mean {run / 'bundle'}\? give a folder"):
            Bundle(wrong)


def test_an_older_bundle_is_whole_until_the_newer_one_is(run: Path, tmp_path: Path) -> None:
    card = {name: value for name, value in Bundle(run / "bundle").card.items() if name not in ("files", CHECK)}
    writer = BundleWriter(tmp_path)
    writer.add("images.faiss", b"old")
    writer.commit(card)
    newer = BundleWriter(tmp_path)
    assert Bundle(tmp_path).read("images.faiss") == b"old"
    newer.add("images.faiss", b"new")
    assert Bundle(tmp_path).read("images.faiss") == b"old"
    newer.commit(card)
    assert Bundle(tmp_path).read("images.faiss") == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"images.faiss", "card.json"}


def test_splits_choose_what_can_be_found(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    bundle = Bundle(build_bundle(run, {"index": {"splits": ["test"]}}))
    assert bundle.table("images")["image_id"].to_pylist() == list(range(2, 24, 3))
    assert set(bundle.table("sentences")["image_id"].to_pylist()) == set(range(2, 24, 3))
    assert (bundle.card["images"]["count"], bundle.card["sentences"]["count"]) == (8, 16)


def test_parts_of_different_runs_are_not_mixed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    other = make_run(tmp_path / "b", images=23)
    (run / "embeddings").rename(run / "old")
    (other / "embeddings").rename(run / "embeddings")
    with pytest.raises(IntegrityError, match=r"embeddings/ncca/shard-0000\d\.h5\.json is mixed"):
        build_bundle(run)
