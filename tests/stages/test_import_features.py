"""import-features: other people's rows become the run's shards, every image with its own."""

import logging
from pathlib import Path

import numpy as np
import pytest
from made_up import by_hand, make_run, make_stage, open_run, write_config

from pipeline.errors import InputError, UsageError
from pipeline.images.networks import NetworkSpec, untrained
from pipeline.images.preprocess import Preprocessing
from pipeline.storage.features import Features
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import ENCODER, digest_tensors, write_parameters
from stages.photographs import open_photographs

COUNT = 24
THEIRS = {"name": "theirs", "kind": "imported", "path": "f.npy"}


def configure(made: Path, *more: dict, **entry: str) -> None:
    """Have the run an encoder `theirs`, whose files lie beside its folder."""
    write_config(made, {"data_root": str(made.parent), "encoders": [THEIRS | entry]}, *more)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run of 24 images in shards of 10."""
    configure(run := make_run(tmp_path / "run"))
    return run


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """Rows in reverse order: row of image i is [i, 2 i], named by its path elsewhere."""
    paths = Manifest(made / "manifest").images["path"].to_pylist()
    ids = np.arange(COUNT)[::-1]
    np.save(tmp_path / "f.npy", np.stack([ids, 2 * ids], axis=1).astype(np.float32))
    (tmp_path / "f.txt").write_text("".join(f"/elsewhere/{paths[i]}\n" for i in ids))
    return tmp_path / "f.npy"


def import_features(made: Path) -> Features:
    make_stage("import_features", made, "theirs")
    return Features(Manifest(made / "manifest"), made / "features")


def test_every_image_has_its_row(made: Path, source: Path) -> None:
    features = import_features(made)
    for number, ids in enumerate((range(0, 10), range(10, 20), range(20, 24))):
        shard = features.open("theirs", number)
        assert shard["image_id"].tolist() == list(ids) and shard["features"].dtype == np.float16
        assert shard["features"].tolist() == [[i, 2 * i] for i in ids]
        assert shard.details["encoder"]["name"] == "theirs"


def test_rows_of_no_image_are_told(made: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(source, np.concatenate([np.load(source), np.ones((5, 2), np.float32)]))
    names = source.with_suffix(".txt")
    names.write_text(names.read_text() + "".join(f"stranger-{i}.png\n" for i in range(5)))
    with caplog.at_level(logging.WARNING):
        features = import_features(made)
    assert "'stranger-2.png' and 2 more" in caplog.text
    assert features.open("theirs", 2).rows == 4


def rename(source: Path, old: str, new: str) -> None:
    names = source.with_suffix(".txt")
    names.write_text(names.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda source: rename(source, "dog-0.png", "dig-0.png"), r"have no row in f\.npy: dog-0\.png;"),
        (lambda source: rename(source, "cat-1.png", "dog-0.png"), r"\.npy: rows 22 and 23 have the same name"),
        (lambda source: put_nan(source, 0), r"f\.npy row 0: .*car-23\.png is not finite"),
        (lambda source: put_nan(source, 23), r"f\.npy row 23: .*dog-0\.png is not finite"),
    ],
    ids=["no row", "two vectors", "no number in the last shard", "no number in the first"],
)
def test_what_is_wrong_names_its_image_and_no_shard_is_written(made: Path, source: Path, spoil, message: str) -> None:
    spoil(source)
    with pytest.raises(InputError, match=message):
        import_features(made)
    assert not list((made / "features").rglob("*.h5"))
    with pytest.raises(UsageError, match="has no encoder strange; there are theirs"):
        make_stage("import_features", made, "strange")


def put_nan(source: Path, row: int) -> None:
    rows = np.load(source)
    rows[row, 0] = np.nan
    np.save(source, rows)


def test_the_encoder_that_made_them_is_kept_for_queries_if_it_makes_the_same(made: Path, source: Path) -> None:
    """A squeezenet stands for the other program's encoder; its features are given at another length, as some do."""
    maker = {"name": "maker", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 64, "crop": 64}
    configure(made, {"query_encoders": [maker]}, made_by="maker")
    network = untrained(NetworkSpec("squeezenet1_1", "average", Preprocessing(64, 64, (0, 0, 0), (1, 1, 1)), False), 3)
    settings = network.settings()
    folder = made / "encoders/maker"
    write_parameters(
        folder / "model.safetensors", ENCODER, network.tensors(), settings=settings, provenance=by_hand(made)
    )
    with pytest.raises(InputError, match="f.npy has 2 dimensions, the encoder maker 512; correct made_by of theirs"):
        make_stage("prepare_encoder", made, "theirs")
    images = [picture for picture, _ in open_photographs(open_run(made), list(range(COUNT)))]
    rows = np.concatenate([5 * network.encode([picture]) for picture in images])[::-1]
    np.save(source, rows)
    make_stage("prepare_encoder", made, "theirs")
    assert import_features(made).open("theirs", 0).commit.inputs["encoders/theirs/model.json"]
    assert digest_tensors(open_run(made).encoder("theirs").tensors) == digest_tensors(network.tensors())
    np.save(source, rows[:, ::-1])
    with pytest.raises(InputError, match=r"other features of .*\.png than the encoder maker makes \(their cosine is"):
        make_stage("prepare_encoder", made, "theirs")
