"""Tests of the photos of an index on the server: thumbnails, columns, filters and scores."""

import io
import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from served_run import PIXELS, make_client, open_gallery, serve
from synthetic_multivectors import OTHER, THING
from synthetic_run import build_bundle, run_command

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import UsageError
from pipeline.index.search import Answer
from pipeline.serve.gallery import ServedGallery
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.stored_index import open_index

PHOTO_PATH = "/api/models/ncca/photographs/3"


def test_a_photo_has_captions_columns_and_a_large_version(client: TestClient, run: Path) -> None:
    answer = client.get(f"{PHOTO_PATH}/about").json()
    assert answer["sentences"] == ["a horse", "the big horse number 3"] and answer["caption"] == "a horse"
    assert (answer["name"], answer["split"], answer["width"], answer["height"]) == ("horse-3.png", "train", 63, 40)
    assert answer["original"] is None and client.get(f"{PHOTO_PATH}/original").status_code == 404
    large = Image.open(io.BytesIO(client.get(answer["large"]).content))
    assert large.format == "JPEG" and large.size == (63, 40)
    assert client.get("/api/models/ncca/photographs/24/about").status_code == 404


def test_original_files_are_served_unchanged_if_that_is_allowed(gallery: ServedGallery, run: Path) -> None:
    client = make_client(gallery, originals=True)
    answer = client.get(client.get(f"{PHOTO_PATH}/about").json()["original"])
    assert answer.content == (run / "data" / "horse-3.png").read_bytes()
    assert answer.headers["Content-Type"] == "image/png" and "Content-Disposition" not in answer.headers


def test_a_photo_of_an_index_is_a_query_by_its_id(client: TestClient) -> None:
    for kind, form in (("similar", {}), ("sentences", {}), ("arithmetic", {"plus": "horse"})):
        answer = client.post(
            f"/api/models/other/{kind}", params={"top": 3}, data={"of": "ncca", "image_id": 3, **form}
        ).json()
        first = answer["results"][0]
        assert "horse" in first.get("text", first.get("name")) and len(answer["results"]) == 3
    for form in ({}, {"image_id": 3}, {"of": "ncca"}):
        told = client.post("/api/models/ncca/similar", data=form)
        assert told.status_code == 422 and "Send a photo" in told.json()["error"]
    assert client.post("/api/models/ncca/similar", data={"of": "none", "image_id": 3}).status_code == 404
    assert client.post("/api/models/ncca/similar", data={"of": "ncca", "image_id": 99}).status_code == 422


@pytest.mark.parametrize("bundle", ["bundle", "regions"])
@pytest.mark.parametrize("missing", ["photographs", "encoders"])
def test_a_photo_of_an_index_is_a_query_without_its_file_or_encoder(run: Path, bundle: str, missing: str) -> None:
    """If the photo files are missing or the features were precomputed, the stored vector of the photo is the query."""
    whole = open_gallery(run / bundle)
    read = open_index(run / bundle).photographs(run / "elsewhere" if missing == "photographs" else None).read
    bare = ServedGallery(whole.searcher, lambda data: {}, read, PIXELS, 32)
    address = "/api/models/ncca/similar?top=9"
    form = {"of": "ncca", "image_id": 3}
    first, second = (make_client(gallery).post(address, data=form).json()["results"] for gallery in (whole, bare))
    assert {one["name"] for one in first[:3]} == {one["name"] for one in second[:3]} and second[0]["image_id"] == 3
    told = make_client(bare).post(address, data={**form, "image_id": 99})
    assert told.status_code == 422 and "no image 99" in told.json()["error"]


