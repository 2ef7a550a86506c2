"""Each file of a collection is read, rejected or ignored for a reason, and counted."""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import ingest
from test_formats import write_tar

from pipeline.collections.detect import detect
from pipeline.collections.files import CollectionFolder, Exclusion
from pipeline.collections.formats import describe_state
from pipeline.collections.records import Options
from pipeline.config.loading import validate
from pipeline.errors import InputError, UsageError

LIST = "file\tsentence\n1.jpg\ta dog\n2.JPG\ta cat\n3.jfif\ta cow\nnowhere.jpg\ta gap\nbroken.png\ta break\n"
SYSTEM = (
    "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/old.jpg", "$RECYCLE.BIN/S-1/gone.jpg", "__MACOSX/._1.jpg",
    "lost+found/x.jpg", "System Volume Information/x.jpg", ".@__thumb/1.jpg", "@Recycle/x.jpg", ".Trashes/501/x.jpg",
    ".AppleDouble/1.jpg", "sub/._4.jpg", "Thumbs.db", "sub/desktop.ini", ".hidden/x.jpg",
)  # fmt: skip


EXCLUDED = ["masks", "sub/*.pdf"]
FORMS = ("text-files", "table", "folder")


def make_files(photograph: Callable[..., bytes]) -> dict[str, bytes]:
    """Return the contents of the files of a collection, by path.

    The files are photos (one is damaged, and one is in no list), texts, files to exclude, and files in folders that
    operating systems make.
    """
    files = {name: photograph(number) for number, name in enumerate(("1.jpg", "2.JPG", "3.jfif", "sub/4.jpe"))}
    files |= {
        "broken.png": b"no image",
        "masks/1.png": photograph(9),
        "notes.pdf": b"%PDF",
        "captions.json.gz": b"\x1f\x8b",
        "sub/notes.pdf": b"%PDF",
        "LIST.TSV": b"",
    }
    files |= {f"{name}.txt": b"\xef\xbb\xbfa dog\r\na hound" for name in ("1", "2", "sub/4", "nobody")}
    files |= {name: photograph(100 + number) for number, name in enumerate(SYSTEM)}
    return files | {"LIST.TSV": LIST.encode()}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def summary_of(run: Path) -> dict:
    """Return the summary in the manifest of a run, after a check of its sums.

    The check also compares the numbers of rejected and repeated records with the entries in the table of rejects.
    """
    summary = json.loads((run / "manifest/manifest.json").read_text())
    rejects = map(json.loads, (run / "manifest/rejects.jsonl").read_text().splitlines())
    rejected = Counter(reject["what"] for reject in rejects)
    for what, count in summary["counts"].items():
        fates = count["kept"] + count["rejected"] + count["duplicate"] + count.get("left_out", 0)
        assert count["given"] == fates, what
        assert rejected[what] == count["rejected"] + count["duplicate"], what
    assert sum(summary["left_out"].values()) == summary["counts"]["files"]["left_out"]
    return summary


@pytest.mark.parametrize("form", FORMS)
def test_all_files_are_accounted_for(form: str, tmp_path: Path, photograph) -> None:
    """Each file in the folder is counted as read, or as ignored for the right reason. Some of the files are files that
    network storage, Windows and macOS leave behind."""
    files = make_files(photograph)
    settings = {"format": form, "exclude": EXCLUDED, "reject_limit": 1, "default_split": "gallery"}
    ingest(tmp_path, write(tmp_path / "data", files), {"collection": settings})
    summary = summary_of(tmp_path)
    left_out = Counter(summary["left_out"])
    assert summary["counts"]["files"]["given"] == len(files)
    named = {reason.partition(" (")[0] for reason in left_out}
    assert {"@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX", "lost+found", "Thumbs.db", "._*"} < named
    assert left_out["packed: unpack them first (.gz)"] == 1
    assert left_out["collection.exclude masks"] == left_out["collection.exclude sub/*.pdf"] == 1
    unnamed = int(form == "table")  # The lists of the format table do not name sub/4.jpe.
    assert left_out["photos that no list names"] == unnamed
    rejected = 1 + int(form == "table")  # These are broken.png and, in the format table, the row of nowhere.jpg.
    images = {"given": 4 - unnamed + rejected, "kept": 4 - unnamed, "rejected": rejected, "duplicate": 0}
    assert summary["counts"]["images"] == images


