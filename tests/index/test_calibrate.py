"""Tests of the command `calibrate`: the line of likely matches that it sets with captions of a user, and the option
`--ask`, which asks the user for captions. The tests also cover unusable captions, failed writes, indexes that cannot be
calibrated, and changes of the photos after a calibration."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from synthetic_run import THINGS, build_bundle, make_run, run_command

import jointspace
from pipeline.errors import InputError, IntegrityError, JointspaceError, UsageError
from pipeline.index.calibration import changed_share, explain_missing_line
from pipeline.index.gallery import Gallery
from pipeline.run.reading.calibration_pairs import record_pair
from pipeline.storage.batch import FileBatch
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.locks import hold
from pipeline.storage.stored_index import open_index
from stages.index import calibrate
from stages.index.remove import _remove_from
from stages.index.search import command as search

IMAGES = 192
HELD_OUT = [number for number in range(IMAGES) if number % 3 == 2]
Rows = list[tuple[str, str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run without a dev split, whose index therefore has no line of likely matches, and build this index twice:
    in one shard (`bundle`) and in two shards (`several`)."""
    run = make_run(tmp_path_factory.mktemp("run"), images=IMAGES)
    build_bundle(run)
    build_bundle(run, {"index": {"bundles": 2}}, output="several")
    return run


