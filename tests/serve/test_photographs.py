"""What is shown of the photographs of an index, what their columns hold, and what scores mean."""

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_up import build_bundle, make_run
from made_up_sets import OTHER, THING, add_fragments
from PIL import Image

from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from pipeline.storage.evaluations import write_summary
from pipeline.storage.sources import ImageSources

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("prometheus_client", reason="pip install 'jointspace[serve]'")
pytest.importorskip("python_multipart", reason="python-multipart is not installed: pip install 'jointspace[serve]'")
from fastapi.testclient import TestClient  # noqa: E402
from visiting import CHECK, LIMITS, PIXELS, make_client, see  # noqa: E402

from pipeline.index.shared_encoders import SharedEncoders  # noqa: E402
from pipeline.serve.app import build_app  # noqa: E402
from pipeline.serve.gallery import ServedGallery  # noqa: E402
from pipeline.serve.overview import facets, spread  # noqa: E402
from stages.index.serve import LAST, _place  # noqa: E402

ONE = "/api/models/ncca/photographs/3"


def test_what_is_known_of_a_photograph(client: TestClient, run: Path) -> None:
    answer = client.get(f"{ONE}/about").json()
    assert answer["sentences"] == ["a horse", "the big horse number 3"] and answer["caption"] == "a horse"
    assert (answer["name"], answer["split"], answer["width"], answer["height"]) == ("horse-3.png", "train", 63, 40)
    assert answer["original"] is None and client.get(f"{ONE}/original").status_code == 404
    large = Image.open(io.BytesIO(client.get(answer["large"]).content))
    assert large.format == "JPEG" and large.size == (63, 40)
    assert client.get("/api/models/ncca/photographs/24/about").status_code == 404


def test_files_are_given_as_they_are_where_that_is_allowed(gallery: ServedGallery, run: Path) -> None:
    client = TestClient(build_app({"ncca": gallery}, LIMITS, 1, ["testserver"], CHECK, originals=True))
    answer = client.get(client.get(f"{ONE}/about").json()["original"])
    assert answer.content == (run / "data" / "horse-3.png").read_bytes()
    assert answer.headers["Content-Type"] == "image/png" and "Content-Disposition" not in answer.headers


def test_photographs_to_begin_with_are_spread_and_more_of_them_begin_alike(client: TestClient) -> None:
    def browse(**query: object) -> dict:
        return client.get("/api/models/ncca/photographs", params=query).json()

    few, more = browse(top=4), browse(top=20)
    assert few["count"] == 24 and few["results"] == more["results"][:4]
    assert len({one["image_id"] for one in more["results"]}) == 20
    assert len({one["image_id"] // 6 for one in few["results"]}) >= 3
    held = browse(where="split = 'test'", top=20)
    assert held["count"] == 8 and {one["image_id"] % 3 for one in held["results"]} == {2}
    assert browse(where="split = 'none'") == {"model": "ncca", "count": 0, "results": []}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 89, 1000, 6765])
def test_every_place_is_met_once(count: int) -> None:
    places = spread(count, count + 5)
    assert sorted(places.tolist()) == list(range(count))
    few = np.sort(spread(count, 8))
    if count > 16:
        assert np.diff([*few, few[0] + count]).max() < 3 * count / 8


def test_what_a_filter_can_offer(client: TestClient) -> None:
    assert client.get("/api/models/ncca/columns").json()["columns"] == {
        "split": {"kind": "text", "values": ["test", "train"], "least": None, "most": None},
        "width": {"kind": "numbers", "values": None, "least": 60, "most": 83},
        "height": {"kind": "numbers", "values": None, "least": 40, "most": 40},
    }
    table = pa.table(
        {
            "shop": [f"shop {i}" for i in range(30)],
            "sold": [True, None, False] * 10,
            "price": [math.inf] * 30,
            "gone": pa.nulls(30, pa.int64()),
        }
    )
    assert facets(table.schema, [table[:10], table[10:]]) == {
        "shop": {"kind": "text", "values": []},
        "sold": {"kind": "truth", "values": [False, True]},
    }


def test_a_scale_is_of_typical_and_of_right_pairs(client: TestClient) -> None:
    """All photographs of a thing have one vector but for noise, and so has its word; those of others are far."""
    scale = client.get("/api/models").json()["models"][0]["scale"]
    assert scale["same_image"] == pytest.approx(1, abs=1e-5) and scale["right"] > 0.95
    assert scale["typical"] < 0.5 and scale["typical_image"] < 0.5


def test_a_photograph_of_an_index_is_asked_about_by_its_id(client: TestClient) -> None:
    for kind, form in (("similar", {}), ("sentences", {}), ("arithmetic", {"plus": "horse"})):
        answer = client.post(
            f"/api/models/other/{kind}", params={"top": 3}, data={"of": "ncca", "image_id": 3, **form}
        ).json()
        first = answer["results"][0]
        assert "horse" in first.get("text", first.get("name")) and len(answer["results"]) == 3
    for form in ({}, {"image_id": 3}, {"of": "ncca"}):
        told = client.post("/api/models/ncca/similar", data=form)
        assert told.status_code == 422 and "give a photograph" in told.json()["error"]
    assert client.post("/api/models/ncca/similar", data={"of": "none", "image_id": 3}).status_code == 404
    assert client.post("/api/models/ncca/similar", data={"of": "ncca", "image_id": 99}).status_code == 422


