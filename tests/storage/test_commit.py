"""Commit records: a written record is read back, and each kind of fault is recognised."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.storage import commit as commits_module
from pipeline.storage.commit import (
    CARRIED,
    Commits,
    Provenance,
    carry,
    combine_digests,
    commit_path,
    describe_file,
    open_commit,
    publish,
    publish_record,
    read_commit,
    read_verified,
    remove_artefact,
    remove_from,
)
from pipeline.storage.json_files import publish_json


def provenance_of(run: Path, stage: str, **inputs: str) -> Provenance:
    return Provenance(run, stage, 1, {"seed": 3}, inputs)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run with the commit records of a manifest, an encoder, two shards of its features, a model that was made
    from both shards, and a shard of embeddings by the model. Return the folder of the run."""
    run = tmp_path / "run"
    publish_record(
        run / "manifest/manifest.json", {"shards": 2, "fingerprint": "m"}, provenance=provenance_of(run, "ingest")
    )
    encoder = publish(
        run / "encoders/e/model.safetensors", b"weights", kind="encoder", rows=1, provenance=provenance_of(run, "e")
    )
    shards = [
        publish(
            run / f"features/e/shard-{number:05d}.h5", b"features" * 9 + bytes([number]), kind="features", rows=9,
            provenance=provenance_of(run, "extract", **{encoder.place: encoder.digest}),
        )
        for number in range(2)
    ]  # fmt: skip
    made_of = {"features/e/shard-*.h5.json": combine_digests(shard.digest for shard in shards)}
    made_of["manifest/manifest.json#fingerprint"] = "m"
    model = publish(
        run / "models/m/model.safetensors",
        b"a model",
        kind="model",
        rows=1,
        provenance=provenance_of(run, "fit", **made_of),
    )
    made_by = provenance_of(run, "embed", **{model.place: model.digest})
    publish(run / "embeddings/m/shard-00000.h5", b"e", kind="embeddings", rows=1, provenance=made_by)
    return run


ARTEFACTS = [
    "manifest/manifest.json", "encoders/e/model.json", "features/e/shard-00000.h5.json",
    "features/e/shard-00001.h5.json", "models/m/model.json", "embeddings/m/shard-00000.h5.json",
]  # fmt: skip


def reasons(run: Path, hashed: bool = True) -> dict[str, str]:
    """Return faulty file -> the first word of the reason, such as `changed`, for all ARTEFACTS of the run.

    The files are named by their paths below the run. Artefacts without a readable commit record are left out.
    """
    found = {}
    for place in ARTEFACTS:
        try:
            faults = list(Commits(run).faults(place, hashed))
        except IntegrityError:
            continue
        found |= {fault.path.relative_to(run).as_posix(): fault.reason.partition(":")[0] for fault in faults}
    return found


def test_an_intact_run_has_no_faults_and_commit_records_name_their_paths(run: Path) -> None:
    assert reasons(run) == {}
    commit = open_commit(run / "models/m/model.safetensors", "model")
    assert (commit.place, commit.root, commit.bytes) == ("models/m/model.json", run, 7)
    assert commit.made_by == {"stage": "fit", "version": 1, "keys": {"seed": 3}}
    shutil.copytree(run, run.with_name("elsewhere"))
    assert reasons(run.with_name("elsewhere")) == {}


def truncate(run: Path) -> None:
    os.truncate(run / "features/e/shard-00000.h5", 5)


def flip(run: Path) -> None:
    (run / "features/e/shard-00000.h5").write_bytes(b"Features" * 9 + b"\0")


def delete(run: Path) -> None:
    (run / "features/e/shard-00000.h5").unlink()


def move(run: Path) -> None:
    for end in ("h5", "h5.json"):
        shutil.copy(run / f"features/e/shard-00000.{end}", run / f"features/e/shard-00001.{end}")


def remake_encoder(run: Path) -> None:
    publish(
        run / "encoders/e/model.safetensors", b"others!", kind="encoder", rows=1, provenance=provenance_of(run, "e")
    )


def lose_an_input(run: Path) -> None:
    remove_artefact(run / "features/e/shard-00001.h5.json")


