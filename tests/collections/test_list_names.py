"""Tests that names in lists, in many spellings, match their photos, or that an error names them."""

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.foreign.box_formats import match_boxes
from pipeline.foreign.files import read_lines
from pipeline.foreign.image_names import NameMatcher, Spelling, StoredPhoto, find_stored
from pipeline.foreign.matching import match_names
from pipeline.foreign.vectors import Source, open_foreign

FILES = [
    "plain.jpg", "IMG_0001.JPG", "two words.jpg", " leading.jpg", "trailing .jpg", "-dash.jpg", "--help.jpg", "#1.jpg",
    "it's.jpg", "o’clock.jpg", "a,b;c.jpg", "100%.jpg", "a&b=c?.jpg", "(1)[2]{3}.jpg", "~tilde.jpg", "$HOME.jpg",
    "dots.in.name.jpg", "deep/er/still/x.jpg", "deep/er/y.jpg", "dép/ós/z.jpg", "café.jpg", "naïve façade.jpg",
    "Übung.jpg", "Ångström.jpg", "ñandú.jpg", "Việt Nam.jpg", "Ёлка.jpg", "ελιά.jpg", "한국어.jpg", "日本語.jpg",
    "がぎぐ.jpg", "हिन्दी.jpg", "ภาษาไทย.jpg", "עברית.jpg", "عربي.jpg", "😀.jpg", "👩‍👩‍👧‍👦.jpg", "🇩🇪❤️.jpg",
    "ﬁ.jpg", "ß.jpg", "İstanbul.jpg", "a\u2028b.jpg", "a\u00a0b.jpg", "zero\u200bwidth.jpg", "007.jpg",
    "12345.jpg", "NUL.jpg", "con.jpg", "x" * 200 + ".jpg", "a#1.jpg",
]  # fmt: skip
"""Names of the photos. On the disk, names at odd positions, from 0, are in the Unicode form of a Mac (NFD), and names
at even positions in the form of Windows and Linux (NFC)."""
FORMS = ("NFC", "NFD")
ON_DISK = [unicodedata.normalize(FORMS[number % 2], name) for number, name in enumerate(FILES)]


def other_form(number: int) -> str:
    return unicodedata.normalize(FORMS[(number + 1) % 2], ON_DISK[number])


SPELLINGS: dict[str, Callable[[int, Path], str]] = {
    "exactly": lambda number, _: ON_DISK[number],
    "in the other form": lambda number, _: other_form(number),
    "doubled": lambda number, _: f".//{ON_DISK[number]}",
    "backslashes": lambda number, _: f".\\{other_form(number)}".replace("/", "\\"),
    "absolute": lambda number, images: f"{images}/{ON_DISK[number]}",
    "other case": lambda number, _: ON_DISK[number].swapcase(),
}
"""Functions that spell the name of a photo as a list may do. Their arguments are the position of the name in FILES and
the folder of the photos."""
UNKNOWN_NAMES = ["nobody.jpg", "deep/plain2.jpg", "CAFE.jpg"]
"""Names that do not belong to a photo."""
ENDS = {"\n": "", "\r\n": "\ufeff", "\r": "\ufeff"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, photograph) -> Path:
    folder = tmp_path_factory.mktemp("data") / "images"
    for number, name in enumerate(ON_DISK):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(photograph(number))
    return folder


@pytest.fixture(params=range(len(SPELLINGS)))
def names(request: pytest.FixtureRequest, images: Path) -> list[str]:
    """Return a name for each photo. Successive names are in successive SPELLINGS, and the parameter is the number of
    the first of these spellings."""
    writings = [*SPELLINGS.values()]
    return [writings[(number + request.param) % len(writings)](number, images) for number in range(len(FILES))]


INGESTED = pytest.mark.parametrize("names", [0, 3], indirect=True)
"""Decorator of tests that ingest a collection. These tests take longer than other tests, so they get only two of the
lists of the fixture `names`."""


@pytest.fixture
def root(tmp_path: Path, images: Path) -> Path:
    """Return the folder shared by all tests, with the photos in its subfolder `images`, after removing the lists of the
    previous test."""
    for path in images.parent.iterdir():
        if path != images:
            path.unlink()
    return images.parent


