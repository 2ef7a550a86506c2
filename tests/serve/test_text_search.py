"""Words as text, words to exclude, and the order by a column, in the API."""

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
