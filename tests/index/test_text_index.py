"""Searches for the words of queries in captions, file names and columns, compared with a scan of all texts."""

import datetime
import json
import os
import pickle
import re
import shutil
import sqlite3
import stat
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_run import build_bundle, make_run, open_run, run_command, with_columns

import jointspace
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.foreign.files import state_folder
from pipeline.index import text_index
from pipeline.index.search import MAX_FUSED, RANK_OFFSET, Searcher
from pipeline.index.text_index import TextIndex, TextQuery
from pipeline.run.runner import run_stage
from pipeline.storage.card import Modality
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.stored_index import StoredIndex, open_index
from stages.index.build_index import build_index
from stages.index.search import command

PLACES = ("Zürich", "Rome", "東京の港", "กรุงเทพมหานคร", "दिल्ली शहर", "Zurich\x00 Nord", "a\x07b \u202e c", None)
DAY = datetime.date(2024, 1, 31)
QUERIES = (
    "zurich", "Zürich!", "東京", "京の港", "京東", "กรุงเทพ", "दिल्ली", "boat 4", "a boat", "the big boat number 4",
    "INV", "INV 7/0004", "inv-7-0004", "INV70004", "number 3 horse", "nord zurich", "zurich rome",
    '"', "c0:horse", "horse*",
    "horse OR boat", "NEAR(horse boat)", "^horse", "-horse", "{c0}: x", "horse\x00boat", "'; DROP TABLE words; --", "b",
    "horse-3.png", "horse-3", "missing",
)  # fmt: skip
"""Queries with words and parts of words in several scripts, an identifier in several spellings, file names and syntax
of FTS5, and queries without a match."""