@pytest.fixture(params=["bundle", "several"])
def folder(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> Iterator[Path]:
    yield shutil.copytree(built / request.param, tmp_path / "index")


@pytest.fixture
def single(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built / "bundle", tmp_path / "index")


def written(wrong: int = 0, count: int = 60) -> Rows:
    """Return pairs of a file name and a caption for the first `count` photos that did not train the model.

    The caption names the thing in the photo, except in the first `wrong` pairs, which name another thing.
    """
    numbers = HELD_OUT[:count]
    return [
        (f"{THINGS[number % 8]}-{number}.png", f"a {THINGS[(number + (row < wrong)) % 8]}")
        for row, number in enumerate(numbers)
    ]


def write(path: Path, rows: Rows, header: Sequence[str] = ("file", "caption")) -> Path:
    """Write a table of pairs to `path`, as CSV, TSV or Parquet by the suffix of the path, and return the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(header, zip(*rows, strict=True), strict=True))), path)
        return path
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


def expected_scores(folder: Path, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: for each of the k pairs `rows`, the score (k,) of its photo with its caption, and the score
    (n,) of each photo of the index with the caption "a dog".

    The scores of a pair are standardised by the mean and deviation of the scores of its caption with all other photos.
    The scores with "a dog" are standardised by the mean and deviation of all n scores. All scores are computed from the
    vectors that the index in `folder` exports.
    """
    run_command("export", folder, "--to", "parquet", "--output", folder.parent / "vectors")
    table = pq.read_table(folder.parent / "vectors" / "images.parquet")
    images = np.stack(table["vector"].to_numpy())
    positions = {path: row for row, path in enumerate(table["path"].to_pylist())}
    index = jointspace.load(folder)
    scores = []
    for name, caption in rows:
        products = images @ index.embed_text(caption)
        others = np.delete(products, positions[name])
        scores.append((products[positions[name]] - others.mean()) / others.std())
    dogs = images @ index.embed_text("a dog")
    return np.array(scores), (dogs - dogs.mean()) / dogs.std()


@pytest.mark.parametrize(("wrong", "suffix"), [(5, ".csv"), (6, ".tsv"), (7, ".parquet")])
def test_line_misses_as_many_captions_as_the_coverage_allows(folder: Path, wrong: int, suffix: str) -> None:
    rows = written(wrong)
    before = open_index(folder)
    files = {name: about.sha256 for name, about in before.first.card.files.items()}
    run_command("calibrate", folder, write(folder.parent / f"pairs{suffix}", rows))
    after = open_index(folder)
    after.check()
    assert after.card.fingerprint != before.card.fingerprint
    assert {**files, "background.safetensors": ""} == {
        name: about.sha256 if name in files else "" for name, about in after.first.card.files.items()
    }
    scores, dogs = expected_scores(folder, rows)
    line = after.card.calibration.score
    assert line == pytest.approx(np.sort(scores)[5], rel=1e-4), "6 of 61 captions may be missed"
    photos = [shard.card.images.count for shard in after.shards]
    assert (after.card.calibration.coverage, after.card.calibration.photos) == (0.9, photos)
    assert jointspace.load(folder).search("a dog", k=IMAGES).judgement.likely == np.sum(dogs >= line)


def test_second_calibration_replaces_the_first_one(single: Path, tmp_path: Path) -> None:
    run_command("calibrate", single, write(tmp_path / "a.csv", written(7)))
    first = IndexShard(single).card.calibration.score
    run_command("calibrate", single, write(tmp_path / "b.csv", written()))
    IndexShard(single).check()
    assert IndexShard(single).card.calibration.score > first


ERRORS: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "few": (
        lambda rows: rows[:49],
        "has captions of 49 photos, but a calibration needs 50. Add rows. If --ask has written the table,",
    ),
    "unknown": (
        lambda rows: [*rows, ("unicorn.png", "a dog")],
        "row 62: 'unicorn.png' is not the name of one photo of",
    ),
    "comment": (lambda rows: [*rows, ("#dog", "a dog")], "row 62: '#dog' is not the name of one photo of"),
    "empty": (lambda rows: [*rows, ("dog-8.png", " ")], "row 62: the caption is empty. Correct the row, or remove it."),
    "nameless": (lambda rows: [*rows, ("", "a dog")], "row 62: the name of the photo is empty. Correct"),
    "twice": (lambda rows: [*rows, (rows[3][0], rows[3][1].upper())], "row 62: row 5 has the same photo and caption."),
    "words": (lambda rows: [*rows, ("dog-8.png", "a zebra")], "row 62: The model knows none of the words of 'a zebra'"),
    "two-captions": (lambda rows: [*rows[:49], (rows[0][0], "the big dog")], "has captions of 49 photos"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_names_the_table_the_row_and_the_remedy(single: Path, tmp_path: Path, name: str) -> None:
    change, message = ERRORS[name]
    path = write(tmp_path / "pairs.csv", change(written()))
    card = (single / "card.json").read_bytes()
    with pytest.raises(InputError) as error:
        run_command("calibrate", single, path)
    assert str(error.value).startswith(str(path)) and message in str(error.value)
    assert (single / "card.json").read_bytes() == card


def test_tables_without_the_columns_are_refused(single: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="does not exist. Write this table with the columns file and caption, or add --ask"
    ):
        run_command("calibrate", single, tmp_path / "missing.csv")
    (tmp_path / "header.csv").write_text("file,caption\n")
    with pytest.raises(
        InputError, match="header.csv has no rows with values. Write at least one row below the header."
    ):
        run_command("calibrate", single, tmp_path / "header.csv")
    with pytest.raises(InputError, match="has no column of captions. Name this column caption."):
        run_command("calibrate", single, write(tmp_path / "a.csv", written(), ("file", "number")))
    with pytest.raises(InputError, match="b.csv has no header, since its first line is about the photo dog-2.png"):
        run_command("calibrate", single, write(tmp_path / "b.csv", written(), ("dog-2.png", "a dog")))


def test_captions_of_training_photos_are_reported(
    single: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = [(f"{THINGS[number % 8]}-{number}.png", f"a {THINGS[number % 8]}") for number in (0, 1, 3)]
    run_command("calibrate", single, write(tmp_path / "pairs.csv", [*written(), *trained]))
    assert "has 3 photos that trained the model" in caplog.text


def test_failed_write_and_held_lock_leave_the_index_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = write(tmp_path / "pairs.csv", written())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with hold(folder), pytest.raises(JointspaceError, match="is being written by"):
        run_command("calibrate", folder, pairs)

    def fail(batch: FileBatch) -> None:
        batch.discard()
        raise JointspaceError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(FileBatch, "publish", fail)
        with pytest.raises(JointspaceError, match="the disk is full"):
            run_command("calibrate", folder, pairs)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    run_command("calibrate", folder, pairs)


def test_index_that_cannot_return_its_vectors_is_refused(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gallery: Gallery, rows: np.ndarray) -> np.ndarray:
        raise RuntimeError("not implemented for this type of index")

    monkeypatch.setattr(Gallery, "reconstruct", fail)
    with pytest.raises(UsageError, match="its type returns no vectors. Set index.candidates to other types"):
        run_command("calibrate", single, write(tmp_path / "pairs.csv", written()))


def note(folder: Path) -> str:
    """Return the text that a search for "a dog" in the index writes to stderr."""
    result = CliRunner().invoke(search, [str(folder), "a dog"], catch_exceptions=False)
    return result.stderr


def test_line_is_kept_until_half_of_the_photos_have_changed(folder: Path, built: Path, tmp_path: Path) -> None:
    assert f"jointspace calibrate {folder} pairs.csv --ask" in note(folder) and note(folder).count("\n") == 1
    run_command("calibrate", folder, write(tmp_path / "pairs.csv", written()))
    assert note(folder) == ""
    ids = [f"id:{number}" for number in range(IMAGES)]
    run_command("remove", folder, *ids[:17])
    run_command("remove", folder, *ids[17:29])
    assert changed_share(open_index(folder)) == pytest.approx(29 / 192)
    larger = make_run(tmp_path / "larger", images=IMAGES + 64)
    run_command("add", folder, larger)
    assert changed_share(open_index(folder)) == pytest.approx((29 + 64) / 256)
    assert jointspace.load(folder).search("a dog").judgement is not None
    run_command("remove", folder, *ids[29:65])  # now 65 of the 192 photos are gone, and 64 are new
    assert changed_share(open_index(folder)) == pytest.approx(129 / 256)
    assert jointspace.load(folder).search("a dog").judgement is None
    assert "jointspace calibrate" in note(folder)
    left = [(name, text) for name, text in written() if int(name[:-4].split("-")[1]) > 64]
    new = [(f"{THINGS[n % 8]}-{n}.png", f"a {THINGS[n % 8]}") for n in range(IMAGES, IMAGES + 20)]
    run_command("calibrate", folder, write(tmp_path / "new.csv", left + new))
    assert changed_share(open_index(folder)) == 0 and note(folder) == ""


def test_index_with_an_empty_shard_is_calibrated(built: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(built / "several", tmp_path / "index")
    shard = open_index(folder).first
    ids = set(shard.table("images")["image_id"].to_pylist())
    run_command("remove", folder, *(f"id:{number}" for number in ids))
    rest = [(name, text) for name, text in written() if int(name[:-4].split("-")[1]) not in ids]
    assert len(rest) < 50
    others = [f"{THINGS[number % 8]}-{number}.png" for number in range(IMAGES) if number not in ids]
    run_command(
        "calibrate", folder, write(tmp_path / "pairs.csv", [(name, f"a {name.split('-')[0]}") for name in others])
    )
    opened = open_index(folder)
    opened.check()
    assert opened.card.calibration.photos == [0, len(others)]
    assert jointspace.load(folder).search("a dog").judgement.likely > 0


def test_index_of_one_photo_and_an_empty_index_say_that_they_are_too_small(single: Path, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.csv", written())
    run_command("remove", single, *(f"id:{number}" for number in range(1, IMAGES)))
    assert note(single).strip().endswith("because it has fewer than 50 photos.")
    with pytest.raises(UsageError, match="cannot be calibrated, because it has fewer than 50 photos"):
        run_command("calibrate", single, pairs)
    _remove_from(IndexShard(single), {0}, single)
    assert explain_missing_line(open_index(single)).endswith("because it has fewer than 50 photos.")
    with pytest.raises(UsageError, match="fewer than 50 photos"):
        run_command("calibrate", single, pairs, "--ask")


def ask(folder: Path, path: Path, typed: str, *options: str) -> str:
    """Run `jointspace calibrate FOLDER PATH --ask` with the input `typed`, and return its output.

    The error with which the command ends after too few captions is ignored, and other errors are raised.
    """
    result = CliRunner().invoke(calibrate.command, [str(folder), str(path), "--ask", *options], typed)
    if result.exception and "you can also run: jointspace calibrate" not in str(result.exception):
        raise result.exception
    return result.output


def shown(output: str) -> list[str]:
    """Return the file names of the photos for which --ask has asked for a caption, from its `output`."""
    return [line.rpartition("/")[2] for line in output.splitlines() if " of " in line and ".png" in line]


def test_asking_is_continued_until_there_are_enough_captions(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    first = shown(ask(folder, path, 'a dog\n\na, "big" cat\n'))
    assert len(first) == len(set(first)) == 4, "two captions, a skipped photo, and the photo at which the input ends"
    assert all(int(name[:-4].split("-")[1]) in HELD_OUT for name in first), "the others have trained the model"
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [["file", "caption"], [first[0], "a dog"], [first[2], 'a, "big" cat']]
    assert open_index(folder).card.calibration is None
    second = shown(ask(folder, path, ""))
    assert second == [first[3]], "the seed decides the order, and the skipped photo is not shown again now"
    assert shown(ask(folder, tmp_path / "other.csv", "a dog\n", "--seed", "1"))[0] != first[0]
    third = shown(ask(folder, path, "a dog\n" * 60))
    assert len(third) == 48 and not {first[0], first[2]} & {*third}
    assert open_index(folder).card.calibration is not None
    assert shown(ask(folder, path, "a cat\n")) == [], "there are enough captions"


def test_the_table_is_pairs_csv_unless_it_is_named(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(calibrate.command, [str(single), "--ask"], "a dog\n")
    assert (tmp_path / "pairs.csv").read_text().startswith("file,caption\n")
    with pytest.raises(InputError, match="^pairs.csv has captions of 1 photo, but"):
        run_command("calibrate", single)


def test_asking_refuses_tables_that_it_cannot_continue(single: Path, tmp_path: Path) -> None:
    for name, header in (("pairs.tsv", ("file", "caption")), ("pairs.csv", ("name", "caption"))):
        path = write(tmp_path / name, written(count=3), header)
        before = path.read_bytes()
        with pytest.raises(
            UsageError, match="With --ask, name a new file that ends in .csv, or a file that an earlier call"
        ):
            ask(single, path, "a dog\n")
        assert path.read_bytes() == before


def test_pair_begins_a_new_line_after_a_line_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("file,caption\na.jpg,one")
    record_pair(tmp_path / "pairs.csv", "b.jpg", "two")
    assert (tmp_path / "pairs.csv").read_text() == "file,caption\na.jpg,one\nb.jpg,two\n"


def test_forged_counts_on_the_card_are_refused(single: Path, tmp_path: Path) -> None:
    run_command("calibrate", single, write(tmp_path / "pairs.csv", written()))
    card = json.loads((single / "card.json").read_text())
    for forged in ([-1], [1.5], "180", [None]):
        card["calibration"]["photos"] = forged
        (single / "card.json").write_text(json.dumps({key: value for key, value in card.items() if key != "check"}))
        with pytest.raises(IntegrityError):
            open_index(single)