@pytest.mark.parametrize("rows_in_memory", [0, 23, 24])
def test_each_answer_has_the_region_that_fits_the_words_best(
    run: Path, rows_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.index.search.MAX_ROWS_IN_MEMORY", rows_in_memory)
    regions = open_gallery(run / "regions")
    searcher = regions.searcher
    hits = [searcher.images("big dog", 24, match_text=False)[rank] for rank in (7, 2, 5, 1)]
    words = MultiVectors(np.eye(8, dtype=np.float32)[[2, 5]], np.array([0, 2]))
    monkeypatch.setattr(searcher, "images", lambda *_, **__: Answer(hits))
    monkeypatch.setattr(searcher, "embed_sentence", lambda _: words)
    assert searcher.is_kept("images") == (rows_in_memory == 24)
    found = regions.images("big dog", 4)
    assert [hit.row["image_id"] for hit in found] == [7, 2, 5, 1]
    chosen = set()
    for hit in found:
        image_id = hit.row["image_id"]
        products = [
            sum(float(region @ word) for word in words.vectors)
            for region in searcher.gallery("images").item(image_id).vectors
        ]
        boxes = [[0, 0, 60 + image_id, 40], THING, OTHER]
        assert hit.row["box"] == boxes[int(np.argmax(products))]
        chosen.add(int(np.argmax(products)))
    assert len(chosen) > 1


@pytest.mark.parametrize("rows_in_memory", [0, 1 << 21])
def test_rows_are_found_once_and_in_order_in_memory_and_on_disk(
    run: Path, rows_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.index.search.MAX_ROWS_IN_MEMORY", rows_in_memory)
    gallery = open_gallery(run / "bundle")
    owners = gallery.searcher.index.table("sentences")["image_id"].to_pylist()
    expected = [row for row, owner in enumerate(owners) if owner in (2, 7)]
    assert gallery._find("sentences", [7, 2, 99, 7]).tolist() == expected
    assert gallery._find("images", [19, 4, 11]).tolist() == [4, 11, 19] and not len(gallery._find("images", []))
    assert gallery.captions([11, 4, 11, 99]) == ["a horse", "a boat", "a horse", None]


def test_several_index_shards_are_one_gallery(run: Path) -> None:
    """Photos keep their ids in the run. Each photo is counted, listed and found once, in whichever shard it is."""
    several = open_gallery(build_bundle(run, {"index": {"bundles": 3}}, output="several"))
    assert (several.count("images"), several.count("sentences")) == (24, 48)
    for image_id in (0, 13, 23):
        path = several.row(image_id)["path"]
        assert several.original(image_id) == (run / "data" / path).read_bytes()
    assert sorted(row["image_id"] for row, _ in several.browse(24)[1]) == list(range(24))
    assert [hit.row["path"] for hit in several.images("dog", 3, match_text=False)] == [
        "dog-0.png",
        "dog-8.png",
        "dog-16.png",
    ]


def test_removed_photos_are_no_longer_shown(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo is removed from the index of a running server. The next requests neither find nor show the photo, and
    count one photo less."""
    monkeypatch.setattr("pipeline.serve.gallery.CHECK_SECONDS", 0)
    index = shutil.copytree(run / "bundle", tmp_path / "bundle")
    client = TestClient(serve(tmp_path), base_url="http://localhost")
    asked = "/api/models/ncca/images?sentence=dog&top=3"
    assert [result["image_id"] for result in client.get(asked).json()["results"]] == [0, 8, 16]
    run_command("remove", index, 0)
    assert [result["image_id"] for result in client.get(asked).json()["results"]][:2] == [8, 16]
    answer = client.get("/api/models/ncca/photographs/0")
    assert answer.status_code == 404 and "Image 0 was removed" in answer.json()["error"]
    assert client.get("/api/models").json()["models"][0]["images"] == 23


@pytest.fixture(scope="module")
def priced(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run whose index has the user columns `price` and `shelf`, and return its folder."""
    folder = tmp_path_factory.mktemp("priced")
    bundle = IndexShard(run / "bundle")
    writer = IndexWriter(folder / "bundle")
    writer.link(bundle, but={"images.parquet"})
    table = bundle.table("images")
    own = {"price": pa.array(range(len(table))), "shelf": pa.array([f"s{row % 3}" for row in range(len(table))])}
    for name, values in own.items():
        table = table.append_column(name, values)
    writer.add_table("images.parquet", table)
    writer.commit(source=bundle.card)
    return folder


@pytest.mark.parametrize("kept", [0, 1 << 21], ids=["read-on-request", "in-memory"])
@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ((), {"price", "shelf"}),
        (("--column", "shelf"), {"shelf"}),
        (("--allow-host", "photos.example"), set()),
        (("--allow-host", "photos.example", "--column", "price"), {"price"}),
    ],
)
def test_visitors_see_and_filter_by_the_chosen_columns_only(
    priced: Path, options: tuple[str, ...], columns: set[str], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.index.search.MAX_ROWS_IN_MEMORY", kept)
    client = TestClient(serve(priced, *options), base_url="http://localhost")
    (model,) = client.get("/api/models").json()["models"]
    assert set(model["columns"]) == columns | {"split", "width", "height"}
    assert set(client.get("/api/models/ncca/columns").json()["columns"]) == columns | {"split", "width", "height"}
    for answer in ("images?sentence=dog", "photographs"):
        shown = client.get(f"/api/models/ncca/{answer}").json()["results"][0]
        assert set(shown["columns"]) == columns
    assert set(client.get("/api/models/ncca/photographs/3/about").json()["columns"]) == columns
    for name, condition in (("price", "price = 3"), ("shelf", "shelf = 's0'")):
        told = client.get("/api/models/ncca/images", params={"sentence": "dog", "where": condition})
        assert told.status_code == (200 if name in columns else 422)


def test_a_column_that_no_index_has_is_refused(priced: Path) -> None:
    with pytest.raises(UsageError, match="No index has a column prise"):
        serve(priced, "--column", "prise")


def test_a_server_says_that_the_folder_of_photos_is_gone(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = IndexShard(run / "bundle")
    writer = IndexWriter(tmp_path / "bundle")
    writer.link(bundle)
    writer.commit(source=bundle.card, data_root=str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        serve(tmp_path)
    assert f"{tmp_path / 'gone'}, does not exist" in caplog.text and "--data-root FOLDER" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        serve(tmp_path, "--data-root", run / "data")
    assert "does not exist" not in caplog.text
    with caplog.at_level(logging.WARNING):
        serve(tmp_path, "--data-root", run / "nowhere")
    assert f"{run / 'nowhere'}, does not exist" in caplog.text


@pytest.mark.parametrize("bundle", ["bundle", "regions"])
def test_photos_that_another_index_of_the_run_lists_as_removed_are_hidden(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: str
) -> None:
    """A photo is in the served index, but another index of the run lists it as removed, as happens while `remove` is
    running. No answer and no address shows the photo, even if the table is too large for memory."""
    monkeypatch.setattr("pipeline.serve.gallery.CHECK_SECONDS", 0)
    monkeypatch.setattr("pipeline.index.search.MAX_ROWS_IN_MEMORY", 1000 if bundle == "regions" else 0)
    for name, source in (("index/one", bundle), ("index/two", "bundle"), ("manifest", "manifest")):
        shutil.copytree(run / source, tmp_path / name)
    client = TestClient(serve(tmp_path, index="index/one"), base_url="http://localhost")
    (model,) = client.get("/api/models").json()["models"]
    base = f"/api/models/{model['model']}"
    assert client.get(f"{base}/photographs/5").status_code == 200
    (tmp_path / "index/two/removed.txt").write_text("house-5.png\n# house-13.png\n")
    shown = ["images?sentence=house&top=20", "photographs?top=20", "images?sentence=house&top=20&where=width<99"]
    for address in shown if bundle == "bundle" else shown[1:2]:
        names = {one["name"] for one in client.get(f"{base}/{address}").json()["results"]}
        assert "house-13.png" in names and "house-5.png" not in names, address
    for kind in ("similar", "sentences"):
        answer = client.post(f"{base}/{kind}?top=20", data={"of": model["model"], "image_id": 13}).json()["results"]
        assert len(answer) == 20 and 5 not in {one["image_id"] for one in answer}
    for address in ("", "/large", "/about"):
        assert client.get(f"{base}/photographs/5{address}").status_code == 404
    (now,) = client.get("/api/models").json()["models"]
    assert (now["images"], now["sentences"]) == (model["images"] - 1, model["sentences"] - 2)
    assert "the big house number 5" in model["examples"] and "the big house number 5" not in now["examples"]