@pytest.fixture(scope="module")
def museum(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the synthetic index, and add the columns `number` (an inventory number), `place`, `taken` (a date) and
    `count` (the number of the row)."""
    numbers = [f"INV {row}/{row % 8:04d}" for row in range(24)]
    taken = [None if row == 8 else DAY + datetime.timedelta(days=5 * row % 24) for row in range(24)]
    places = list(PLACES)
    folder = tmp_path_factory.mktemp("museum") / "index"
    return with_columns(run / "bundle", folder, number=numbers, place=places, taken=taken, count=[*range(24)])


def plain_words(text: str) -> str:
    """Return the words of a text as the full-text index must split it, separated by spaces and with a space at both
    ends.

    The text is split character by character, without the tokenizers of the project.
    """
    words = ""
    previous = ""
    for letter in unicodedata.normalize("NFKD", text).lower():
        kind = unicodedata.category(letter)
        if "\u0300" <= letter <= "\u036f":
            continue
        name = unicodedata.name(letter, "")
        is_spaceless = name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI"))
        here = "digit" if kind == "Nd" else "letter" if kind[0] in "LM" else ""
        if kind[0] == "M":
            words += letter
        elif here:
            words += (" " if here != previous or is_spaceless else "") + letter
        previous = here
        words += "" if here else " "
    return f" {re.sub(' +', ' ', unicodedata.normalize('NFC', words)).strip()} "


def scan(index: StoredIndex, query: str) -> set[int]:
    """Return the rows of the photos that match a query, by reading every text: all parts of the query between its
    spaces, except stop words, are in the texts of the photo. Return an empty set if more than 10 photos match."""
    texts = [[row["path"], row.get("number"), row.get("place"), row.get("count")] for row in rows_of(index)]
    position = {row["image_id"]: number for number, row in enumerate(rows_of(index))}
    for caption in index.table("sentences").to_pylist():
        texts[position[caption["image_id"]]].append(caption["text"])
    parts = [words for part in query.split() if (words := plain_words(part)).strip()]
    parts = [words for words in parts if words.strip() not in ("a", "the", "or", "near")] or parts
    found = {
        row
        for row, values in enumerate(texts)
        if values[0] is not None
        and parts
        and all(any(part in plain_words(str(value)) for value in values if value is not None) for part in parts)
    }
    return found if len(found) <= 10 else set()


def rows_of(index: StoredIndex) -> list[dict]:
    return index.table("images").to_pylist()


@pytest.mark.parametrize("query", QUERIES)
def test_matches_equal_those_of_a_scan(museum: Path, query: str) -> None:
    index = open_index(museum)
    parsed = TextQuery.parse(query)
    found = TextIndex(index).search(parsed) if parsed else None
    matching = set(found.ranks) if found else set()
    exact = set(found.exact) if found else set()
    same = re.sub(r"[\W_]", "", query.lower())
    identified = {
        number
        for number, row in enumerate(rows_of(index))
        if same and same in [re.sub(r"[\W_]", "", row["number"].lower()), row["path"][:-4].replace("-", ""),
                             row["path"].replace("-", "").replace(".", "")]
    }  # fmt: skip
    assert matching == scan(index, query) | identified
    assert identified <= exact


@pytest.mark.parametrize("modality", ["images", "sentences"])
def test_tables_in_any_order_are_searched(museum: Path, tmp_path: Path, modality: Modality) -> None:
    shard = IndexShard(museum)
    writer = IndexWriter(tmp_path / "index")
    writer.link(shard, but={f"{modality}.parquet"})
    table = shard.table(modality)
    writer.add_table(f"{modality}.parquet", table.take(np.random.default_rng(0).permutation(table.num_rows)))
    writer.commit(source=shard.card)
    index = open_index(tmp_path / "index")
    for query in ("the big boat number 4", "number 3 horse", "nord zurich"):
        parsed = TextQuery.parse(query)
        assert parsed is not None
        assert {*TextIndex(index).search(parsed).ranks} == scan(index, query) != set()


def test_scan_finds_what_it_should(museum: Path) -> None:
    index = open_index(museum)
    assert scan(index, "京の港") == {2, 10, 18}
    assert scan(index, "京東") == set()
    assert scan(index, "boat 4") == {4}
    assert scan(index, "zurich") == {0, 5, 8, 13, 16, 21}


@pytest.mark.parametrize("query", ["INV 12/0004", "inv_12_0004", "INV120004", "boat-12.png", "Boat-12", "12"])
def test_an_identifier_comes_first_although_the_model_does_not_know_it(museum: Path, query: str) -> None:
    first, *_ = Searcher(open_index(museum)).images(query, 3)
    assert first.row["path"] == "boat-12.png"
    field = {"12": "count"}.get(query, "file name" if "oat" in query else "number")
    assert field in first.matches


def test_an_identifier_comes_before_better_matches_of_its_words(run: Path, tmp_path: Path) -> None:
    numbers = ["INV 7/0004", "INV70004", *[None] * 22]
    places = [None, None, "INV 7/0004 and INV 7/0004", *[None] * 21]
    index = open_index(with_columns(run / "bundle", tmp_path / "index", number=numbers, place=places))
    matches = TextIndex(index).search(TextQuery.parse("INV 7/0004"))
    assert matches.exact == {0, 1} and matches.ranks == {0: 0, 1: 0, 2: 2}
    found = [hit.row["image_id"] for hit in Searcher(index).images("INV 7/0004", 3)]
    assert {*found[:2]} == {0, 1} and found[2] == 2


def test_a_whole_value_has_rank_0_although_other_texts_repeat_its_words(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three photos have the query as the value of a column, which are more photos than may share an identifier here.
    One shard and several shards give the same ranks."""
    monkeypatch.setattr(text_index, "MAX_IDENTIFIED", 2)
    several = build_bundle(run, {"index": {"bundles": 3}}, output="several-values")
    shards = sorted(path.parent for path in several.rglob("card.json"))
    assert len(shards) == 3
    values = {5: "Green Harbour", 12: "green-harbour", 20: "GREENHARBOUR", 2: "Green Harbour " * 9, 14: "harbour"}
    notes = {14: "a green harbour, the green harbour"}
    folders = []
    for shard in (run / "bundle", *shards):
        ids = IndexShard(shard).table("images")["image_id"].to_pylist()
        columns = {"place": [values.get(number) for number in ids], "note": [notes.get(number, "") for number in ids]}
        folders.append(with_columns(shard, tmp_path / f"index-{len(folders)}", **columns))
    for opened in (folders[:1], folders[1:]):
        searcher = Searcher(open_index(*opened))
        matches = searcher.text_index.search(TextQuery.parse("green harbour"))
        ids = [row["image_id"] for row in rows_of(searcher.index)]
        assert not matches.exact and {ids[row] for row in matches.ranks} == {2, 5, 12, 14, 20}
        assert {ids[row] for row, rank in matches.ranks.items() if rank == 0} == {5, 12, 20}
        assert {hit.row["image_id"] for hit in searcher.images("green harbour", 24)[:3]} == {5, 12, 20}


def test_words_say_where_they_were_found_and_can_be_turned_off(museum: Path) -> None:
    index = jointspace.load(museum)
    assert not index.search("horse Rome", k=24).matched  # No horse is in Rome.
    found = {hit.row["path"]: hit.matches for hit in index.search("boat दिल्ली", k=24) if hit.matches}
    assert found == {f"boat-{number}.png": ("file name", "place") for number in (4, 12, 20)}
    assert index.search("horse big 19", k=1)[0].matches[-1] == "caption"
    plain = index.search("boat दिल्ली", k=24, match_text=False)
    assert not plain.matched and [hit.score for hit in plain] == sorted((hit.score for hit in plain), reverse=True)
    with pytest.raises(InputError, match="none of the words"):
        index.search("INV 12/0004", match_text=False)
    many = index.search(["INV 12/0004", "zebra", "boat दिल्ली"], k=4)
    assert [hit.row["path"] for hit in many[0]] == ["boat-12.png"] and many[1].error and many[2].matched


def test_results_are_merged_by_rank(museum: Path) -> None:
    """The three photos that match the words come first, and these photos and all others are in the order of their
    points, which the test computes from the ranking of the vectors and the ranking of the words. A larger number of
    results begins with the same results."""
    searcher = Searcher(open_index(museum))
    query = "boat Rome"
    searched = TextQuery.parse("Rome")
    matches = searcher.text_index.search(searched)
    vector = searcher.embed_sentence("boat")
    nearest = searcher.nearest("images", vector, 24)[0]
    ids = [row["image_id"] for row in rows_of(searcher.index)]
    scores = [round(hit.score, 6) for hit in nearest]
    points = {hit.row["image_id"]: 1 / (RANK_OFFSET + 1 + scores.index(round(hit.score, 6))) for hit in nearest}
    for row, rank in matches.ranks.items():
        points[ids[row]] += 1 / (RANK_OFFSET + 1 + rank)
    rows, _ = searcher._merge(vector, matches, 24, None)
    merged = [points[ids[row]] for row in rows.tolist()]
    assert len(rows) == 24 and merged[:3] == sorted(merged[:3], reverse=True)
    exact = [row for row in rows.tolist() if row in matches.exact]
    assert rows.tolist()[: len(exact)] == exact
    rest = [points[ids[row]] for row in rows.tolist() if row not in matches.ranks]
    assert rest == sorted(rest, reverse=True)
    for top in (1, 5, 23):  # A larger number of results begins with the same results.
        assert rows[:top].tolist() == searcher._merge(vector, matches, top, None)[0].tolist()
    assert MAX_FUSED > 24 and searcher.images(query, 3)


def test_conditions_apply_to_words(museum: Path) -> None:
    searcher = Searcher(open_index(museum))
    assert [hit.row["image_id"] for hit in searcher.images("boat 12", 24, "image_id != 12") if hit.matches] == []
    assert {hit.row["image_id"] for hit in searcher.images("horse 19", 24, "image_id > 11")} == set(range(12, 24))
    with pytest.raises(InputError, match="none of the words"):
        searcher.images("INV 12/0004", 3, "image_id < 12")
    searcher.index.hidden = [12]
    with pytest.raises(InputError, match="none of the words"):
        Searcher(searcher.index).images("INV 12/0004", 3)


def test_hidden_columns_are_not_searched(museum: Path) -> None:
    with pytest.raises(InputError, match="none of the words"):
        Searcher(open_index(museum), ["number"]).images("INV 12/0004", 3)
    with pytest.raises(InputError, match="none of the words"):
        Searcher(open_index(museum), ["place"]).images("กรุงเทพมหานคร", 3)
    assert Searcher(open_index(museum), ["place"]).images("INV 12/0004", 3)[0].row["image_id"] == 12
    with pytest.raises(UsageError, match="no column 'number'"):
        Searcher(open_index(museum), ["number"]).images("dog", 3, sort="number")


def test_the_stored_file_is_private_and_follows_the_index(run: Path, tmp_path: Path) -> None:
    index = shutil.copytree(run / "bundle", tmp_path / "index")
    folder = state_folder("words")
    before = {*folder.iterdir()}
    Searcher(open_index(index)).images("horse 19", 3)
    (path,) = {*folder.iterdir()} - before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    assert [hit.matches for hit in Searcher(open_index(index)).images("horse 19", 1)] == [("file name",)]
    run_command("remove", index, "horse-19.png")
    (path,) = folder.iterdir()  # No removed text stays, and the new file is made at once.
    assert not Searcher(open_index(index)).images("horse 19", 3).matched
    assert [*folder.iterdir()] == [path]
    other = build_bundle(make_run(tmp_path / "other", images=40))
    built = {*folder.iterdir()} - {path}
    run_command("add", index, other)
    (added,) = {*folder.iterdir()} - built
    assert added != path
    found = Searcher(open_index(index)).images("horse 35", 3)
    assert {hit.row["path"] for hit in found if hit.matches} == {"horse-35.png"}
    assert {*folder.iterdir()} == {*built, added}
    added.write_bytes(added.read_bytes()[:5000] + bytes(20000))
    with pytest.raises(IntegrityError, match="Delete the folder"):
        Searcher(open_index(index)).images("horse 35", 3)


@pytest.mark.parametrize("bundles", [1, 3])
def test_build_index_makes_the_full_text_index(run: Path, monkeypatch: pytest.MonkeyPatch, bundles: int) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(run / f"state-{bundles}"))
    index = build_bundle(run, {"index": {"bundles": bundles}}, output=f"words-{bundles}")
    monkeypatch.setattr(text_index, "_fill", lambda *_: pytest.fail("the first search makes it again"))
    assert Searcher(open_index(index)).images("horse 19", 1)[0].row["path"] == "horse-19.png"