def sentences_of(gathered) -> dict[str, str]:
    """Return the last sentence of each photo that has one, by the path of its file."""
    paths = gathered.tables["images"]["path"].to_pylist()
    rows = gathered.tables["sentences"]
    return {
        paths[image]: text for image, text in zip(*(rows[n].to_pylist() for n in ("image_id", "text")), strict=True)
    }


def write(path: Path, lines: list[str], end: str) -> None:
    path.write_bytes((ENDS[end] + end.join(lines) + end).encode())


RIGHT = {f"images/{name}": f"photograph {number}" for number, name in enumerate(ON_DISK)}


@INGESTED
def test_captions_splits_boxes_documents_and_own_columns(root: Path, names: list[str], gather) -> None:
    rows = [*names, *UNKNOWN_NAMES]
    spelt = [SPELLINGS["backslashes"](number, root) for number in range(len(names))]
    boxes = [f"{name}\t1\t1\t9\t9\t1\tx" for name in [*spelt, *UNKNOWN_NAMES]]
    write(root / "captions.tsv", [f"{name}\t0\tphotograph {number}" for number, name in enumerate(rows)], "\n")
    write(root / "splits.tsv", [f"{name}\ttest" for name in names[:5]], "\r\n")
    write(root / "boxes.tsv", ["file\tx1\ty1\tx2\ty2\tscore\tlabel", *boxes], "\n")
    write(root / "weak.tsv", ["file\ttitle\ttags\tdescription", *(f"{name}\ta\tb\tc" for name in names)], "\r\n")
    pq.write_table(pa.table({"file": rows, "number": range(len(rows))}), root / "metadata.parquet")
    result = gather(root)
    assert sentences_of(result) == RIGHT
    table = result.tables["images"]
    assert {*table["path"].to_pylist()[:5]} == {*list(RIGHT)[:5]}
    assert table["split"].to_pylist() == ["test"] * 5 + ["train"] * (len(FILES) - 5)
    numbers = dict(zip(table["path"].to_pylist(), table["number"].to_pylist(), strict=True))
    assert numbers == {path: number for number, path in enumerate(RIGHT)}
    assert {what: result.tables[what].num_rows for what in ("boxes", "documents")} == dict.fromkeys(
        ("boxes", "documents"), len(FILES)
    )
    rejected = [reject for reject in result.rejects if reject.what == "images"]
    assert [reject.file for reject in rejected] == [f"images/{name}" for name in UNKNOWN_NAMES]
    respelt = {"files": {*names}.difference(ON_DISK), "boxes": {*spelt}.difference(names, ON_DISK)}
    for what, odd in respelt.items():
        said = [note for note in result.notes if f"names of {what}" in note]
        assert sum(int(note.split()[0]) for note in said) == len(odd)


@INGESTED
def test_tables(root: Path, names: list[str], gather) -> None:
    paths = [name if name.startswith("/") else f"images/{name}" for name in (*names, *UNKNOWN_NAMES)]
    quoted = ['"' + path.replace('"', '""') + f'",photograph {number}' for number, path in enumerate(paths)]
    write(root / "table.csv", ["file,sentence", *quoted], "\n")
    result = gather(root, "table", default="train")
    assert sentences_of(result) == RIGHT
    assert [reject.file for reject in result.rejects if reject.what == "images"] == [
        f"images/{n}" for n in UNKNOWN_NAMES
    ]


@INGESTED
def test_takedown_lists(root: Path, names: list[str], gather, tmp_path: Path) -> None:
    write(root / "captions.tsv", [f"{name}\t0\tphotograph {number}" for number, name in enumerate(ON_DISK)], "\n")
    gone = [name for name, file in zip(names, ON_DISK, strict=True) if file not in ("plain.jpg", "Übung.jpg")]
    write(root / "boxes.tsv", ["file\tx1\ty1\tx2\ty2\tscore\tlabel", "lost.jpg\t1\t1\t9\t9\t1\tof no photograph"], "\n")
    write(tmp_path / "takedown.txt", ["# comment", *gone, "", "lost.jpg", *UNKNOWN_NAMES], "\r\n")
    result = gather(root, takedown=read_lines(tmp_path / "takedown.txt"))
    assert {*sentences_of(result)} == {"images/plain.jpg", "images/Übung.jpg"}
    assert result.unmet == [repr(name) for name in UNKNOWN_NAMES]
    assert not result.rejects


