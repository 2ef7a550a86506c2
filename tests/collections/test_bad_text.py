"""Unusable sentences, weak texts and boxes are rejected, and no other records are rejected with them."""

from pathlib import Path

import pytest

from pipeline.errors import InputError

LATIN = "not UTF-8: the text is probably WINDOWS-1252 (Latin-1). Convert the file with `{}`".format(
    "iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW"
)
OTHER = "not UTF-8: the text has another encoding, such as GB18030 or WINDOWS-1251. Save the file as UTF-8"
BYTES = "not UTF-8: the text has bytes of another encoding, or a lone surrogate. Save the file as UTF-8"
EMPTY = "empty: the caption has no words. Its photo is used without it"
FIELDS = "wrong number of fields: the row has {} fields between tabs, but must have {}. Correct it"
SEPARATOR = "wrong separator: the file name is followed by {}, and not by a tab. Write tabs between fields"
NUMBER = "wrong number of the caption: the second field must be a whole number from 0, not {!r}"
CAPTIONS = {
    "empty": (b"a.jpg\t1\t\n", EMPTY),
    "blank": (b"a.jpg\t1\t \xe3\x80\x80 \n", EMPTY),
    "too long": (
        b"a.jpg\t1\t" + b"x" * 201 + b"\n",
        "too long: the text has 201 characters, but only 200 are allowed. Shorten it",
    ),
    "10 MB": (
        b"a.jpg\t1\t" + b"dog " * 2_500_000 + b"\n",
        "too long: the text has 10000000 characters, but only 200 are allowed. Shorten it",
    ),
    "NUL": (b"a.jpg\t1\tA \0 dog\n", "NUL character: the text contains a character of value 0. Remove it"),
    "not UTF-8": (b"a.jpg\t1\tA d\xf6g\n", LATIN),
    "a surrogate in UTF-8": (b"a.jpg\t1\tA \xed\xa0\x80 dog\n", OTHER),
    "repeated": (b"a.jpg\t0\tA cat .\n", "repeated: this image has another caption of this number"),
    "no tab": (b"a.jpg\n", FIELDS.format(1, "3 or 2")),
    "spaces": (b"a.jpg A dog .\n", SEPARATOR.format("a space")),
    "semicolons": (b"a.jpg ; 1; A dog .\n", SEPARATOR.format("a semicolon")),
    "quoted": (b'"a.jpg","A dog ."\n', SEPARATOR.format("a comma")),
    "number alone": (
        b"a.jpg\t1\n",
        "no caption: the row has only a file name and the number 1. Write the caption after a tab",
    ),
    "tab in it": (b"a.jpg\t1\tA\tdog .\n", FIELDS.format(4, "3 or 2")),
    "no number": (b"a.jpg\tone\tA dog .\n", NUMBER.format("one")),
    "5,000 digits": (b"a.jpg\t" + b"1" * 5000 + b"\tA dog .\n", NUMBER.format("1" * 20)),
    "negative": (b"a.jpg\t-1\tA dog .\n", NUMBER.format("-1")),
    "enormous number": (
        b"a.jpg\t9999999999\tA dog .\n",
        "wrong number of the caption: 9999999999 is larger than 2147483647",
    ),
    "missing image": (b"x.jpg\t0\tA dog .\n", "image rejected: its photo cannot be used"),
}


def test_bad_sentences(collection: Path, gather) -> None:
    lines, reasons = zip(*CAPTIONS.values(), strict=True)
    with open(collection / "captions.tsv", "ab") as file:
        file.write(b"".join(lines) + b"a.jpg\t7\tStill here .\r\n")
    result = gather(collection)
    rejected = sorted(result.rejected("sentences"))
    assert rejected == [("captions.tsv", row, reason) for row, reason in enumerate(reasons, 4)]
    assert "Still here ." in result.tables["sentences"]["text"].to_pylist()
    result.check_counts()


def test_lone_surrogates_in_json_are_rejected(collection: Path, gather) -> None:
    (collection / "t.jsonl").write_text('{"file": "images/a.jpg", "sentence": ["A \\ud800 dog", "A dog .", 3]}\n')
    result = gather(collection, "table", files={"table": "t.jsonl"})
    reasons = [reason for *_, reason in result.rejected("sentences")]
    assert reasons == [BYTES, "not a text: the caption is a value of the type int. Write it as text"]
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog ."]


# The text that is too long is also longer than the limit of a field in Python's csv module, 131,072 characters.
TOO_LONG = "too long: the text has 200000 characters, but only 200 are allowed. Shorten it"
ROWS = {
    "csv": b'file,sentence\nimages/a.jpg,"A\ndog"\nimages/a.jpg,A d\xf6g\nimages/a.jpg\nimages/b.jpg,A "cat" .\n,x\n'
    b"images/a.jpg," + b"x" * 200_000 + b"\n",
    "jsonl": b'{"file": "images/a.jpg", "sentence": "A dog"}\n\xff\n{"file": NaN}\n[]\n'
    b'{"file": "images/b.jpg", "sentence": "A cat"}\n{"file": 3}\n{"file": "a", "file": "b"}\n',
}