def test_only_the_job_that_completes_the_index_makes_its_full_text_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last two of three shards are built at the same time, and the full-text index is only made with all three.
    Afterwards the index is built again with two shards, and only the second shard makes the full-text index."""
    run = make_run(tmp_path / "run", images=40)
    made: list[int] = []
    monkeypatch.setattr(text_index, "make_text_index", lambda index: made.append(len(index.shards)))
    for count in (3, 2):
        opened = open_run(run, {"index": {"bundles": count}})
        first, *others = opened.config.bundle_names("ncca")
        run_stage(opened, build_index, (first,))
        assert not made
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(run_stage, opened, build_index, (name,)) for name in reversed(others)]
        assert all(job.result() == 0 for job in jobs)
        assert {*made} == {count}
        made.clear()
    assert not [record for record in caplog.records if "full-text" in record.message]


@pytest.mark.parametrize("bundles", [1, 3])
@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), OSError("full"), ValueError("other")])
def test_a_build_without_a_full_text_index_succeeds(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception,
    bundles: int,
) -> None:  # fmt: skip
    """The full-text index cannot be made during the build. One warning is logged, and the first search makes the
    full-text index."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def fail(*_: object) -> sqlite3.Connection:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(text_index, "_fill", fail)
        index = build_bundle(run, {"index": {"bundles": bundles}}, output=f"failed-{bundles}")
    warnings = [record.message for record in caplog.records if "full-text" in record.message]
    assert len(warnings) == 1 and str(error) in warnings[0]
    assert not [*tmp_path.rglob("*.sqlite")]
    assert Searcher(open_index(index)).images("horse 19", 1)[0].row["path"] == "horse-19.png"
    assert len([*tmp_path.rglob("*.sqlite")]) == 1