CAPTIONS = [
    "one.jpg\ta dog & a cat",
    "one.jpg\tthe same dog",
    "two.jpg\ta horse",
    "two.jpg\ta horse",  # This row repeats the row before it.
    "copy.jpg\tonly here",  # This photo has the same bytes as two.jpg.
    "three.jpg\ta bird  in   a tree",
    "Übung.jpg\tan exercise",
    "#4.jpg\ta number",
    "five.jpg\ta caf\u00e9",
]


@pytest.mark.parametrize(
    ("lines", "gone", "unmet"),
    [
        (["one.jpg\ta dog & a cat"], {"a dog & a cat"}, []),
        (["two.jpg\ta horse"], {"a horse"}, []),
        (["two.jpg\tonly here"], {"only here"}, []),
        (["copy.jpg\ta horse"], {"a horse"}, []),
        (["ONE \tthe  same dog "], {"the same dog"}, []),
        (["three.jpg\ta bird in a tree", "Übung\tan exercise"], {"a bird  in   a tree", "an exercise"}, []),
        (["# one.jpg\tthe same dog", "#4.jpg\ta number"], {"a number"}, []),
        (["five.jpg\ta cafe\u0301"], {"a caf\u00e9"}, []),
        (["one.jpg\tthe same", "none.jpg\ta horse"], set(), [0, 1]),
        (["one.jpg", "one.jpg\tthe same dog"], {"a dog & a cat", "the same dog"}, []),
    ],
)
def test_a_takedown_list_may_name_single_captions(
    tmp_path: Path, photograph, gather, lines: list[str], gone: set[str], unmet: list[int]
) -> None:
    names = list(dict.fromkeys(line.partition("\t")[0] for line in CAPTIONS))
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(photograph(names.index("two.jpg") if name == "copy.jpg" else number))
    write(tmp_path / "captions.tsv", CAPTIONS, "\n")
    result = gather(tmp_path, takedown=lines)
    every = {line.partition("\t")[2] for line in CAPTIONS}
    assert set(result.tables["sentences"]["text"].to_pylist()) == every - gone
    assert result.unmet == [repr(lines[number]) for number in unmet]
    result.check_counts()
    assert result.counts["sentences"]["given"] == sum(line.partition("\t")[2] not in gone for line in CAPTIONS)
    whole = {line for line in lines if "\t" not in line}
    assert result.counts["images"]["kept"] == len(names) - 1 - len(whole)
    taken = sum(line.partition("\t")[2] in gone for line in CAPTIONS if line.partition("\t")[0] not in whole)
    assert any(note.startswith(f"{taken} captions in the takedown list") for note in result.notes) == (taken > 0)


def test_a_photo_that_loses_its_last_caption_is_kept_without_a_caption(tmp_path: Path, photograph, gather) -> None:
    for number, name in enumerate(("a.jpg", "b.jpg")):
        (tmp_path / name).write_bytes(photograph(number))
    write(tmp_path / "captions.tsv", ["a.jpg\ta dog", "b.jpg\ta cat"], "\n")
    result = gather(tmp_path, takedown=["a.jpg\ta dog"])
    images = result.tables["images"].to_pylist()
    assert {row["path"]: row["split"] for row in images} == {"a.jpg": "gallery", "b.jpg": "train"}


def test_names_of_vectors(images: Path, names: list[str], tmp_path: Path) -> None:
    rows = np.random.default_rng(0).permutation(len(names)).tolist()
    np.save(tmp_path / "v.npy", np.eye(len(names) + len(UNKNOWN_NAMES), dtype=np.float32))
    listed = [*(names[row] for row in rows), *UNKNOWN_NAMES]
    write(tmp_path / "v.npy.txt", listed, "\r")
    opened = open_foreign(Source(tmp_path / "v.npy", None, None))
    matching = match_names(opened.names, [f"images/{name}" for name in ON_DISK], images.parent)
    assert [rows[row] for row in matching.rows] == list(range(len(names)))
    assert matching.unmatched == UNKNOWN_NAMES


def test_boxes_of_proposals(images: Path, names: list[str]) -> None:
    rows = [f"{name}\t1\t1\t9\t9" for name in [*names, names[0], *UNKNOWN_NAMES]]
    data = "\ufeff" + "\r\n".join(["file\tx1\ty1\tx2\ty2", *rows])
    matched = match_boxes([("b.tsv", data.encode())], [f"images/{name}" for name in ON_DISK], images.parent)
    assert matched.images.tolist() == [*range(len(names)), 0]
    assert {*matched.unmatched} == {*UNKNOWN_NAMES}


