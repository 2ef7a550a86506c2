"""Rows find their images by path, then by file name, and never by guessing."""

from pipeline.images.matching import match_names


def test_by_path_in_any_order() -> None:
    matching = match_names(["c.jpg", "x/a.jpg", "x/b.jpg"], ["x/a.jpg", "x/b.jpg", "c.jpg"])
    assert matching.rows.tolist() == [1, 2, 0] and matching.unmatched == []


def test_by_file_name_where_it_is_unique() -> None:
    matching = match_names(["/elsewhere/a.jpg", "b.jpg"], ["images/a.jpg", "images/b.jpg"])
    assert matching.rows.tolist() == [0, 1]


def test_ambiguous_file_names_match_nothing() -> None:
    among_images = match_names(["a.jpg"], ["x/a.jpg", "y/a.jpg"])
    assert among_images.rows.tolist() == [-1, -1] and among_images.unmatched == ["a.jpg"]
    among_rows = match_names(["p/a.jpg", "q/a.jpg"], ["x/a.jpg"])
    assert among_rows.rows.tolist() == [-1] and among_rows.unmatched == ["p/a.jpg", "q/a.jpg"]


def test_a_path_is_not_taken_for_its_file_name() -> None:
    matching = match_names(["x/a.jpg", "y/a.jpg"], ["x/a.jpg", "z/b.jpg"])
    assert matching.rows.tolist() == [0, -1] and matching.unmatched == ["y/a.jpg"]
    assert matching.missing(["x/a.jpg", "z/b.jpg"]) == ["z/b.jpg"]