def test_all_members_of_a_shard_are_accounted_for(photograph, tmp_path: Path) -> None:
    files = {
        "a.txt": b"\xef\xbb\xbfa dog\r\na hound", "b.caption.txt": b"a cat", "c.json": b'{"caption": "[\'a cow\']"}',
        "a.jpg": photograph(1), "b.input.jpg": photograph(2), "c.mask_1.png": photograph(3, "PNG"),
        "c.mask_2.png": photograph(4, "PNG"), "c.jpeg": photograph(5), "d.left.jpg": photograph(6),
        "d.right.jpg": photograph(7), "e.cls": b"7", "__MACOSX/._a.jpg": b"x", "masks/a.jpg": photograph(8),
    }  # fmt: skip
    write_tar(tmp_path / "data/A.TAR", files)
    (tmp_path / "data/beside.jpg").write_bytes(photograph(10))
    ingest(
        tmp_path, tmp_path / "data", {"collection": {"format": "webdataset", "exclude": ["masks"], "reject_limit": 1}}
    )
    summary = summary_of(tmp_path)
    assert summary["counts"]["files"]["given"] == len(files) + 2
    # The sample d has two images, so its photo is ambiguous and is rejected.
    assert summary["counts"]["images"] == {"given": 4, "kept": 3, "rejected": 1, "duplicate": 0}
    assert summary["counts"]["sentences"]["kept"] == 4
    assert "further images of a sample of a shard, which has one photo (.mask_*.png)" in summary["left_out"]


TABLES = {
    "unquoted.tsv": ('file\tsentence\n1.jpg\t"a dog said\n2.jpg\t"b"\n3.jpg\tit is 5" long\n4.jpg\tend"\n', 4),
    "quoted.tsv": ('file\tsentence\n1.jpg\t"a dog\nsits"\n2.jpg\t"a ""big"" cat"\n', 2),
    "bars.csv": ("image_name| n| comment\n1.jpg| 0| a dog\n2.jpg| 1| \"a cat\n3.jpg| 0| it's, here; now\n", 3),
    "semicolons.csv": ("sep=;\r\nImage Name;Caption\r\n1.jpg;a dog, a cat\r\n2.jpg;b\r\n", 2),
    "old-mac.csv": ("file,sentence\r1.jpg,a dog\r2.jpg,a cat\r", 2),
    "lists.csv": ('file,sentence\n1.jpg,"[\'a dog\', ""it\'s 5""]"\n2.jpg,"[\'a\'\n \'b\']"\n3.jpg,[laughs]\n', 5),
    "without-endings.csv": ("id,caption,price\n1,a dog,7\n2,a cat,8\n", 2),
    "json-lists.tsv": ('file\tsentence\n1.jpg\t["a \\"big\\" dog", "b"]\n2.jpg\t[]\n', 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_table_is_read_with_its_written_values(name: str, photograph, gather: Callable, tmp_path: Path) -> None:
    text, count = TABLES[name]
    encoding = "utf-16" if name == "semicolons.csv" else "utf-8"
    write(tmp_path, {f"{number}.jpg": photograph(number) for number in range(1, 5)} | {name: text.encode(encoding)})
    found = detect(tmp_path)
    validate({"collection": found.settings()})  # `init` writes these settings, so they must be valid.
    result = gather(tmp_path, found.format, files=found.files, columns=found.columns)
    assert (found.format, result.counts["sentences"]["kept"], result.rejects) == ("table", count, [])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.csv", b"file,caption, caption\n1.jpg,a,b\n", "two columns named caption"),
        ("t.csv", "file,sentence\n1.jpg,a\n".encode("utf-16-le"), "UTF-16"),
        ("t.tsv", "file\tподпись\n1.jpg\ta\n".encode("cp1251"), "WINDOWS-1251"),
    ],
)
def test_message_names_fault_of_table(name: str, data: bytes, said: str, gather: Callable, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}.*{said}"):
        gather(tmp_path, "table")


def test_photos_in_parquet_are_read_in_place(photograph, gather: Callable, tmp_path: Path) -> None:
    """Checks the splits, captions and own columns of photos in Parquet files with several row groups. A row without
    bytes is left out, and a row whose bytes are not an image is rejected."""
    rows = [photograph(number) for number in range(70)]
    images = [{"bytes": data, "path": f"{number}.jpg"} for number, data in enumerate(rows)]
    images += [{"bytes": None, "path": "gone.jpg"}, {"bytes": b"no image", "path": None}]
    columns = {"image": images, "caption": [["a dog", f"number {n}"] for n in range(72)], "label": range(72)}
    for split, part in (("train", slice(0, 60)), ("validation", slice(60, 72))):
        table = pa.table({name: list(values)[part] for name, values in columns.items()})
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet", row_group_size=20)
    found = detect(tmp_path)
    assert (found.format, found.columns) == ("parquet", {"sentence": "caption"})
    result = gather(tmp_path, found.format, columns=found.columns)
    assert result.counts["images"] == {"given": 71, "kept": 70, "rejected": 1, "duplicate": 0}
    assert Counter(result.tables["images"]["split"].to_pylist()) == {"train": 60, "dev": 10}
    assert result.tables["images"]["label"].to_pylist() == list(range(70))
    assert result.counts["sentences"]["kept"] == 140
    (tmp_path / "train-00000-of-00001.parquet").unlink()
    alone = gather(tmp_path, found.format, columns=found.columns, default="divided")
    assert Counter(alone.tables["images"]["split"].to_pylist()) == {"train": 8, "dev": 1, "test": 1}


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def edit(path: Path) -> None:
    """Replace the content of a file by other bytes of the same length, with a later time."""
    time = path.stat().st_mtime_ns
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(time + 1_000_000, time + 1_000_000))


