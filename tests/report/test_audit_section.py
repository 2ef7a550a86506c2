"""Tests of the section of the report about an audit."""

from pathlib import Path

import pyarrow as pa
from outline import report
from synthetic_run import by_hand

from pipeline.run.layout import Layout
from pipeline.storage.commit import read_commit
from pipeline.storage.tables import write_table

CAPTION = {
    "kind": "captions", "image_id": 1, "image": "<i>1.png", "split": "train", "captions": ["a dog", "the big dog"],
    "rather": "a <cat>", "score": -1.0, "threshold": -0.5, "rank": 7, "rivals": 22,
}  # fmt: skip
COPY = {
    "kind": "leak", "image_id": 0, "image": "0.png", "split": "train", "score": 0.97, "threshold": 0.8,
    "other_image_id": 2, "other_image": "2.png", "other_split": "test",
}  # fmt: skip


def test_findings_are_shown_only_if_they_belong_to_this_run(own: Path) -> None:
    layout = Layout(own)
    single = CAPTION | {"kind": "caption", "captions": ["a dog"], "image": "3.png", "image_id": 3, "reliable": False}
    findings = [CAPTION | {"reliable": True}, single, COPY]
    columns = dict.fromkeys([*COPY, *single])
    table = pa.Table.from_pylist([columns | finding for finding in findings])
    made_from = {"manifest/manifest.json#fingerprint": read_commit(layout.manifest.commit).value["fingerprint"]}
    write_table(layout.audit.path, "audit", table, provenance=by_hand(own, **made_from), details={"scored": True})
    text = " ".join(report(own).parts["Audit: captions and near-duplicates"].split())
    assert "1 near-duplicates in different splits" in text and "1 photos whose captions" in text
    assert "<i>1.png train all its captions: rank 7 of 23 a dog the big dog a <cat> a better match" in text
    headings = [
        "Single captions",
        "Photos with all their captions",
        "lists the 1 photos of which at most about one in ten",
        "Near-duplicates",
    ]
    assert sorted(headings, key=text.index) == headings
    assert "2.png test, correlation 0.97" in text

    made_from = {place: "another" for place in made_from}
    write_table(layout.audit.path, "audit", table, provenance=by_hand(own, **made_from), details={"scored": True})
    assert "Audit: captions and near-duplicates" not in report(own).parts