@pytest.mark.parametrize(
    ("disturb", "found"),
    [
        (truncate, {"features/e/shard-00000.h5": "truncated"}),
        (flip, {"features/e/shard-00000.h5": "changed"}),
        (delete, {"features/e/shard-00000.h5": "missing"}),
        (move, {"features/e/shard-00001.h5.json": "misplaced", "models/m/model.json": "mixed"}),
        (remake_encoder, dict.fromkeys(ARTEFACTS[2:4], "mixed")),
        (lose_an_input, {"features/e/shard-00001.h5.json": "missing"}),
    ],
)
def test_each_kind_of_fault_is_recognised(disturb: Callable, found: dict[str, str], run: Path) -> None:
    disturb(run)
    assert reasons(run) == found
    if disturb is flip:
        assert reasons(run, hashed=False) == {}


def test_job_refuses_an_input_whose_own_inputs_are_out_of_date(run: Path) -> None:
    """The encoder was made again, so the features, from which the model was made, are out of date. The embeddings have
    no fault of their own, because the model, their direct input, has not changed."""
    remake_encoder(run)
    assert not list(Commits(run).faults("embeddings/m/shard-00000.h5.json"))
    with pytest.raises(IntegrityError, match=r"models/m/model\.json is mixed"):
        Commits(run).require("models/m/model.json")


SOURCES = ["encoders/e/model.json", "features/e/shard-*.h5.json", "models/m/model.json", ARTEFACTS[-1]]


def answers_or_errors(ask: Callable[[str], object], names: Iterable[str]) -> dict[str, str]:
    """Call `ask` with each name. Return name -> the answer as text, or "refused: " and the message of the error."""
    found = {}
    for name in names:
        try:
            found[name] = str(ask(name))
        except IntegrityError as error:
            found[name] = f"refused: {error}"
    return found


@pytest.mark.parametrize("disturb", [truncate, delete, remake_encoder, lose_an_input])
def test_validity_does_not_depend_on_earlier_questions(disturb: Callable, run: Path) -> None:
    disturb(run)
    required = {}
    faults = {}
    for source in SOURCES:
        required |= answers_or_errors(Commits(run).require, [source])
    for place in ARTEFACTS:
        faults |= answers_or_errors(lambda place: list(Commits(run).faults(place)), [place])
    assert required[SOURCES[1]].startswith("refused")
    for order in itertools.permutations(SOURCES):
        commits = Commits(run)
        assert answers_or_errors(commits.require, order) == required
        assert answers_or_errors(lambda place, commits=commits: list(commits.faults(place)), ARTEFACTS) == faults
        assert answers_or_errors(commits.require, order) == required


def test_shards_that_differ_from_the_record_of_their_chunk_are_refused(run: Path) -> None:
    """A job that was killed has made one of the shards again from the same inputs. The commit record of the part was
    not written again, and lists the old shard, so the shards are refused as an input."""
    path = run / "features/e/shard-00000.h5"
    shards = "features/e/shard-*.h5.json"
    files = {f"{path.name}.json": describe_file(commit_path(path))}
    publish_record(
        run / "features/e/part-00000.json", {"name": "e"}, provenance=provenance_of(run, "extract"), files=files
    )
    assert Commits(run).require(shards)
    made_of = provenance_of(run, "extract", **read_commit(commit_path(path)).inputs)
    publish(path, b"anew", kind="features", rows=9, provenance=made_of)
    with pytest.raises(IntegrityError, match=r"shard-00000\.h5\.json is (changed|truncated)"):
        Commits(run).require(shards)


def test_a_chunk_compares_the_commit_records_of_its_shards_by_hash(run: Path) -> None:
    """The shard was made again with other bytes, but the commit record of the part still lists the old commit record of
    the shard. The old and the new commit record of the shard are equally long, but their hashes differ, so the shards
    are refused as an input."""
    path = run / "features/e/shard-00001.h5"
    shards = "features/e/shard-*.h5.json"
    commit = commit_path(path)
    files = {commit.name: describe_file(commit)}
    made_of = provenance_of(run, "extract", **read_commit(commit).inputs)
    publish_record(
        run / "features/e/part-00000.json", {"name": "e"}, provenance=provenance_of(run, "extract"), files=files
    )
    publish(path, b"Features" * 9 + b"\1", kind="features", rows=9, provenance=made_of)
    assert commit.stat().st_size == files[commit.name]["bytes"]
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5\.json is changed: its content is not"):
        Commits(run).require(shards)


@pytest.mark.parametrize("key", ["place", "digest", "inputs", "files", "check"])
def test_a_commit_record_that_lacks_a_key_or_was_edited_is_refused(key: str, run: Path) -> None:
    path = run / "models/m/model.json"
    path.write_text(path.read_text().replace(f'"{key}"', '"other"'))
    with pytest.raises(IntegrityError, match=r"models/m/model\.json"):
        read_commit(path)