def test_names_that_may_mean_two_files_are_rejected(tmp_path: Path, photograph, gather) -> None:
    """Checks that exact names are accepted for files whose names differ only in case. A name that may mean either file
    is rejected, and the reason names both files."""
    (tmp_path / "images").mkdir()
    for number, name in enumerate(("a.jpg", "A.jpg", "b.jpg")):
        (tmp_path / "images" / name).write_bytes(photograph(number))
    lines = ["a.jpg\t0\tsmall", "A.jpg\t0\tlarge", "a.JPG\t0\teither", "b.jpg\t0\tb", "B.jpg\t0\tanother that is gone"]
    write(tmp_path / "captions.tsv", lines, "\n")
    write(tmp_path / "boxes.tsv", ["file\tx1\ty1\tx2\ty2\tscore\tlabel", "A.JPG\t1\t1\t9\t9\t1\tx"], "\n")
    result = gather(tmp_path)
    assert sentences_of(result) == {"images/a.jpg": "small", "images/A.jpg": "large", "images/b.jpg": "b"}
    reasons = {(reject.what, reject.row): reject.reason for reject in result.rejects}
    for what, row in (("images", 3), ("boxes", 2)):
        assert "a.jpg" in reasons[what, row] and "A.jpg" in reasons[what, row]
    assert "missing" in reasons["images", None]
    for line in ("a.JPg", "a.JPg\tsmall"):
        assert gather(tmp_path, takedown=[line]).unmet[0].count("a.jpg") == 1
    found = match_names(["a.JPG", "A.jpg", "a.jpg"], ["a.jpg", "A.jpg"])
    assert found.rows.tolist() == [2, 1] and found.unmatched == ["a.JPG"]
    assert match_names(["a.jpg", "A.jpg"], ["a.jpg"]).unmatched == ["A.jpg"]


def test_lists_of_names_beside_vectors_that_differ_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.eye(2, dtype=np.float32))
    write(tmp_path / "v.txt", ["a", "b"], "\n")
    write(tmp_path / "v.npy.txt", ["a", "b"], "\r\n")
    assert open_foreign(Source(tmp_path / "v.npy", None, None)).names == ["a", "b"]
    write(tmp_path / "v.npy.txt", ["b", "a"], "\n")
    with pytest.raises(InputError, match=r"v\.txt and .*v\.npy\.txt"):
        open_foreign(Source(tmp_path / "v.npy", None, None))


def test_urls_in_a_list_are_rejected_and_never_opened(root: Path, gather) -> None:
    """Checks that a file:// link into the collection is read as a path. A row with any other link is rejected, and the
    other rows are kept."""
    elsewhere = ["http://127.0.0.1:9/a.jpg", "s3://bucket/a.jpg", "file:///etc/hosts.jpg"]
    rows = [f'"{name}",{number}' for number, name in enumerate([f"file://{root}/images/plain.jpg", *elsewhere])]
    write(root / "table.csv", ["file,sentence", *rows], "\n")
    result = gather(root, "table", default="train")
    assert sentences_of(result) == {"images/plain.jpg": "0"}
    rejected = {reject.row: reject.reason for reject in result.rejects if reject.what == "images"}
    assert [*rejected] == [3, 4, 5]
    assert all(name in reason for name, reason in zip(elsewhere, rejected.values(), strict=True))