def test_indexes_with_equal_tables_share_one_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches of one index at the same time make the full-text index once. A copy of the index gets a hard link to
    the same file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    indexes = [shutil.copytree(run / "bundle", tmp_path / name) for name in ("one", "two")]
    fill = text_index._fill
    made = []
    both_started = threading.Barrier(2, timeout=60)

    def slow_fill(*arguments: Any) -> sqlite3.Connection:
        made.append(arguments)
        time.sleep(0.2)  # The other search waits for the lock meanwhile.
        return fill(*arguments)

    def search(folder: Path) -> str:
        searcher = Searcher(open_index(folder))
        both_started.wait()
        return searcher.images("horse 19", 1)[0].row["path"]

    monkeypatch.setattr(text_index, "_fill", slow_fill)
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(search, [indexes[0], indexes[0]])] == ["horse-19.png"] * 2
    assert Searcher(open_index(indexes[1])).images("horse 19", 1)[0].row["path"] == "horse-19.png"
    assert len(made) == 1
    files = [*(tmp_path / "state/jointspace/words").iterdir()]
    assert len(files) == 2 and files[0].samefile(files[1])


def test_long_identifiers_are_found_in_every_spelling(run: Path, tmp_path: Path) -> None:
    """The identifiers are longer than MAX_STORED_KEY_CHARACTERS, so each of them is stored as a hash."""
    numbers = [f"Staatliche Sammlungen, Inv. {number:04d}/1907" for number in range(24)]
    index = TextIndex(open_index(with_columns(run / "bundle", tmp_path / "index", number=numbers)))
    for query in ("staatliche sammlungen inv 0007/1907", "StaatlicheSammlungenInv.0007-1907"):
        assert index.search(TextQuery.parse(query)).exact == {7}
    assert not index.search(TextQuery.parse("staatliche sammlungen inv 0007")).exact


