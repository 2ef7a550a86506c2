"""Tests of reports with inputs that are damaged, moved, hostile or of another run."""

import re
import shutil
from pathlib import Path

import pytest
from outline import report
from synthetic_run import by_hand, make_run

from pipeline.errors import IntegrityError
from pipeline.images.opening import ImageLimits
from pipeline.report.photographs import Photographs
from pipeline.run.layout import Layout
from pipeline.storage.json_files import CHECK, read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.records import write_summary
from pipeline.storage.sources import ImageSource


def write_evaluations(run: Path, changes: dict) -> None:
    """Write the summary of the run again, with `changes` to each of its evaluations."""
    path = Layout(run).summary.path
    values = [{key: said for key, said in value.items() if key != CHECK} | changes for value in read_json(path)]
    write_summary(path, values, "", by_hand(run))


def test_text_from_outside_is_escaped(own: Path) -> None:
    write_evaluations(own, {"protocol": "<script>alert(1)</script>"})
    report(own, {"name": "a"})
    html = (own / "report" / "index.html").read_text()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert "<h1>a</h1>" in html


def test_a_missing_photo_is_marked_as_not_readable(run: Path) -> None:
    path = run / "data" / "dog-8.png"
    data = path.read_bytes()
    path.unlink()
    try:
        assert "not readable" in report(run).text
    finally:
        path.write_bytes(data)
    assert "not readable" not in report(run).text


def test_an_index_of_another_manifest_is_refused(own: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", images=16)
    shutil.rmtree(own / "manifest")
    shutil.copytree(other / "manifest", own / "manifest")
    with pytest.raises(IntegrityError, match=r"(summary|card)[.\w]*\.json is (mixed|missing)|00002\.json is missing"):
        report(own)


def test_photos_of_a_moved_collection_are_found_in_data_root(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks that photos of a moved collection are read from data_root. If they are not there, a warning says how many
    photos are not shown. A file with the name of a photo and other contents is not shown."""
    (run / "data").rename(tmp_path / "moved")
    try:
        sound = report(run, {"data_root": str(tmp_path / "moved")})
        assert f"{run / 'data'} no longer exists. The photos are read from data_root" in caplog.text
        assert "photos are not shown" not in caplog.text and "not readable" not in sound.text
        images = Manifest(run / "manifest").images.to_pylist()
        show = Photographs(ImageSource(tmp_path / "moved").read, ImageLimits(10**6, 1, 100), moved=True)
        assert show(images[0]).address and not show({**images[1], "sha256": images[0]["sha256"]}).address
        assert show.shown == {0: True, 1: False}
        caplog.clear()
        report(run, {"data_root": str(tmp_path / "nowhere")})
        assert re.search(r"(\d+) of \1 photos are not shown, because .* Set data_root to their folder", caplog.text)
    finally:
        (tmp_path / "moved").rename(run / "data")
    caplog.clear()
    report(run)
    assert "photos" not in caplog.text
