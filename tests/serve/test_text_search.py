"""Tests of the API: it finds the words of a query in texts, excludes words, and sorts results by a column."""

from pathlib import Path

from served_run import make_client, open_gallery
from synthetic_run import with_columns


def test_api_finds_words_and_sorts(run: Path, tmp_path: Path) -> None:
    numbers = [f"INV {row}/{row % 8:04d}" for row in range(24)]
    museum = with_columns(run / "bundle", tmp_path / "index", number=numbers, count=[*range(24)])
    client = make_client(open_gallery(museum))
    asked = {"sentence": "INV 12/0004", "top": 3}
    (result,) = client.get("/api/models/ncca/images", params=asked).json()["results"]
    assert (result["name"], result["matches"], result["rank"]) == ("boat-12.png", ["number"], 1)
    answer = client.get("/api/models/ncca/images", params={**asked, "match_text": "false"})
    assert answer.status_code == 422 and "none of the words" in answer.json()["error"]
    changed = client.get("/api/models/ncca/images", params={"sentence": "dog cat", "minus": "cat", "sort": "-count"})
    counts = [one["columns"]["count"] for one in changed.json()["results"]]
    assert counts == sorted(counts, reverse=True) and len(counts) == 5


def test_a_named_photo_stays_first_with_a_region_model(run: Path, tmp_path: Path) -> None:
    """A photo whose column `name` equals the query comes first, also if the results are sorted by another column. The
    model knows the query "dog", so the results for "dog" have boxes. The model does not know the inventory number that
    is the second query, so the photo is found by words alone and has no box."""
    names = [f"INV {row}/{row % 8:04d}" for row in range(24)]
    names[3] = "dog"
    museum = with_columns(run / "regions", tmp_path / "index", name=names, count=[*range(24)])
    gallery = open_gallery(museum)
    for sort in (None, "-count"):
        dogs = gallery.images("dog", 4, sort=sort)
        assert dogs.identified == 1 and dogs[0].row["path"] == "horse-3.png" and dogs[0].matches == ("name",)
        assert [hit.rank for hit in dogs] == [1, 2, 3, 4] and all(len(hit.row["box"]) == 4 for hit in dogs)
        found = gallery.images("INV 12/0004", 4, sort=sort)
        assert found.identified == 1 and [hit.row["path"] for hit in found] == ["boat-12.png"]
    asked = {"sentence": "INV 12/0004"}
    (result,) = make_client(gallery).get("/api/models/ncca/images", params=asked).json()["results"]
    assert (result["name"], result["matches"], result["box"]) == ("boat-12.png", ["name"], None)
