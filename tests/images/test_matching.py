"""Rows find their images by path, then by file name, and never by guessing."""

import pytest

from pipeline.images.matching import match_names


@pytest.mark.parametrize(
    ("names", "images", "rows", "unmatched"),
    [
        (["c.jpg", "x/a.jpg", "x/b.jpg"], ["x/a.jpg", "x/b.jpg", "c.jpg"], [1, 2, 0], []),
        (["/elsewhere/a.jpg", "b.jpg"], ["images/a.jpg", "images/b.jpg"], [0, 1], []),
        (["a.jpg"], ["x/a.jpg", "y/a.jpg"], [-1, -1], ["a.jpg"]),
        (["p/a.jpg", "q/a.jpg"], ["x/a.jpg"], [-1], ["p/a.jpg", "q/a.jpg"]),
        (["x/a.jpg", "y/a.jpg"], ["x/a.jpg", "z/b.jpg"], [0, -1], ["y/a.jpg"]),
    ],
)
def test_rows_find_their_images(names: list[str], images: list[str], rows: list[int], unmatched: list[str]) -> None:
    matching = match_names(names, images)
    assert matching.rows.tolist() == rows and matching.unmatched == unmatched
