"""Tests of unusable images: each is rejected for a reason, together with its texts, and is counted."""

import io
import os
import random
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pipeline.errors import InputError
from pipeline.storage.index_folder import require_plain_rows


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_texts_of_bad_images_are_rejected_with_them(collection: Path, photograph, gather) -> None:
    spoilt = {
        "cut.jpg": photograph(7)[:-2],
        "page.jpg": b"<html>",
        "tiny.png": photograph(8, "PNG", (4, 4)),
        "no.jpg": None,
    }
    for name, data in spoilt.items():
        append(collection / "captions.tsv", f"{name}\t0\tA dog .\n")
        if data is not None:
            (collection / "images" / name).write_bytes(data)
    (collection / "boxes.tsv").write_text("file\tx1\ty1\tx2\ty2\tscore\tlabel\ncut.jpg\t1\t1\t5\t5\t1\tdog\n")
    result = gather(collection)
    reasons = {file: reason.partition(":")[0] for file, _, reason in result.rejected("images")}
    assert reasons == {
        "images/cut.jpg": "truncated",
        "images/page.jpg": "not-an-image",
        "images/tiny.png": "too-small",
        "images/no.jpg": "missing",
    }
    assert result.rejected("sentences") == [
        ("captions.tsv", row, "image rejected: its photo cannot be used") for row in (4, 5, 6, 7)
    ]
    assert result.rejected("boxes") == [("boxes.tsv", 2, "image rejected: its photo cannot be used")]
    result.check_counts()


def test_a_copy_is_omitted_and_its_other_sentences_are_kept(collection: Path, photograph, gather) -> None:
    (collection / "images" / "copy.jpg").write_bytes(photograph(0))
    append(collection / "captions.tsv", "copy.jpg\t0\tA dog a.jpg .\ncopy.jpg\t1\tA cat .\n")
    append(collection / "splits.tsv", "copy.jpg\ttest\na.jpg\ttest\n")
    result = gather(collection)
    assert result.rejected("images") == [
        ("splits.tsv", 5, "duplicate: 'a.jpg' was named before"),
        ("images/copy.jpg", None, "duplicate: the same bytes as images/a.jpg"),
    ]
    assert result.rejected("sentences") == [("captions.tsv", 4, "duplicate image")]
    texts = result.tables["sentences"].filter(pc.equal(result.tables["sentences"]["image_id"], 0))["text"]
    assert texts.to_pylist() == ["A dog a.jpg .", "A cat ."]
    assert any(line.startswith("1 captions of exact copies") for line in result.format_summary())
    assert result.tables["images"]["split"].to_pylist() == ["train", "train", "test"]
    result.check_counts()


def test_names_outside_the_collection_are_never_opened(collection: Path, photograph, gather) -> None:
    (collection.parent / "secret.jpg").write_bytes(photograph(99))
    names = ("../secret.jpg", "/etc/passwd", "x/../../secret.jpg")
    append(collection / "captions.tsv", "".join(f"{name}\t0\tA dog .\n" for name in names))
    result = gather(collection)
    rejected = [(file, row, reason.partition(":")[0]) for file, row, reason in result.rejected("images")]
    assert rejected == [("captions.tsv", row, "outside") for row in (4, 5, 6)]
    assert result.rejected("sentences") == [
        ("captions.tsv", row, "image rejected: its photo cannot be used") for row in (4, 5, 6)
    ]
    result.check_counts()


def test_names_that_an_index_cannot_store_are_rejected_with_the_remedy(tmp_path: Path, photograph, gather) -> None:
    odd = {"Strand\\Ebbe.jpg": "has a backslash", "E:plan.png": "begins with a letter and a colon"}
    sound = ("Strand.jpg", "Ebbe: 12.jpg", "12:30.jpg")
    for number, name in enumerate((*odd, *sound)):
        (tmp_path / name).write_bytes(photograph(number))
    member = tarfile.TarInfo("Strand\\Flut.jpg")
    member.size = len(photograph(9))
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        tar.addfile(member, io.BytesIO(photograph(9)))
    (tmp_path / "captions.tsv").write_text("Strand/Ebbe.jpg\tlow tide\nStrand.jpg\thigh tide\n")
    result = gather(tmp_path, default="gallery")
    inside = gather(tmp_path, "webdataset")
    rejected = [*result.rejected("images"), *inside.rejected("images")]
    assert len(rejected) == 3 and all(reason.endswith("Rename the file") for _, _, reason in rejected)
    for name, why in {**odd, member.name: "has a backslash"}.items():
        assert sum(f"{name!r} {why}" in reason for _, _, reason in rejected) == 1
    # The tables of images in an index are read with this check, so it must accept these images.
    require_plain_rows(Path("images.parquet"), result.tables["images"], 0)
    assert sorted(result.tables["images"]["path"].to_pylist()) == sorted(sound)
    assert result.tables["sentences"]["text"].to_pylist() == ["high tide"]
    result.check_counts()