def test_the_region_that_fits_the_words_best_is_on_each_answer(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0.0})
    searcher = Searcher(Bundle(build_bundle(run, model="dvsa")))
    client = make_client(ServedGallery(searcher, see, ImageSources([run / "data"]).read, PIXELS, 32))
    words, found = (
        searcher.embed_sentence("big dog").vectors,
        client.get("/api/models/ncca/images?sentence=big+dog&top=9"),
    )
    for result in found.json()["results"]:
        item = searcher.gallery("images").item(result["image_id"])
        products = [sum(float(region @ word) for word in words) for region in item.vectors]
        boxes = [[0, 0, 60 + result["image_id"], 40], THING, OTHER]
        assert products[boxes.index(result["box"])] == pytest.approx(max(products), abs=1e-6)
    assert len(found.json()["results"]) == 9
    assert client.get("/api/models").json()["models"][0]["scale"] is None


def test_encoders_are_warm_before_the_first_photograph(gallery: ServedGallery) -> None:
    seen = []
    gallery.features = seen.append
    with TestClient(build_app({"ncca": gallery}, LIMITS, 1, ["testserver"], CHECK, warm=True)) as client:
        assert client.get("/api/health").status_code == 200
    assert len(seen) == 1 and Image.open(io.BytesIO(seen[0])).format == "JPEG"


def test_a_photograph_is_encoded_once_for_all_models() -> None:
    restored, encoded = [], []

    class Eyes:
        def encode(self, images: list) -> np.ndarray:
            encoded.append(images[0])
            return np.full((1, 2), len(encoded), np.float32)

    class Part:
        def __init__(self, sha256: str, side: int) -> None:
            self.key = f"{sha256} {side}"

        def open(self) -> Eyes:
            restored.append(self.key)
            return Eyes()

    encoders = SharedEncoders(lambda data: data)
    for _ in range(3):
        found = encoders(b"one", {"a": Part("x", 1), "b": Part("y", 1), "same": Part("x", 1)})
        assert found["a"] is found["same"] and len(encoded) == 2
    encoders(b"one", {"a": Part("x", 2)})  # other settings with the same tensors are another encoder
    encoders(b"two", {"a": Part("x", 1)})
    assert len(restored) == 3 and len(encoded) == 4
    for number in range(2 * SharedEncoders.KEPT):
        encoders(str(number).encode(), {"a": Part("x", 1)})
    assert len(encoders._features) == SharedEncoders.KEPT


def test_the_best_model_of_a_run_comes_first(tmp_path: Path) -> None:
    run, recalls = make_run(tmp_path / "run"), ("recall@1", "recall@5", "recall@10")
    (run / "index").mkdir()
    folder = build_bundle(run).rename(run / "index" / "ncca")
    assert _place(folder) == LAST

    def evaluation(model: str, recall: float) -> dict:
        both = {**dict.fromkeys(recalls, recall), "median_rank": 1, "mean_rank": 1.0}
        about = {"model": model, "split": "test", "protocol": "all-sentences", "n_images": 8, "n_sentences": 16}
        inputs = {"manifest": "m", "embeddings/00000": "e"}
        return {**about, "image_to_sentence": both, "sentence_to_image": both, "inputs": inputs, "fingerprint": "f"}

    (run / "evaluation").mkdir(exist_ok=True)
    for recall, place in ((10.0, 1), (90.0, 0)):
        values = [evaluation("ncca", recall), evaluation("sae", 50.0)]
        write_summary(run / "evaluation" / "summary.json", values, "")
        assert _place(folder) == place


def test_a_collection_is_named_by_its_run(gallery: ServedGallery, tmp_path: Path) -> None:
    assert gallery.collection == "bundle"
    (tmp_path / "holiday" / "index").mkdir(parents=True)
    (tmp_path / "holiday" / "index" / "ncca").symlink_to(gallery.bundle.folder)
    there = ServedGallery(Searcher(Bundle(tmp_path / "holiday" / "index" / "ncca")), see, gallery._read, PIXELS, 32)
    assert there.collection == "holiday"
    client = make_client(there, replace(LIMITS, top=2))
    assert client.get("/api/models").json()["models"][0]["collection"] == "holiday"


def test_several_bundles_are_one_gallery(run: Path, tmp_path: Path) -> None:
    """Their ids are those of the run, each photograph and its sentences are found, and it is counted once."""
    from pipeline.storage.bundles import open_bundle

    bundle = open_bundle(build_bundle(run, {"index": {"bundles": 3}}, output="several"))
    several = ServedGallery(Searcher(bundle), see, bundle.photographs().read, PIXELS, 32)
    assert (several.count("images"), several.count("sentences")) == (24, 48)
    for image_id in (0, 13, 23):
        path = several.row(image_id)["path"]
        assert several.original(image_id) == (run / "data" / path).read_bytes()
        assert several.sentences_of(image_id) == [
            f"a {path.partition('-')[0]}",
            f"the big {path[:-4].replace('-', ' number ')}",
        ]
    assert sorted(row["image_id"] for row, _ in several.browse(24)[1]) == list(range(24))
    assert [hit.row["path"] for hit in several.images("dog", 3)] == ["dog-0.png", "dog-8.png", "dog-16.png"]
    assert several.scale is not None