@pytest.mark.parametrize(
    ("change", "done"),
    [
        ({}, True),
        ({"version": 2}, False),
        ({"keys": {"seed": 4}}, False),
        ({"inputs": {"manifest/manifest.json#fingerprint": "n"}}, False),
        ({"inputs": {}}, False),
    ],
)
def test_job_is_done_if_its_version_keys_and_inputs_are_current(change: dict, done: bool, run: Path) -> None:
    path = run / "models/m/model.json"
    about = {"version": 1, "keys": {"seed": 3}, "inputs": read_commit(path).inputs, **change}
    assert Commits(run).is_done(path, Provenance(run, "fit", **about)) is done
    os.truncate(run / "models/m/model.safetensors", 2)
    assert not Commits(run).is_done(path, Provenance(run, "fit", **about))


def test_a_card_keeps_its_commit_record_until_another_index_is_made_from_it(tmp_path: Path) -> None:
    path = tmp_path / "run/index/m/card.json"
    digest = "5" * 64
    carried = carry(provenance_of(tmp_path / "run", "build-index", model="d"), path, digest)
    assert carried["digest"] == digest and "files" not in carried
    card = {"model": "m", "files": {"images.faiss": {"bytes": 1, "sha256": "0" * 64}}, CARRIED: carried}
    publish_json(path, {**card, "fingerprint": digest})
    commit = read_commit(path)
    assert (commit.digest, commit.place, commit.files) == (digest, "index/m/card.json", card["files"])
    assert (commit.inputs, commit.made_by["stage"]) == ({"model": "d"}, "build-index")
    publish_json(path, {**card, "fingerprint": "6" * 64})
    with pytest.raises(
        IntegrityError, match="was changed by `remove`, `add` or `calibrate` after the run had built it"
    ):
        read_commit(path)


def test_fingerprint_of_unfinished_work_depends_on_everything_but_its_folder(tmp_path: Path) -> None:
    about = {"stage": "extract", "version": 2, "keys": {"size": 3}, "inputs": {"encoder": "d"}}
    others = {"stage": "regions", "version": 3, "keys": {"size": 4}, "inputs": {"encoder": "e"}}
    prints = [Provenance(tmp_path, **about).fingerprint]
    prints += [Provenance(tmp_path, **{**about, name: other}).fingerprint for name, other in others.items()]
    assert len(set(prints)) == 5 and Provenance(tmp_path / "moved", **about).fingerprint == prints[0]


def test_bytes_that_are_replaced_after_their_check_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced after `read_verified` has read its commit record, which does not describe the new bytes."""
    path = run / "models/m/model.safetensors"
    check = commits_module.open_commit

    def check_and_replace(*given: object, **named: object) -> object:
        commit = check(*given, **named)
        publish(path, b"another", kind="model", rows=2, provenance=provenance_of(run, "fit"))
        return commit

    assert read_verified(path, "model")[0] == b"a model"
    monkeypatch.setattr(commits_module, "open_commit", check_and_replace)
    with pytest.raises(IntegrityError, match=r"model\.safetensors was replaced while it was read\. Run the same"):
        read_verified(path, "model")


def test_only_files_that_match_their_commit_record_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    for number in range(5):
        publish(folder / f"shard-{number:05d}.h5", b"x", kind="k", rows=1)
    (folder / "shard-00003.h5").write_bytes(b"a person's own")
    (folder / "shard-00009.h5").write_bytes(b"another")
    outside = publish(tmp_path / "outside/shard-00004.h5", b"x", kind="k", rows=1)
    (folder / "shard-00004.h5").unlink()
    (folder / "shard-00004.h5").symlink_to(outside.path.with_suffix(""))
    remove_from(2, lambda number: folder / f"shard-{number:05d}.h5.json")
    kept = {f"shard-0000{number}.h5{end}" for number in (0, 1) for end in ("", ".json")}
    assert {path.name for path in folder.iterdir()} == kept | {f"shard-0000{number}.h5" for number in (3, 4, 9)}
    assert outside.path.with_suffix("").read_bytes() == b"x"


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    publish_record(tmp_path / "x.json", {}, files={"../secret": {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(IntegrityError, match="not a plain relative name"):
        read_commit(tmp_path / "x.json")
