"""Tests of features that are mapped from the features of an older encoder, and of their replacement by `extract`."""

from pathlib import Path

import pytest
import yaml
from synthetic_colours import COLOURS, CONFIG, draw
from synthetic_run import build_bundle, ingest, make_stage, run_command

from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.run.layout import Layout
from pipeline.storage.commit import read_commit
from pipeline.storage.stored_index import StoredIndex, open_index
from stages.operations.run import RunFailure

OLD = CONFIG["encoders"][0]
"""The configuration of the encoder whose features exist."""
NEW = {**OLD, "name": "new", "architecture": "shufflenet_v2_x0_5"}
"""The configuration of the encoder whose features are mapped from the features of OLD."""
MAPPED = {"mapped": {"new": "eye"}, "mapping_images": 50}
"""Settings of `extract` by which 50 sampled images are extracted, and the features of all other images are mapped."""


def configure(run: Path, encoder: dict, **extract: object) -> None:
    """Write CONFIG with `encoder` as its only encoder as the configuration of the run. `extract` replaces settings of
    its section `extract`.
    """
    extract = {**CONFIG["extract"], **extract}
    (run / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "encoders": [encoder], "extract": extract}))


def build_index(run: Path) -> StoredIndex:
    """Fit the model `ncca` with the features of the configured encoder, embed the images, build the index of the model,
    and return the index.
    """
    for stage, *names in (("accumulate", "target"), ("fit", "ncca"), ("embed", "ncca")):
        make_stage(stage, run, *names)
    return open_index(build_bundle(run))


def test_mapped_features_are_searched_until_extract_replaces_them(tmp_path: Path) -> None:
    """A run gets mapped features for 14 images of a new encoder, and extracted features for a sample of 50 images. The
    index marks the images whose features are mapped. Later, `extract` replaces the mapped features, and they do not
    come back.
    """
    run = tmp_path / "colours"
    names = draw(run / "data", 64, 0)
    captions = (f"{name}\t0\ta {name.partition('-')[0]} picture\n" for name in names)
    (run / "data/captions.tsv").write_text("".join(captions))
    configure(run, OLD)
    ingest(run, run / "data")
    for stage in ("prepare_encoder", "extract", "encode_sentences"):
        make_stage(stage, run)

    configure(run, NEW, **MAPPED)
    for stage in ("prepare_encoder", "fit_map", "map_features"):
        make_stage(stage, run)
    bundle = build_index(run)
    origins = bundle.table("images")["mapped_from"].to_pylist()
    assert (origins.count("eye"), origins.count(None)) == (14, 50)
    for colour in COLOURS:
        hits = Searcher(bundle).images(f"a {colour} picture", 12)
        assert {hit.row["path"].partition("-")[0] for hit in hits} == {colour}
    commits = [run / f"features/new/shard-{number:05d}.h5.json" for number in range(4)]
    details = read_commit(commits[0]).details
    assert (
        details["mapped"]["from"] == "eye" and details["mapped"]["images"] == 50 and 0 < details["mapped"]["loss"] < 1
    )

    configure(run, NEW)
    make_stage("extract", run)
    assert [read_commit(commit).made_by["stage"] for commit in commits] == ["extract"] * 4
    times = [commit.stat().st_mtime_ns for commit in commits]
    configure(run, NEW, **MAPPED)
    make_stage("map_features", run)  # This must keep the extracted features.
    assert [commit.stat().st_mtime_ns for commit in commits] == times
    assert "mapped_from" not in build_index(run).table("images").column_names


@pytest.mark.parametrize(
    ("old", "new", "named"), [("eye", "new", "no features of the encoder eye"), ("eye", "other", "Add this encoder to")]
)
def test_migrate_names_the_missing_encoder_or_features(tmp_path: Path, old: str, new: str, named: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "encoders": [NEW], "results_root": str(tmp_path)}))
    with pytest.raises(UsageError, match=named):
        run_command("migrate", old, new, config)


def test_a_run_is_migrated_without_files(tmp_path: Path) -> None:
    """The names of encoders have a dot, but are not taken for names of missing files."""
    config = tmp_path / "config.yaml"
    encoders = [{**NEW, "name": "new.v2"}]
    config.write_text(yaml.safe_dump({**CONFIG, "encoders": encoders, "results_root": str(tmp_path), "name": "mine"}))
    with pytest.raises(UsageError, match="has no features of the encoder eye.v1"):
        run_command("migrate", "eye.v1", "new.v2", config)
    with pytest.raises(UsageError, match="--texts and --output are only for files of vectors"):
        run_command("migrate", "eye.v1", "new.v2", config, "--output", tmp_path / "out")


def test_an_interrupted_migration_says_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stages.operations.run._watch", interrupt)
    monkeypatch.setattr("pipeline.run.reading.requirements.require_all", lambda *arguments: None)
    config = tmp_path / "config.yaml"
    places = {"data_root": str(tmp_path / "photos"), "results_root": str(tmp_path), "name": "mine"}
    (tmp_path / "photos").mkdir()
    config.write_text(yaml.safe_dump({**CONFIG, **places, "encoders": [NEW]}))
    features = Layout(tmp_path / "mine").features("eye").part_record(0)
    features.parent.mkdir(parents=True)
    features.touch()
    with pytest.raises(RunFailure, match="The same command continues the run") as failure:
        run_command("migrate", "eye", "new", config)
    assert failure.value.exit_code == 130


def test_an_encoder_that_cannot_encode_photos_is_not_called_missing(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    precomputed = {"name": "vectors", "kind": "imported", "path": "vectors.npy"}
    config.write_text(yaml.safe_dump({**CONFIG, "encoders": [OLD, precomputed], "results_root": str(tmp_path)}))
    with pytest.raises(
        UsageError, match="vectors cannot encode a sample of the photos, because its features are precomputed"
    ):
        run_command("migrate", OLD["name"], "vectors", config)
