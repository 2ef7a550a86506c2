"""Tests of the application on a synthetic index whose correct answers are known."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from served_run import LIMITS, colour_of, make_client, photograph
from synthetic_multivectors import OTHER, THING
from synthetic_run import THINGS

from pipeline.serve.gallery import ServedGallery

DOGS = ["dog-0.png", "dog-8.png", "dog-16.png"]


def test_a_caption_finds_photos(client: TestClient) -> None:
    answer = client.get("/api/models/ncca/images", params={"sentence": "the dog", "top": 3}).json()
    assert [result["name"] for result in answer["results"]] == DOGS
    assert [result["image_id"] for result in answer["results"]] == [0, 8, 16]
    assert [result["rank"] for result in answer["results"]] == [1, 2, 3]
    assert answer["results"][0]["score"] == pytest.approx(1) and answer["model"] == "ncca"
    assert len(client.get("/api/models/other/images?sentence=dog").json()["results"]) == LIMITS.top
    assert answer["likely"] is None and answer["remark"].endswith("because it has fewer than 50 photos.")


def test_answer_names_the_command_that_sets_a_missing_line(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.index.calibration.MIN_DEV_IMAGES", 20)
    remark = client.get("/api/models/ncca/images?sentence=dog").json()["remark"]
    assert "captions for 20 of its photos with `jointspace calibrate INDEX pairs.csv --ask`." in remark, "and no path"


def test_a_photo_finds_captions(client: TestClient, run: Path) -> None:
    for name in ("horse", "car"):
        file = photograph(run, f"{name}-{THINGS.index(name)}.png")
        answer = client.post("/api/models/ncca/sentences?top=4", files=file).json()
        assert all(name in result["text"] for result in answer["results"]) and len(answer["results"]) == 4


def test_an_uploaded_photo_is_not_written_to_disk(gallery: ServedGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("RGB", (900, 900), colour_of(0)).save(file, "BMP")
    assert file.tell() > 1 << 20, "the size above which Starlette writes an upload to a temporary file by default"
    written = []
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda file: written.append(file))
    app = make_client(gallery, replace(LIMITS, max_upload_bytes=5_000_000))
    answer = app.post("/api/models/ncca/similar?top=3", files={"photograph": ("dog.bmp", file.getvalue())}).json()
    assert [result["name"] for result in answer["results"]] == DOGS and not written


def test_words_are_added_to_and_subtracted_from_a_photo(client: TestClient, run: Path) -> None:
    words = {"minus": ["dog"], "plus": ["cat"]}
    answer = client.post("/api/models/ncca/arithmetic?top=3", files=photograph(run), data=words).json()
    assert all(result["name"].startswith("cat") for result in answer["results"])
    words["plus"] = ["unicorn"]
    told = client.post("/api/models/ncca/arithmetic", files=photograph(run), data=words)
    assert told.status_code == 422 and "none of the words of 'unicorn'" in told.json()["error"]
    for nothing in ({}, {"plus": ""}, {"minus": ["dog", " "]}):
        told = client.post("/api/models/ncca/arithmetic", files=photograph(run), data=nothing)
        assert told.status_code == 422 and re.search("No words change the image|is empty", told.json()["error"])


def test_a_photo_finds_similar_photos(client: TestClient, run: Path) -> None:
    def find(**form: object) -> dict:
        return client.post("/api/models/ncca/similar?top=3", files=photograph(run), data=form).json()

    assert [result["name"] for result in find()["results"]] == DOGS
    answer = find(sentence="a purple cat", weight=0.9)
    assert [result["name"][:3] for result in answer["results"]] == ["cat"] * 3 and answer["unknown"] == ["purple"]
    assert "weight: Input should be less than or equal to 1" in find(sentence="cat", weight=2)["error"]
    assert "is empty" in find(sentence=" ")["error"]


def test_a_condition_filters_every_kind_of_answer(client: TestClient, run: Path) -> None:
    def ids(answer: object) -> set[int]:
        return {result["image_id"] for result in answer.json()["results"]}

    base = "/api/models/ncca"
    where = {"where": "split = 'test' and width < 80", "top": 20}
    passing = {2, 5, 8, 11, 14, 17}
    assert ids(client.get(f"{base}/images", params={"sentence": "a dog", **where})) == passing
    for kind, form in (("sentences", {}), ("similar", {"sentence": "a cat"}), ("arithmetic", {"plus": "cat"})):
        assert ids(client.post(f"{base}/{kind}", params=where, files=photograph(run), data=form)) == passing
        told = client.post(f"{base}/{kind}", params={"where": "prise < 3"}, files=photograph(run), data=form)
        assert told.status_code == 422 and "There is no column 'prise'" in told.json()["error"]
    assert client.get("/api/models").json()["models"][0]["columns"] == {
        "split": "text", "width": "numbers", "height": "numbers",
    }  # fmt: skip
    told = client.get(f"{base}/images", params={"sentence": "a dog", "where": "x" * 3000})
    assert told.status_code == 422 and "where: String should have at most 2000" in told.json()["error"]


def test_words_find_regions(run: Path, regions: ServedGallery) -> None:
    client = make_client(regions)
    told = client.get("/api/models").json()["models"][0]
    assert (told["regions"], told["images"], told["sentences"]) == (True, 24, 48)
    answer = client.get("/api/models/ncca/regions?snippet=big+dog&top=4").json()
    for result, hit in zip(answer["results"], regions.searcher.regions("big dog", 4), strict=True):
        i = result["image_id"]
        assert (i, result["box"]) == (hit.row["image_id"], hit.row["box"])
        assert (result["width"], result["height"]) == (60 + i, 40)
        assert result["box"] in ([0, 0, 60 + i, 40], THING, OTHER)
    assert answer["unknown"] == []
    assert client.get("/api/models/ncca/regions?snippet=purple+dog").json()["unknown"] == ["purple"]
    assert len(client.get("/api/models/ncca/images?sentence=dog&top=3").json()["results"]) == 3
    assert client.get("/api/models/ncca/regions?snippet=").status_code == 422
    stranger = io.BytesIO()  # This photo is not in the index, so its regions are unknown.
    Image.new("RGB", (40, 40)).save(stranger, "PNG")
    other = {"photograph": ("other.png", stranger.getvalue())}
    for kind, file in (("sentences", other), ("arithmetic", photograph(run))):
        answer = client.post(f"/api/models/ncca/{kind}", files=file, data={"plus": ["dog"]})
        assert answer.status_code == 422 and "region" in answer.json()["error"]


def test_many_short_words_of_one_query_are_limited_together(client: TestClient, run: Path) -> None:
    words = {"plus": ["dog"] * 13, "minus": ["cat"] * 13}
    answer = client.post("/api/models/ncca/arithmetic", files=photograph(run), data=words)
    assert answer.status_code == 422 and "has 103 characters. Write at most 100." in answer.json()["error"]


def test_a_thumbnail_is_a_small_jpeg(client: TestClient) -> None:
    answer = client.get("/api/models/ncca/photographs/3")
    image = Image.open(io.BytesIO(answer.content))
    assert answer.headers["Content-Type"] == "image/jpeg" and image.format == "JPEG" and max(image.size) == 32
    np.testing.assert_allclose(image.getpixel((9, 9)), colour_of(3), atol=3)


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("ncca/images?sentence=", 422, "is empty"),
        ("ncca/images?sentence=%20%09", 422, "is empty"),
        ("ncca/images", 422, "sentence: Field required"),
        ("ncca/images?sentence=" + "dog+" * 26, 422, "has 104 characters. Write at most 100."),
        ("ncca/images?sentence=the+big", 422, "only stop words"),
        ("ncca/images?sentence=%00%ff%fe", 422, "Try other words"),
        ("ncca/images?sentence=dog&top=0", 422, "from 1 to 20"),
        ("ncca/images?sentence=dog&top=21", 422, "from 1 to 20"),
        ("ncca/images?sentence=dog&top=many", 422, "top: "),
        ("nothing/images?sentence=dog", 404, "There is no model 'nothing'. The models are: ncca, other."),
        ("..%2F..%2Fetc/images?sentence=dog", 404, ""),
    ],
)
def test_a_query_that_cannot_be_answered_gets_a_message(
    client: TestClient, query: str, status: int, error: str
) -> None:
    answer = client.get(f"/api/models/{query}")
    assert answer.status_code == status
    assert error in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/api/health", "/api/models/ncca/images?sentence=dog", "/api/models/no/images"])
def test_a_head_request_has_the_status_and_type_of_the_answer(client: TestClient, path: str) -> None:
    head = client.head(path)
    answer = client.get(path)
    assert (head.status_code, head.headers["Content-Type"]) == (answer.status_code, answer.headers["Content-Type"])


def test_metrics_count_requests_and_errors_by_route(gallery: ServedGallery) -> None:
    client = make_client(gallery)
    for sentence in ("dog", "cat", "unicorn"):
        client.get("/api/models/ncca/images", params={"sentence": sentence})
    client.get('/"} evil 1')
    answer = client.get("/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    route = "/api/models/{model}/images"
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert samples["jointspace_requests_total", route, "200"] == 2
    assert samples["jointspace_errors_total", route, "422"] == samples["jointspace_errors_total", "other", "404"] == 1
    assert samples["jointspace_request_seconds_count", route] == 3 and samples["jointspace_request_seconds_sum", route]
    assert samples["jointspace_requests_in_progress",] == 1