CHANGES: dict[str, Callable[[Path], None]] = {
    "an edited image": lambda root: edit(root / "images/a.jpg"),
    "a new image": lambda root: touch(root, "images/deep/c.png"),
    "a renamed image": lambda root: (root / "images/a.jpg").rename(root / "images/z.jpg"),
    "an image behind a linked folder": lambda root: edit(root / "linked/d.jpg"),
    "a deleted list": lambda root: (root / "captions.tsv").unlink(),
    "a list put back to an older one": lambda root: os.utime(root / "captions.tsv", (0, 0)),
}


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    touch(
        root,
        "images/a.jpg",
        "images/b.jpg",
        "images/a.txt",
        "images/a.jpg.json",
        "captions.tsv",
        "x/00000.tar",
        "README",
        ".hidden/e.jpg",
    )
    touch(tmp_path, "elsewhere/d.jpg")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    return root


@pytest.mark.parametrize("change", CHANGES)
def test_state_changes_with_the_files_of_a_folder(watched: Path, change: str) -> None:
    before = describe_state(watched, "folder", {})
    assert describe_state(watched, "folder", {}) == before and before.startswith("4 files, ")
    CHANGES[change](watched)
    assert describe_state(watched, "folder", {}) != before


@pytest.mark.parametrize(
    ("form", "seen"),
    [("folder", set()), ("text-files", {"images/a.txt", "images/a.jpg.json"}), ("webdataset", {"x/00000.tar"})],
)
def test_state_depends_only_on_files_that_the_format_reads(watched: Path, form: str, seen: set[str]) -> None:
    for name in ("images/a.txt", "images/a.jpg.json", "x/00000.tar", "README", ".hidden/e.jpg"):
        before = describe_state(watched, form, {})
        edit(watched / name)
        assert (describe_state(watched, form, {}) != before) == (name in seen), name


def test_star_in_pattern_does_not_match_slash() -> None:
    exclusion = Exclusion(["raw/*.jpg", "old/*/small", "any/**/x*.png"])
    out = ("raw/1.jpg", "old/2020/small", "any/x.png", "any/a/b/xy.png")
    assert all(exclusion.of_path(path) and exclusion.excludes(path) for path in out)
    kept = ("raw/2020/1.jpg", "old/2020/june/small", "any/a/xb/y.png", "raw.jpg", "x/raw/1.jpg")
    assert not any(exclusion.of_path(path) or exclusion.excludes(path) for path in kept)


def test_slashes_around_a_name_in_a_pattern_do_not_count() -> None:
    exclusion = Exclusion(["masks/", "/raw/*/"])
    assert exclusion.of_path("a/masks") == "collection.exclude masks/" and exclusion.excludes("a/masks/1.jpg")
    assert exclusion.excludes("raw/1.jpg") and not exclusion.excludes("a/raw/1.jpg")


def test_pattern_of_several_files_is_refused_with_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "a.tsv", "b.tsv")
    folder = CollectionFolder(tmp_path, Options({"captions": "*.tsv"}, {}, "train"))
    with pytest.raises(UsageError, match=r"collection\.files\.captions names, matches several files: a\.tsv, b\.tsv"):
        folder.locate({"captions": ()})


def test_reason_tells_exclusions_of_the_user_from_usual_exclusions() -> None:
    exclusion = Exclusion(["masks", "raw/*"])
    assert exclusion.excludes(".hidden/a.jpg") is None and exclusion.of_path(".hidden")
    assert exclusion.excludes(".hidden/masks/a.jpg") == "collection.exclude masks", "although it is hidden, too"
    assert exclusion.excludes("a/masks/1.jpg") and exclusion.excludes("raw/1.jpg")
    assert exclusion.of_name("Icon\r").startswith("Icon (")
