"""The Pascal sentences as published: a page and a folder of images for each category."""

import html
from collections import Counter
from pathlib import Path

import pytest

CATEGORIES = {"aeroplane": "2008_00{:04d}.jpg", "tvmonitor": "2008_01{:04d}.jpg"}
IMAGES = 50


def write_page(root: Path, photograph, folder: str = "") -> dict[str, list[str]]:
    """A page of the published form, out of the order of the ids, and its images; returns the sentences of each."""
    sentences, rows = {}, []
    for category, name in CATEGORIES.items():
        (root / folder / category).mkdir(parents=True)
        rows.append(f"<h2>{category}</h2>")
        for number in reversed(range(IMAGES)):
            file = f"{category}/{name.format(7 * number)}"
            sentences[file] = [f"Caption {k} of {number} & a {category}\u2028." for k in range(5)]
            (root / folder / file).write_bytes(photograph(len(sentences)))
            cells = "\n".join(f"<tr><td> {html.escape(text)}\n </td></tr>" for text in sentences[file])
            rows.append(f'<tr><td><img src="{file}"></td>\n<td><table>\n{cells}\n</table></td></tr>')
    (root / "index.html").write_text(f"<html><body><table>{''.join(rows)}</table></body></html>")
    return sentences


@pytest.mark.parametrize("folder", ["", "dataset"])
def test_the_page_is_read_and_divided_by_ids(folder: str, tmp_path: Path, photograph, gather) -> None:
    expected = write_page(tmp_path, photograph, folder)
    collection = gather(tmp_path, "pascal1k")
    images, sentences = (collection.tables[name].to_pylist() for name in ("images", "sentences"))
    kept = {image["path"].removeprefix("dataset/"): image for image in images}
    found: dict[int, list[str]] = {}
    for row in sentences:
        found.setdefault(row["image_id"], []).append(row["text"])
    assert {name: found[image["image_id"]] for name, image in kept.items()} == {name: expected[name] for name in kept}
    for category in CATEGORIES:
        own = sorted(name for name in expected if name.startswith(category))
        assert [kept[name]["split"] for name in own] == (["train"] * 8 + ["dev", "test"]) * 5
    assert Counter(image["split"] for image in images) == {"train": 80, "dev": 10, "test": 10}


def test_an_image_that_is_not_there_or_outside_is_rejected_alone(tmp_path: Path, photograph, gather) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(photograph(0))
    sources = ("cat/a.jpg", "cat/gone.jpg", "../outside.jpg", "http://host/cat/a.jpg")
    page = "".join(f'<tr><td><img src="{one}"></td><td>A cat.</td></tr>' for one in sources)
    (tmp_path / "index.html").write_text(page)
    collection = gather(tmp_path, "pascal1k")
    assert [image["path"] for image in collection.tables["images"].to_pylist()] == ["cat/a.jpg"]
    assert {one.what for one in collection.rejects} >= {"images"}