@pytest.mark.parametrize(
    ("query", "exact"),
    [
        ("INV 0", {0, 1, 2}),
        ("INV 0.jpg", {0}),
        ("inv-0 JPG", {0}),
        ("inv0.j2k", {1}),
        ("box/INV 0.jpg", {0}),
        ("lid/INV 0.jp2", {2}),
        ("box/INV 0", set()),
        ("0.jpg", set()),
        ("INV 0 0", set()),
    ],
)
def test_a_file_name_is_an_identifier_with_and_without_its_ending(tmp_path: Path, query: str, exact: set[int]) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    names = ["box/INV 0.jpg", "box/INV 0.j2k", "lid/INV 0.jp2", *(f"box/INV {number}.jpg" for number in range(3, 30))]
    index = jointspace.fit(vectors, vectors + 0.1).index(tmp_path / "index", vectors, names=names)
    matches = TextIndex(open_index(tmp_path / "index")).search(TextQuery.parse(query))
    assert matches.exact == exact
    for row in exact:
        assert matches.query.fields_of({"path": names[row]}) == ("file name",)
    assert index.search("INV 0.jpg", k=1)[0].row["path"] == names[0]


def test_a_file_of_a_stranger_is_never_opened(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens neither a file in the index folder nor a file in a folder that other users can write."""
    index = shutil.copytree(run / "bundle", tmp_path / "index")
    (index / "words.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(100))
    opened = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda name, **more: opened.append(str(name)) or connect(name, **more))
    open_state = tmp_path / "open"
    (open_state / "jointspace/words").mkdir(parents=True)
    (open_state / "jointspace/words").chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(open_state))
    assert Searcher(open_index(index)).images("horse 19", 1).matched
    assert opened == [":memory:"] and not [*(open_state / "jointspace/words").iterdir()]


def test_only_stored_files_are_deleted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(text_index, "MIN_LOGGED_PHOTOS", 24)
    folder = state_folder("words")
    (target := tmp_path / "target").write_text("of the user")
    (own := folder / "notes.txt").write_text("of the user")
    os.utime(own, (0, 0))
    (folder / f"{'0' * 64}-{'1' * 64}.sqlite").symlink_to(target)
    with caplog.at_level("INFO", "pipeline"):
        TextIndex(open_index(run / "bundle"))
        TextIndex(open_index(run / "bundle"))
    (message,) = caplog.messages  # The second time, the stored file is opened.
    assert "full-text index of 24 photos" in message and len([*folder.iterdir()]) == 3
    text_index.discard("no name")
    assert len([*folder.iterdir()]) == 3
    text_index.discard()
    assert [*folder.iterdir()] == [own] and target.exists()


def test_hostile_tables_are_searched(run: Path, tmp_path: Path) -> None:
    values = [
        "x" * 3_000_000,
        "\x00\x1f\x7f",
        "\ufeff\u200b",
        "¶INV9 ¶",
        "'\"*^:(){}",
        "needle " + "hay " * 20000,
        "👍🏽",
        "",
    ]
    index = with_columns(run / "bundle", tmp_path / "index", **{"a \"b'\x00": values, "caption": ["own"] * 24})
    searcher = Searcher(open_index(index))
    assert {hit.row["image_id"] for hit in searcher.images("needle", 24)} == {5, 13, 21}
    assert {hit.row["image_id"] for hit in searcher.images("¶inv9", 24)} == {3, 11, 19}
    for query in ("¶", "\x00", "x" * 10_000, " ".join(f"w{n}" for n in range(500)), "\udcff dog"):
        if parsed := TextQuery.parse(query):
            searcher.text_index.search(parsed)


def test_an_index_of_many_columns_is_searched(run: Path, tmp_path: Path) -> None:
    columns = {f"column {number}": [f"value{number}"] * 3 + ["none"] * 21 for number in range(2100)}
    searcher = Searcher(open_index(with_columns(run / "bundle", tmp_path / "index", **columns)))
    assert {hit.row["image_id"] for hit in searcher.images("value 7", 24) if hit.matches} == {0, 1, 2}


def test_without_fts5_the_message_names_the_option(museum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    class WithoutFTS5(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("fts5", "fts_missing"), *values)

    monkeypatch.setattr(text_index, "VERSION", "another")
    monkeypatch.setattr(sqlite3, "connect", lambda *names, **more: connect(*names, **more, factory=WithoutFTS5))
    with pytest.raises(UsageError, match="no such module: fts_missing.*--no-match-text"):
        jointspace.load(museum).search("a dog")
    assert jointspace.load(museum).search("a dog", match_text=False)


def test_one_photo_and_vectors_alone(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    space = jointspace.fit(vectors, vectors + 0.1)
    for count in (1, 30):
        names = [f"box/INV {number}.jpg" for number in range(count)]
        index = space.index(tmp_path / f"of-{count}", vectors[:count], names=names)
        assert [hit.row["path"] for hit in index.search("inv 0", k=3)] == ["box/INV 0.jpg"]
        with pytest.raises(UsageError, match="precomputed"):
            index.search("nothing")
        said = CliRunner().invoke(command, [str(tmp_path / f"of-{count}"), "inv 0"], catch_exceptions=False).stderr
        assert said.rstrip().endswith("because the vectors of its text encoder were precomputed."), "no command helps"


def test_an_index_of_removed_photos_has_no_words(run: Path, tmp_path: Path) -> None:
    shard = IndexShard(run / "bundle")
    writer = IndexWriter(tmp_path / "index")
    writer.link(shard, but={"images.parquet", "sentences.parquet"})
    for modality in ("images", "sentences"):
        writer.add_table(f"{modality}.parquet", shard.table(modality).schema.empty_table())
    writer.commit(source=shard.card)
    assert not TextIndex(open_index(tmp_path / "index")).search(TextQuery("dog", ("dog",))).ranks


def test_several_shards_match_as_one(run: Path) -> None:
    several = Searcher(open_index(build_bundle(run, {"index": {"bundles": 3}}, output="several-texts")))
    one = Searcher(open_index(run / "bundle"))
    for query in ("horse 19", "number 4", "boat", "cat-17.png"):
        answers = [
            [(hit.row["path"], hit.matches) for hit in searcher.images(query, 24)] for searcher in (one, several)
        ]
        assert answers[0][:3] == answers[1][:3] and {*answers[0]} == {*answers[1]}
    for query in ("1", "horse 2"):  # A number of a shard is not a value of the collection.
        matches = [
            {hit.row["path"]: hit.matches for hit in searcher.images(query, 24) if hit.matches}
            for searcher in (one, several)
        ]
        assert matches[0] == matches[1]
    for changes in ({"sort": "-path"}, {"minus": ["cat"]}, {"where": "path != 'horse-19.png'"}):
        scores = [
            {hit.row["path"]: hit.score for hit in searcher.images("horse dog", 24, **changes)}
            for searcher in (one, several)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-6) and len(scores[0]) == 24 - ("where" in changes)
        if "sort" in changes:
            assert [*scores[0]] == [*scores[1]] == sorted(scores[0], reverse=True)


def test_words_are_subtracted_from_a_text(museum: Path) -> None:
    """The vector of the query is the difference of the unit vectors of the text and of the subtracted word, scaled to
    unit length."""
    searcher = Searcher(open_index(museum))
    answer = searcher.images("dog cat", 24, minus=["cat"])
    text = np.eye(8)[0] + np.eye(8)[1]
    minus = np.eye(8)[1]
    query = text / np.linalg.norm(text) - minus
    vectors = searcher.gallery("images").reconstruct(np.arange(24))
    expected = np.sort(vectors @ (query / np.linalg.norm(query)))[::-1]
    np.testing.assert_allclose([hit.score for hit in answer], expected, atol=1e-6)
    assert answer[0].row["path"].startswith("dog") and answer.judgement is None
    shown = json.loads(run_command("search", "--index", museum, "dog cat", "--minus", "cat", "--json"))
    assert [hit["path"] for hit in shown[:6]] == [hit.row["path"] for hit in answer[:6]]
    assert jointspace.load(museum).search("dog cat", minus="cat", k=24) == answer
    for wrong, error, said in (
        ({"minus": ["unicorn"]}, InputError, "none of the words of 'unicorn'"),
        ({"minus": ["dog cat"]}, InputError, "cancel each other out"),
    ):
        with pytest.raises(error, match=said):
            searcher.images("dog cat", 3, **wrong)
    with pytest.raises(UsageError, match="single text"):
        jointspace.load(museum).search(["dog"], minus=["cat"])


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("taken", lambda day: -day.toordinal()),
        ("-taken", lambda day: day.toordinal()),
        ("count", int),
        ("-count", lambda count: -count),
        ("path", str),
    ],
)
def test_likely_matches_are_sorted_by_a_column(museum: Path, column: str, key: Callable[[Any], Any]) -> None:
    searcher = Searcher(open_index(museum))
    for top in (2, 24):
        found = searcher.images("dog", top, sort=column, match_text=False)
        name = column.removeprefix("-")
        values = [hit.row[name] for hit in found]
        known = [value for value in values if value is not None]
        assert known == sorted(known, key=key) and values[: len(known)] == known
        assert [hit.rank for hit in found] == [*range(1, top + 1)]
    with pytest.raises(UsageError, match="Did you mean taken"):
        searcher.images("dog", 3, sort="takn")


def test_an_identifier_stays_first_in_sorted_results(run: Path, tmp_path: Path) -> None:
    """Results are sorted by a column. The two photos with the identifier "dog" come before all other photos. The query
    "rome" is a value of 21 photos, which are too many for an identifier, so its photos are only sorted. The model knows
    the word "dog", but not "rome"."""
    searcher = Searcher(open_index(with_columns(
        run / "bundle", tmp_path / "index", name=["dog", "dog", *["other"] * 22], place=["Rome"] * 21 + [None] * 3,
        count=[*range(24)],
    )))  # fmt: skip
    dogs = searcher.images("dog", 24, sort="-count")
    assert [hit.row["count"] for hit in dogs] == [1, 0, *range(23, 1, -1)]
    assert dogs.identified == 2 and {hit.matches for hit in dogs[:2]} == {("name",)}
    assert dogs.identified == searcher.images("dog", 24).identified
    assert pickle.loads(pickle.dumps(dogs)).identified == 2  # noqa: S301  This test has written the bytes.
    places = searcher.images("rome", 2, sort="-count")
    assert [hit.row["count"] for hit in places] == [20, 19] and places.identified == 0


def test_command_finds_words(museum: Path) -> None:
    def search(*arguments: str) -> tuple[str, str]:
        result = CliRunner().invoke(command, ["--index", str(museum), *arguments], catch_exceptions=False)
        return result.stdout, result.stderr

    table, said = search("INV 12/0004")
    assert table.splitlines()[0].startswith("   1    0.0000  boat-12.png  [words in number]") and "ignored" not in said
    assert json.loads(search("INV 12/0004", "--json")[0])[0]["matches"] == ["number"]
    days = [hit["taken"] for hit in json.loads(search("a dog", "--sort", "taken", "--json")[0])]
    assert days == [*sorted(filter(None, days), reverse=True), *[None] * days.count(None)]
    with pytest.raises(InputError, match="none of the words"):
        search("INV 12/0004", "--no-match-text")
    for wrong in (["--image", str(museum / "card.json"), "--sort", "taken"], ["dog", "--regions", "--minus", "cat"]):
        with pytest.raises(UsageError, match="--sort needs a text query|--minus and --plus change one query"):
            search(*wrong)


def test_common_words_are_left_to_the_vectors(museum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_index(museum)
    assert TextIndex(index).search(TextQuery("number", ("number",))).ranks == {}
    monkeypatch.setattr(text_index, "FEW_MATCHES", 24)
    assert len(TextIndex(index).search(TextQuery("number", ("number",))).ranks) == 24


def test_a_common_value_is_found_if_the_query_is_equal_to_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place is the value of 22 of 24 photos: more than a tenth of them, and more than may share an identifier."""
    places = ["São Tomé", "sao-tome"] * 11 + ["São Tomé beach", None]
    searcher = Searcher(open_index(with_columns(run / "bundle", tmp_path / "index", place=places)))
    found = searcher.images("são tomé", 24)
    assert {hit.row["image_id"] for hit in found if hit.matches} == set(range(22))
    assert found.identified == 0
    with pytest.raises(InputError, match="none of the words"):  # The word is only a part of the value.
        searcher.images("tomé", 24)
    monkeypatch.setattr(text_index, "MAX_MATCHES", 21)
    with pytest.raises(InputError, match="none of the words"):
        searcher.images("são tomé", 24)
