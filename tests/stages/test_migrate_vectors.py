"""Tests of vectors without photos that are migrated to a new encoder, with `migrate` and with Python."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import run_command

import jointspace
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.storage.index_folder import COLUMNS
from pipeline.storage.index_shard import IndexShard, IndexWriter

COUNT = 400
"""Number of vectors by the old encoder."""
SAMPLE = 120
"""Number of rows in CHOSEN, for which `migrate` gets vectors by the new encoder."""
RNG = np.random.default_rng(0)
NEW = RNG.normal(size=(COUNT, 8)).astype("f4")
"""Vectors of all rows by the new encoder. The tests give only the rows in CHOSEN to `migrate`, unless a test says
otherwise.
"""
OLD = (NEW @ np.linalg.qr(RNG.normal(size=(12, 8)))[0].T).astype("f4")
"""Vectors of all rows by the old encoder: the vectors of NEW, turned into a space of 12 dimensions with the same
angles.
"""
CHOSEN = RNG.permutation(COUNT)[:SAMPLE]
NAMES = [f"photo-{row:03d}.jpg" for row in range(COUNT)]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write(path: Path, vectors: np.ndarray, names: list[str] | None = None) -> Path:
    """Write vectors to the file `path`, and return `path`. In a Parquet file, the names are a column, and must be
    given. For a .npy file, the names are written to a text file next to it, or no text file is written if `names`
    is None.
    """
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"name": names, "vector": list(vectors)}), path)
        return path
    np.save(path, vectors)
    if names:
        path.with_suffix(".txt").write_text("".join(f"{name}\n" for name in names))
    return path


def test_a_planted_linear_map_is_recovered_in_both_directions() -> None:
    migration = jointspace.migrate(OLD, NEW[CHOSEN], CHOSEN)
    others = np.setdiff1d(np.arange(COUNT), CHOSEN)
    cosines = (migration.map_gallery(OLD[others]) * unit(NEW[others])).sum(axis=1)
    assert cosines.min() > 0.999
    scores = migration.adapt_queries(NEW[others]) @ unit(OLD[others]).T
    assert (scores.argmax(axis=1) == np.arange(len(others))).all()
    assert migration.rows == SAMPLE and migration.measured_with == "neighbours"
    assert migration.kept["gallery"] > 0.95 and migration.kept["queries"] > 0.85


def test_unrelated_vectors_keep_no_more_than_chance() -> None:
    """For each of the 120 rows, 10 of the 119 other rows are its neighbours. A search that ignores the vectors would
    therefore find 10 / 119 of them.
    """
    rng = np.random.default_rng(1)
    kept = jointspace.migrate(rng.normal(size=(SAMPLE, 12)), NEW[CHOSEN]).kept
    assert 0 <= kept["gallery"] < 0.2 and 0 <= kept["queries"] < 0.2


def test_captions_are_a_third_view_with_several_captions_per_photo() -> None:
    """The map equals a ridge regression on two sets of centred pairs: the old and new vectors of the sampled images,
    and the old vectors and mean captions of the images that have captions but no new vector.
    """
    rng = np.random.default_rng(1)
    owners = np.repeat(np.arange(COUNT), 2)[rng.permutation(2 * COUNT)][: COUNT + 60]
    texts = NEW[owners] + 0.5 * rng.normal(size=(len(owners), 8)) + 2
    noisy = unit(OLD + 0.5 * rng.normal(size=OLD.shape))
    migration = jointspace.migrate(noisy, NEW[CHOSEN], CHOSEN, texts, owners)
    described = [row for row in np.unique(owners) if row not in CHOSEN]
    means = np.array([unit(texts[owners == row]).mean(axis=0) for row in described])
    views = [(noisy[CHOSEN], unit(NEW[CHOSEN])), (noisy[described], means)]
    x, y = (np.concatenate([view[side] - view[side].mean(axis=0) for view in views]) for side in (0, 1))
    # The ridge is a multiple of this scale: the mean square of the values in x, times SAMPLE photos.
    scale = np.square(x).sum() / len(x) * SAMPLE / x.shape[1]
    expected = np.linalg.solve(x.T @ x + migration.gallery_map.ridge * scale * np.eye(12), x.T @ y)
    np.testing.assert_allclose(migration.gallery_map.weight, expected, atol=1e-4)
    left, _, right = np.linalg.svd(y.T @ x, full_matrices=False)
    np.testing.assert_allclose(migration.query_weight, left @ right, atol=1e-4)
    assert migration.measured_with == "captions"


def test_captions_of_other_rows_only_do_not_search() -> None:
    others = np.setdiff1d(np.arange(COUNT), CHOSEN)
    migration = jointspace.migrate(OLD, NEW[CHOSEN], CHOSEN, NEW[others] + 1, others)
    assert migration.measured_with == "neighbours" and migration.kept["gallery"] > 0.9
    np.testing.assert_allclose(migration.query_mean, unit(NEW[others] + 1).mean(axis=0), atol=1e-6)


def test_rows_are_paired_by_names_in_any_order(tmp_path: Path) -> None:
    old = write(tmp_path / "old.npy", OLD, NAMES)
    new = write(tmp_path / "new.parquet", NEW[CHOSEN], [NAMES[row] for row in CHOSEN])
    shown = run_command("migrate", old, new, "--output", tmp_path / "out")
    assert "120 rows" in shown and shown.count("%") == 2
    mapped = np.load(tmp_path / "out/images.npy")
    assert (tmp_path / "out/images.txt").read_text().split() == NAMES and "images.txt (their names)" in shown
    np.testing.assert_allclose(mapped[CHOSEN], unit(NEW[CHOSEN]), atol=1e-6)
    assert (mapped * unit(NEW)).sum(axis=1).min() > 0.999
    maps = np.load(tmp_path / "out/maps.npz")
    query = (unit(NEW[:1]) - maps["query_mean"]) @ maps["query_weight"]
    assert (unit(OLD) @ query[0]).argmax() == 0
    with pytest.raises(UsageError, match="already exists. Name a new folder with --output"):
        run_command("migrate", old, new, "--output", tmp_path / "out")


def test_rows_without_names_are_paired_by_order_or_by_their_numbers(tmp_path: Path) -> None:
    old = write(tmp_path / "old.npy", OLD)
    run_command("migrate", old, write(tmp_path / "all.npy", NEW), "--output", tmp_path / "all")
    np.testing.assert_allclose(np.load(tmp_path / "all/images.npy"), unit(NEW), atol=1e-6)
    new = write(tmp_path / "new.npy", NEW[CHOSEN], list(map(str, CHOSEN)))
    texts = write(tmp_path / "texts.npy", NEW[:300], [f"{row}#0" for row in range(300)])
    shown = run_command("migrate", old, new, "--texts", texts, "--output", tmp_path / "some")
    assert "recall@10 of captions" in shown
    assert (tmp_path / "some/images.txt").read_text().split() == [str(row) for row in range(len(OLD))]
    assert (np.load(tmp_path / "some/images.npy") * unit(NEW)).sum(axis=1).min() > 0.999
    for names, message in (
        (None, "the row number .from 0. of the same photo in"),
        (
            [str(len(OLD)), *map(str, CHOSEN[1:])],
            f"1 rows have names that are not row numbers of .*: {len(OLD)}. Correct",
        ),
    ):
        (tmp_path / "new.txt").unlink(missing_ok=True)
        write(tmp_path / "new.npy", NEW[CHOSEN], names)
        with pytest.raises(InputError, match=message):
            run_command("migrate", old, tmp_path / "new.npy", "--output", tmp_path / "bad")


def test_the_old_vectors_may_be_an_index(tmp_path: Path) -> None:
    """The new vectors are a rotation of the vectors in the index. The command recovers the rotation, and so the new
    vectors of all rows.
    """
    rng = np.random.default_rng(1)
    space = jointspace.fit(OLD, NEW, dimensions=[8])
    space.index(tmp_path / "index", OLD, names=NAMES)
    rotation = np.linalg.qr(rng.normal(size=(space.dim, space.dim)))[0]
    vectors = space.embed_images(OLD) @ rotation
    new = write(tmp_path / "new.npy", vectors[CHOSEN].astype("f4"), [NAMES[row] for row in CHOSEN])
    run_command("migrate", tmp_path / "index", new, "--output", tmp_path / "out")
    assert (tmp_path / "out/images.txt").read_text().split() == NAMES
    assert (np.load(tmp_path / "out/images.npy") * vectors).sum(axis=1).min() > 0.999


def test_photos_of_an_index_that_are_inside_shards_are_paired_by_their_own_names(tmp_path: Path) -> None:
    space = jointspace.fit(OLD, NEW, dimensions=[8])
    space.index(tmp_path / "plain", OLD, names=NAMES)
    shard = IndexShard(tmp_path / "plain")
    table = shard.table("images").select([*COLUMNS["images"].names]).to_pydict()
    table |= {"path": ["photos.tar"] * COUNT, "member": NAMES}
    writer = IndexWriter(tmp_path / "index")
    writer.link(shard, but={"images.parquet"})
    writer.add_table("images.parquet", pa.table(table, schema=COLUMNS["images"]))
    writer.commit(source=shard.card)
    new = write(tmp_path / "new.npy", NEW[CHOSEN], [f"photos.tar/{NAMES[row]}" for row in CHOSEN])
    run_command("migrate", tmp_path / "index", new, "--output", tmp_path / "out")
    assert (tmp_path / "out/images.txt").read_text().split() == [f"photos.tar/{name}" for name in NAMES]


def test_an_index_with_several_vectors_per_photo_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The model dvsa has several vectors per image"):
        run_command("migrate", run / "regions", write(tmp_path / "new.npy", NEW), "--output", tmp_path / "out")


def test_names_that_a_list_cannot_contain_are_refused(tmp_path: Path) -> None:
    names = [*NAMES[:-1], "two\nlines.jpg"]
    old = write(tmp_path / "old.parquet", OLD, names)
    new = write(tmp_path / "new.parquet", NEW[CHOSEN], [names[row] for row in CHOSEN])
    with pytest.raises(InputError, match=r"old.parquet has a row with the name 'two\\nlines.jpg'. The line break"):
        run_command("migrate", old, new, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "names", "message"),
    [
        (SAMPLE, None, r"new.npy has 120 rows, and \S*old.npy has 400, so the rows cannot be paired by order. Next to"),
        (SAMPLE, ["x.jpg", "y.jpg", *NAMES[2:SAMPLE]], "120 rows.*400, but 2 rows have names.*: x.jpg, y.jpg. Correct"),
        (1, NAMES[:1], "at least 63 rows with both vectors, but .*new.npy has 1. Encode more photos"),
        (0, None, "new.npy has 0 rows, and .*cannot be paired by order"),
    ],
)  # fmt: skip
def test_rows_without_a_partner_are_refused(tmp_path: Path, rows: int, names: list[str] | None, message: str) -> None:
    old = write(tmp_path / "old.npy", OLD, NAMES)
    new = write(tmp_path / "new.npy", NEW[:rows], names)
    with pytest.raises(InputError, match=message):
        run_command("migrate", old, new, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_repeated_names_and_captions_of_another_encoder_are_refused(tmp_path: Path) -> None:
    new = write(tmp_path / "new.npy", NEW[:SAMPLE], NAMES[:SAMPLE])
    repeated = write(tmp_path / "repeated.npy", OLD, [*NAMES[:-1], NAMES[0]])
    with pytest.raises(InputError, match="400 rows, but 399 different names"):
        run_command("migrate", repeated, new, "--output", tmp_path / "out")
    with pytest.raises(
        InputError, match="texts has vectors of 12 numbers, but new has vectors of 8 numbers. Encode the captions"
    ):
        jointspace.migrate(OLD, NEW, texts=OLD)
    with pytest.raises(InputError, match=f"new has {len(NEW[CHOSEN])} vectors, but old has 400 vectors. Pass rows"):
        jointspace.migrate(OLD, NEW[CHOSEN])
    with pytest.raises(
        InputError, match="rows must have the number of a row of old, from 0 to 399, for each of the 120"
    ):
        jointspace.migrate(OLD, NEW[CHOSEN], CHOSEN + 300)


@pytest.mark.parametrize("row", [CHOSEN[0], np.setdiff1d(np.arange(COUNT), CHOSEN)[-1]])
@pytest.mark.parametrize(("value", "fault"), [(np.inf, "NaN or infinity"), (0, "only zeros")])
def test_a_row_without_a_direction_is_named_and_nothing_is_written(
    tmp_path: Path, row: int, value: float, fault: str
) -> None:
    """The first row is in the sample. The second row is not, so its fault is found only when all vectors are mapped."""
    damaged = OLD.copy()
    damaged[row] = value
    old = write(tmp_path / "old.npy", damaged, NAMES)
    new = write(tmp_path / "new.npy", NEW[CHOSEN], [NAMES[row] for row in CHOSEN])
    with pytest.raises(InputError, match=rf"old.npy row {row} \(from 0\) contains {fault}"):
        run_command("migrate", old, new, "--output", tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_output_that_cannot_be_written_is_refused_before_the_vectors_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "old.npy", tmp_path / "new.npy"):
        path.touch()  # Reading these files would be another error.
    for output, message in (("file/out", "cannot write"), ("link", "already exists. Name a new folder with --output")):
        with pytest.raises(JointspaceError, match=message):
            run_command("migrate", tmp_path / "old.npy", tmp_path / "new.npy", "--output", tmp_path / output)


def test_a_missing_file_is_not_taken_for_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="new.npy does not exist"):
        run_command("migrate", write(tmp_path / "old.npy", OLD), tmp_path / "new.npy")