@pytest.mark.parametrize("kind", ROWS)
def test_bad_rows_of_tables(kind: str, collection: Path, gather) -> None:
    (collection / f"t.{kind}").write_bytes(ROWS[kind])
    result = gather(collection, "table", files={"table": f"t.{kind}"})
    expected = {
        "csv": {4: LATIN, 5: "wrong number of fields: the row has 1, but the header has 2", 8: TOO_LONG},
        "jsonl": {
            2: LATIN,
            4: 'not a JSON object: each row must be one, such as {"file": "a.jpg"}',
            7: "not JSON: the key 'file' is repeated in an object",
        },
    }
    assert {row: reason for _, row, reason in result.rejected("sentences")} == expected[kind]
    assert result.counts["sentences"]["kept"] == 2
    result.check_counts()


def test_damaged_rows_of_a_table_with_letters_in_utf8_are_rejected(collection: Path, gather) -> None:
    rows = [b"images/a.jpg,A d\xf6g .", *[b"images/a.jpg,Another c\xe4t ."] * 3, "images/b.jpg,Größer .".encode()]
    (collection / "t.csv").write_bytes(b"\n".join([b"file,sentence", *rows]))
    result = gather(collection, "table", files={"table": "t.csv"})
    assert result.rejected("sentences") == [("t.csv", row, LATIN) for row in range(2, 6)]
    assert result.tables["sentences"]["text"].to_pylist() == ["Größer ."]


def test_bad_text_in_parquet(collection: Path, gather) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array([b"A dog .", b"A d\xf6g", None]).view(pa.string())
    pq.write_table(pa.table({"file": ["images/a.jpg"] * 3, "sentence": texts}), collection / "t.parquet")
    result = gather(collection, "table", files={"table": "t.parquet"})
    assert result.rejected("sentences") == [("t.parquet", 2, BYTES)]
    assert result.counts["sentences"] == {"given": 2, "kept": 1, "rejected": 1, "duplicate": 0}


def test_html_entities_are_decoded_once_and_counted(collection: Path, gather) -> None:
    (collection / "captions.tsv").write_text("a.jpg\t0\tA dog &amp; its &#39;owner&#39; &amp;amp; R&D &nothing;\n")
    result = gather(collection)
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog & its 'owner' &amp; R&D &nothing;"]
    assert any(note.startswith("1 texts had characters as HTML") for note in result.notes)


@pytest.mark.parametrize("header", ["", "file\ttitle\n", "a.jpg\tTitle\tdog\ttext\n"])
def test_a_table_without_its_header(header: str, collection: Path, gather) -> None:
    (collection / "weak.tsv").write_text(header)
    with pytest.raises(
        InputError, match=r"weak\.tsv lacks the column .*Its first row must name the columns file, title"
    ):
        gather(collection)


BOXES = {
    "1\t1\t1\t5\t0.5": "no area: x2 must be larger than x1, and y2 larger than y1",
    "5\t1\t1\t5\t0.5": "no area: x2 must be larger than x1, and y2 larger than y1",
    "nan\t1\t5\t5\t0.5": "not finite: a number is NaN, infinite or too large",
    "1\t1\t5\tinf\t0.5": "not finite: a number is NaN, infinite or too large",
    "1\t1\t5\t5\t1e99": "not finite: a number is NaN, infinite or too large",
    "40\t1\t50\t5\t0.5": "outside of the image: the box does not overlap the photo",
    "-9\t-9\t0\t5\t0.5": "outside of the image: the box does not overlap the photo",
    "1\t1\tx\t5\t0.5": "not five numbers: x1, y1, x2, y2 and score are 1, 1, x, 5, 0.5. Correct these values",
    "1\t1\t5\t0.5": FIELDS.format(6, 7),
}


def test_bad_boxes(collection: Path, gather) -> None:
    good = "a.jpg\t1\t1\t5\t5\t1\tdog"
    rows = ["file\tx1\ty1\tx2\ty2\tscore\tlabel", good, *(f"a.jpg\t{numbers}\tdog" for numbers in BOXES), good]
    (collection / "boxes.tsv").write_text("\n".join([*rows, good.replace("a.jpg", "z.jpg")]))
    result = gather(collection)
    reasons = [*BOXES.values(), None, "unknown image: 'z.jpg' is not a photo of the collection"]
    expected = [("boxes.tsv", row, reason) for row, reason in enumerate(reasons, 3) if reason]
    assert sorted(result.rejected("boxes")) == expected
    assert result.counts["boxes"]["kept"] == 2
    result.check_counts()