def test_name_may_lack_its_folder_or_have_folders_of_another_machine(tmp_path: Path, photograph, gather) -> None:
    for number, name in enumerate(("2019/a.jpg", "2019/b.jpg", "2020/b.jpg", "2020/c.jpg", "2020/d.jpg", "2020/e.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(photograph(number))
    names = ["a.jpg", "C.JPG", r"D:\me\2019\b.jpg", "/home/me/2020/b.jpg", "/kaggle/input/d.jpg"]
    # These are other spellings of the first and the third of `names`, which mean the same photos.
    again = ["A.jpg", "d:/me/2019/B.jpg"]
    refused = ["b.jpg", "a.png", "2019/c.jpg", "/home/b.jpg", "/home/1/e.jpg", "/home/2/e.jpg"]
    rows = [f"{name},{number}\n" for number, name in enumerate([*names, *refused, *again])]
    (tmp_path / "captions.csv").write_text("file,sentence\n" + "".join(rows))
    result = gather(tmp_path, "table")
    kept = dict.fromkeys(result.tables["images"]["path"].to_pylist(), "")
    for sentence in result.tables["sentences"].to_pylist():
        kept[[*kept][sentence["image_id"]]] += sentence["text"]
    paths = ["2019/a.jpg", "2020/c.jpg", "2019/b.jpg", "2020/b.jpg", "2020/d.jpg"]
    assert kept == dict(zip(paths, ["011", "1", "212", "3", "4"], strict=True))
    reasons = [reason for _, _, reason in result.rejected("images")]
    assert "'2019/b.jpg' or '2020/b.jpg'" in reasons[0] and len(reasons) == len(refused)
    assert sum("2020/e.jpg" in reason for reason in reasons) == 2
    assert any("7 of 13" in note and "in another folder" in note for note in result.notes)


def test_name_may_lack_its_ending_but_not_have_another_ending(tmp_path: Path, photograph, gather) -> None:
    (tmp_path / "images").mkdir()
    for number, name in enumerate(("a.jpg", "b.jpg", "b.png")):
        (tmp_path / "images" / name).write_bytes(photograph(number))
    lines = ["a\t0\tthe only one", "b\t0\teither", "a.png\t0\tanother"]
    write(tmp_path / "captions.tsv", lines, "\n")
    write(tmp_path / "boxes.tsv", ["file\tx1\ty1\tx2\ty2\tscore\tlabel", "gone.jpg\t1\t1\t9\t9\t1\tx"], "\n")
    result = gather(tmp_path, takedown=["gone.png"])
    assert sentences_of(result) == {"images/a.jpg": "the only one"} and result.unmet == ["'gone.png'"]
    reasons = {reject.file: reject.reason for reject in result.rejects if reject.what == "images"}
    assert "b.jpg" in reasons["captions.tsv"] and "b.png" in reasons["captions.tsv"]
    assert "missing" in reasons["images/a.png"]
    assert [reject.reason for reject in result.rejects if reject.what == "boxes"] == [
        "unknown image: 'gone.jpg' is not a photo of the collection"
    ]


def test_name_is_ambiguous_if_it_may_mean_two_photos_with_other_names() -> None:
    photos = [Spelling("a/Dog.jpg", 1), Spelling("A/dog.jpg", 2), Spelling("cat.jpg", 3), Spelling("CAT.jpg", 3)]
    matches = dict(NameMatcher().match(["a/dog.JPG", "Cat.jpg"], lambda: photos))
    assert matches["a/dog.JPG"].ambiguous and not matches["Cat.jpg"].ambiguous
    assert sorted(matches["a/dog.JPG"].targets) == [1, 2] and [*matches["Cat.jpg"].targets] == [3]


STORED = {
    4: "3.jpg", 3: "4.jpg", 5: "5.jpg", 6: "007.jpg", 7: "id:4.jpg", 8: "-v.jpg", 9: "a:b.jpg", 10: "#x.jpg",
    11: "sub/only.jpg", 12: "Twin.jpg", 13: "sub/twin.jpg", 14: "both.jpg", 15: "both.png", 16: "sub/3.jpg",
    19: "id:5", 20: "https://a.org/u.jpg", 17: "50% off.jpg", 18: unicodedata.normalize("NFD", "öl.jpg"),
}  # fmt: skip
"""Paths of photos in the folder /photos, by their ids. Some paths look like the ids of other photos."""
MEANINGS: dict[str, set[int]] = {
    "id:4": {4}, "id:3": {3}, " id:5 ": {5}, "5": {5}, "6": {6}, "007": {6}, "3.jpg": {4}, "sub/3": {16},
    "/photos/4.jpg": {3}, "/photos/sub/3.jpg": {16}, "./3.jpg": {4}, "id:4.jpg": {7}, "/photos/id:4.jpg": {7},
    "-v.jpg": {8}, "a:b.jpg": {9}, "#x.jpg": {10}, "only": {11}, "ONLY.jpg": {11}, "Twin.jpg": {12}, "both.png": {15},
    "./id:5": {19}, "/photos/id:5": {19}, "id:19": {19}, "/photos/https://a.org/u.jpg": {20}, "u.jpg": {20},
    "50% off.jpg": {17}, "öl.jpg": {18},
    "3": set(), "4": set(), "twin.jpg": set(), "both": set(), "id:99": set(), "id:04": set(), "id:": set(),
    "99": set(), "/elsewhere/3.jpg": set(), "other/only.jpg": set(), "/photos": set(), "sub": set(), "*.jpg": set(),
    "/photos/only.jpg": set(), "9" * 5000: set(),
}  # fmt: skip


def stored(photos: dict[int, str], root: str = "/photos") -> list[StoredPhoto]:
    return [StoredPhoto(number, name, None, f"{number}", root) for number, name in photos.items()]


def find(lines: list[str], photos: list[StoredPhoto]) -> tuple[list[StoredPhoto], dict[str, str]]:
    """Return the photos that any of the `lines` names, sorted, and the lines that name no photo, with the reason."""
    by_line, unmet = find_stored(lines, lambda: photos)
    return sorted({photo for found in by_line.values() for photo in found}), unmet


def test_photos_of_each_line_are_told_apart() -> None:
    by_line, _ = find_stored(["id:1", "0.jpg", "x.jpg", "1.jpg"], lambda: stored({0: "0.jpg", 1: "1.jpg"}))
    assert {line: [photo.image_id for photo in found] for line, found in by_line.items()} == {
        "id:1": [1], "0.jpg": [0], "1.jpg": [1],
    }  # fmt: skip


@pytest.mark.parametrize("line", MEANINGS)
def test_a_name_means_one_photo_or_none(line: str) -> None:
    found, unmet = find([line], stored(STORED))
    assert {photo.image_id for photo in found} == MEANINGS[line]
    assert [*unmet] == ([] if MEANINGS[line] else [line])


@pytest.mark.parametrize("line", ["3", "4", "twin.jpg", "both"])
def test_a_refused_name_comes_with_names_that_work(line: str) -> None:
    _, unmet = find([line], stored(STORED))
    by_id, by_path = [re.findall(pattern, unmet[line]) for pattern in (r"id:\d+(?= )", r"/photos[^)]+(?=\))")]
    assert len(by_id) == len(by_path) >= 2
    for way in (by_id, by_path):
        found, rest = find(way, stored(STORED))
        assert {f"id:{photo.image_id}" for photo in found} == {*by_id} and not rest


def test_whole_path_means_only_the_photo_of_that_folder() -> None:
    photos = [*stored({0: "0.jpg", 1: "1.jpg"}), *stored({2: "0.jpg", 3: "2.jpg"}, "/photos/phone")]
    lines = ["/photos/phone/0.jpg", "/photos/1.jpg", "0.jpg", "2.jpg", "/photos/2.jpg"]
    found, unmet = find(lines, photos)
    assert [photo.image_id for photo in found] == [1, 2, 3]
    assert [*unmet] == ["0.jpg", "/photos/2.jpg"]
    assert "id:0 (/photos/0.jpg) or id:2 (/photos/phone/0.jpg)" in unmet["0.jpg"] and not unmet["/photos/2.jpg"]


def test_file_name_is_refused_if_photos_of_two_folders_have_it() -> None:
    """Checks that a file name that photos in two folders have is refused, even if it is the whole path of one of these
    photos below its folder. A path with a slash is not refused."""
    photos = [*stored({0: "0.jpg", 1: "old/2.jpg"}), *stored({5: "2.jpg", 6: "old/3.jpg"}, "/phone")]
    found, unmet = find(["0.jpg", "old/2.jpg", "./2.jpg", "2.jpg", "2"], photos)
    assert [photo.image_id for photo in found] == [0, 1, 5] and [*unmet] == ["2.jpg", "2"]
    assert all("id:1 (/photos/old/2.jpg) or id:5 (/phone/2.jpg)" in reason for reason in unmet.values())


def test_shard_name_means_all_its_photos_and_name_in_two_shards_means_none() -> None:
    members = [(0, "0.tar", "a.jpg"), (1, "0.tar", "b.jpg"), (2, "1.tar", "a.jpg"), (3, "1.tar", "c.jpg")]
    photos = [StoredPhoto(*one, "", "/shards") for one in members]
    meant = {
        "0.tar": [0, 1], "a.jpg": [], "a": [], "b": [1], "1.tar/a.jpg": [2], "1.tar::a.jpg": [2],
        "/shards/0.tar/a.jpg": [0], "c.jpg": [3],
    }  # fmt: skip
    for line, ids in meant.items():
        found, unmet = find([line], photos)
        assert [photo.image_id for photo in found] == ids and bool(unmet) == (not ids), line
    for others in ([StoredPhoto(4, "0.tar", "d.jpg", "", "/more")], [StoredPhoto(4, "0.Tar", "d.jpg", "", "/shards")]):
        found, unmet = find(["0.TAR"], [*photos, *others])
        assert not found and "/shards/0.tar/b.jpg" in unmet["0.TAR"]


def test_a_takedown_line_that_may_mean_two_photos_takes_down_neither(tmp_path: Path, photograph, gather) -> None:
    """Checks that a file name of several photos takes down none of them, and that a file name of one photo is enough.
    Lines that `remove` has written (`removed`) must be whole paths."""
    names = ("2019/a.jpg", "2020/a.jpg", "2020/b.jpg", "2020/c.jpg", "d.jpg", "2021/e.jpg")
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(photograph(number))
    result = gather(tmp_path, default="gallery", takedown=["a.jpg", "b", "id:0"], removed=["e.jpg", "d.jpg", "2020/c"])
    assert {*result.tables["images"]["path"].to_pylist()} == {*names} - {"2020/b.jpg", "d.jpg"}
    assert result.unmet[0] == (
        f"'a.jpg' (it may be '{tmp_path}/2019/a.jpg' or '{tmp_path}/2020/a.jpg'; write one of these)"
    )
    assert result.unmet[1].startswith("'id:0' (an id") and result.unmet[2:] == ["'e.jpg'", "'2020/c'"]


def test_removed_photos_do_not_change_the_meaning_of_lines_of_the_user(tmp_path: Path, photograph, gather) -> None:
    """Checks that a line of `remove` is never read as PHOTO TAB CAPTION, and does not match by its file name. A line of
    the user keeps its meaning although `remove` has listed the same line."""
    for number, name in enumerate(("a.jpg", "2021/e.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(photograph(number))
    write(tmp_path / "captions.tsv", ["a.jpg\ta dog", "2021/e.jpg\ta cat"], "\n")
    result = gather(tmp_path, removed=["a.jpg\ta dog", "e.jpg"])
    assert result.tables["sentences"]["text"].to_pylist() == ["a dog", "a cat"]
    assert result.unmet == [repr("a.jpg\ta dog"), "'e.jpg'"]
    result = gather(tmp_path, takedown=["e.jpg"], removed=["e.jpg"])
    assert result.tables["images"]["path"].to_pylist() == ["a.jpg"] and not result.unmet


IN_SHARD = {
    "x.parquet": [1, 2, 3, 4], "x.parquet/1.jpg": [2], "x.parquet::1.jpg": [2], "1.jpg": [2], "x.parquet/1": [2],
    "1": [2], "x.parquet::0": [1], "X.PARQUET/0.JPG": [1], "2.jpg": [], "x.parquet/2": [], "x.parquet/9": [],
}  # fmt: skip
"""Line of a takedown list -> the rows, from 1, of the photos in a Parquet file that the line means. Two photos are
called 2.jpg."""


@pytest.mark.parametrize("line", IN_SHARD)
def test_a_takedown_list_and_remove_agree_on_names_in_a_table(tmp_path: Path, photograph, gather, line: str) -> None:
    names = ["0.jpg", "1.jpg", "a/2.jpg", "b/2.jpg"]
    photos = [{"bytes": photograph(number), "path": name} for number, name in enumerate(names)]
    pq.write_table(pa.table({"image": photos, "number": [1, 2, 3, 4]}), tmp_path / "x.parquet")
    every = gather(tmp_path, "parquet", default="gallery").tables["images"].to_pylist()
    stored = [StoredPhoto(row["number"], row["path"], row["member"], "", str(tmp_path)) for row in every]
    if line != "1":  # The command `remove` takes the line 1 as an id.
        assert [photo.image_id for photo in find([line], stored)[0]] == IN_SHARD[line]
    result = gather(tmp_path, "parquet", default="gallery", takedown=[line])
    left = {row["number"] for row in result.tables["images"].to_pylist()}
    assert {1, 2, 3, 4} - left == {*IN_SHARD[line]} and bool(result.unmet) == (not IN_SHARD[line])