def test_names_that_are_not_utf8(tmp_path: Path, photograph, gather) -> None:
    for number, name in enumerate((b"good", b"b\xf6d")):
        folder = os.fsencode(tmp_path)
        with (
            open(os.path.join(folder, name + b".jpg"), "wb") as image,
            open(os.path.join(folder, name + b".txt"), "wb") as text,
        ):
            image.write(photograph(number))
            text.write(b"A dog .\n")
    result = gather(tmp_path, "text-files")
    ((file, _, reason),) = result.rejected("images")
    assert file == "b\udcf6d.jpg" and reason.startswith("not UTF-8: ")
    assert result.rejected("sentences") == [("b\udcf6d.txt", 1, "image rejected: its photo cannot be used")]
    result.check_counts()


@pytest.mark.parametrize("seed", range(2))
def test_counts_hold_for_any_mixture(seed: int, tmp_path: Path, photograph, gather) -> None:
    rng = random.Random(seed)
    (tmp_path / "images").mkdir()
    names = [f"{n}.jpg" for n in range(40)]
    for name in names[:-4]:
        data = photograph(rng.randrange(25))
        (tmp_path / "images" / name).write_bytes(data[: rng.choice([len(data)] * 5 + [40])])
    texts = [b"A dog .", b"A dog .", b"", b"\xff", b"x" * 300, b"\0"]
    fields = ["1", "5", "9", "nan", "-1", "x", "30"]
    with open(tmp_path / "captions.tsv", "wb") as file:
        for _ in range(120):
            file.write(b"%s\t%d\t%s\n" % (rng.choice(names).encode(), rng.randrange(4), rng.choice(texts)))
    with open(tmp_path / "splits.tsv", "w") as file:
        file.writelines(
            f"{rng.choice(names)}\t{rng.choice(['train', 'val', 'test', 'weak', 'gallery', 'x'])}\n" for _ in range(50)
        )
    with open(tmp_path / "weak.tsv", "w") as file:
        file.write("file\ttitle\ttags\tdescription\n")
        file.writelines(f"{rng.choice(names)}\t{rng.choice(['', 'T'])}\t\t\n" for _ in range(30))
    with open(tmp_path / "boxes.tsv", "w") as file:
        file.write("file\tx1\ty1\tx2\ty2\tscore\tlabel\n")
        file.writelines("\t".join([rng.choice(names), *rng.choices(fields, k=5), "dog"]) + "\n" for _ in range(200))
    result = gather(tmp_path)
    result.check_counts()
    assert all(count["given"] for count in result.counts.values())
    assert result.counts["sentences"]["given"] == 120 and result.counts["boxes"]["given"] == 200
    tables = result.tables
    n_images = tables["images"].num_rows
    assert tables["images"]["image_id"].to_pylist() == list(range(n_images))
    assert tables["sentences"]["sentence_id"].to_pylist() == list(range(tables["sentences"].num_rows))
    with_sentence = set(tables["sentences"]["image_id"].to_pylist())
    with_document = set(tables["documents"]["image_id"].to_pylist())
    for what in ("sentences", "documents", "boxes"):
        owners = tables[what]["image_id"].to_pylist()
        assert owners == sorted(owners) and set(owners) <= set(range(n_images))
    for image in tables["images"].to_pylist():
        assert (
            image["image_id"] in with_sentence
            or (image["split"] == "weak" and image["image_id"] in with_document)
            or image["split"] == "gallery"
        )
    assert len(set(tables["images"]["sha256"].to_pylist())) == n_images


def test_a_broken_photo_is_not_drawn_for_a_split(tmp_path: Path, photograph, gather) -> None:
    """Checks that only photos that can be decoded are counted and chosen when dev and test are drawn: of nine such
    photos, one becomes dev, and none test."""
    for number in range(10):
        (tmp_path / f"{number}.jpg").write_bytes(photograph(number) if number < 9 else b"<html>")
    (tmp_path / "t.csv").write_text("file,sentence\n" + "".join(f"{number}.jpg,A dog .\n" for number in range(10)))
    result = gather(tmp_path, "table", default="divided")
    result.check(0.1, "rejects.jsonl")
    assert Counter(result.tables["images"]["split"].to_pylist()) == {"train": 8, "dev": 1}
    for number in range(9):
        (tmp_path / f"{number}.jpg").write_bytes(b"<html>")
    with pytest.raises(InputError, match="None of the 10 photos can be used"):
        gather(tmp_path, "table", default="divided").check(1, "rejects.jsonl")


def test_rejects_are_in_the_order_of_the_rows(collection: Path, gather) -> None:
    append(collection / "captions.tsv", "a.jpg\tone\tA dog\nb.jpg\n" + "a.jpg\ttwo\tA dog\n" * 3)
    assert [row for _, row, _ in gather(collection).rejected("sentences")] == [4, 5, 6, 7, 8]
