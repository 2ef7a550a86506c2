"""import-features by hand: other people's rows become the run's shards, every image with its own."""

import logging
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, make_stage, write_config

from pipeline.errors import InputError, UsageError
from pipeline.storage.gather import Features
from pipeline.storage.manifest import Manifest

COUNT = 24


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run of 24 images in shards of 10."""
    return make_run(tmp_path / "run")


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """Rows in reverse order: row of image i is [i, 2 i], named by its path elsewhere."""
    paths = Manifest(made / "manifest").images["path"].to_pylist()
    ids = np.arange(COUNT)[::-1]
    np.save(tmp_path / "f.npy", np.stack([ids, 2 * ids], axis=1).astype(np.float32))
    (tmp_path / "f.txt").write_text("".join(f"/elsewhere/{paths[i]}\n" for i in ids))
    return tmp_path / "f.npy"


def import_features(made: Path, source: Path, *more: object) -> Features:
    make_stage("import_features", made, "theirs", "--from", source, *more)
    return Features(Manifest(made / "manifest"), made / "features")


def test_every_image_has_its_row(made: Path, source: Path) -> None:
    features = import_features(made, source)
    for number, ids in enumerate((range(0, 10), range(10, 20), range(20, 24))):
        shard = features.open("theirs", number)
        assert shard["image_id"].tolist() == list(ids) and shard["features"].dtype == np.float16
        assert shard["features"].tolist() == [[i, 2 * i] for i in ids]
        assert shard.details["encoder"]["name"] == "theirs"


def test_again_nothing_is_written_but_of_other_features(made: Path, source: Path) -> None:
    first = import_features(made, source).open("theirs", 0)
    stamp = first.path.stat().st_mtime_ns
    import_features(made, source)
    assert first.path.stat().st_mtime_ns == stamp
    np.save(source, np.load(source) + 1)
    assert import_features(made, source).open("theirs", 0).fingerprint != first.fingerprint


def test_storage_is_that_of_the_configuration(made: Path, source: Path) -> None:
    write_config(made, {"extract": {"storage": "float32"}})
    np.save(source, np.load(source) * 1e5)
    assert import_features(made, source).open("theirs", 0)["features"].dtype == np.float32
    write_config(made)
    with pytest.raises(InputError, match=r"the features of .*-1\.png do not fit float16"):
        import_features(made, source)


def test_rows_of_no_image_are_told(made: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(source, np.concatenate([np.load(source), np.ones((5, 2), np.float32)]))
    names = source.with_suffix(".txt")
    names.write_text(names.read_text() + "".join(f"stranger-{i}.png\n" for i in range(5)))
    with caplog.at_level(logging.WARNING):
        features = import_features(made, source)
    assert "5 rows match no image: stranger-0.png, stranger-1.png, stranger-2.png and 2 more" in caplog.text
    assert features.open("theirs", 2).rows == 4


def test_an_image_without_a_row_is_named(made: Path, source: Path) -> None:
    names = source.with_suffix(".txt")
    names.write_text(names.read_text().replace("dog-0.png", "dig-0.png").replace("bird-2.png", "bard-2.png"))
    with pytest.raises(InputError, match=r"2 images have no row in .*f\.npy: dog-0\.png, bird-2\.png; add them"):
        import_features(made, source)
    assert not (made / "features").exists()
    with pytest.raises(UsageError, match="../theirs is a path; give the name of an encoder"):
        make_stage("import_features", made, "../theirs", "--from", source)


def test_a_row_that_is_no_number_names_its_image(made: Path, source: Path) -> None:
    rows = np.load(source)
    rows[COUNT - 1 - 12, 0] = np.nan
    np.save(source, rows)
    with pytest.raises(InputError, match=r"the features of boat-12\.png do not fit float16 \(the largest is nan\)"):
        import_features(made, source)
