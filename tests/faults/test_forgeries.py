"""Forged runs: every reader refuses them in one sentence that names the file, exit code 1, and `verify` finds them."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest
import tiny_run
import yaml
from disks import files_of
from forgeries import ODD, Forgery, of_another_run, put, renamed, repeated, replaced, told, with_value, without

from pipeline.errors import IntegrityError, JointspaceError
from pipeline.storage import atomic, reading
from pipeline.storage.atomic import read_json
from pipeline.storage.integrity import examine
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.rows import TokenRows


@pytest.fixture(scope="module")
def other(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same images and sentences whose encoder `colour` sees other things."""
    root = tiny_run.copy_collection(collection, tmp_path_factory.mktemp("other") / "data")
    features = np.load(root / "features.npy")
    np.save(root / "features.npy", np.roll(features, 1, axis=1) ** 2)
    run = root.parent / "run"
    path, settings = run / "encoders/colour/model.safetensors", dict(tiny_run.SETTINGS)
    tensors = {"nothing": np.ones(64, np.float32)}
    write_parameters(path, ENCODER, tensors, settings=settings, fingerprint="other", details={"name": "colour"})
    for name, (calls, _) in tiny_run.stages(root, run).items():
        tiny_run.call_all(name, calls)
    return run


class Reader(NamedTuple):
    """A call of a command, number `call` of the tiny run's, with `changes` of places; an --output goes elsewhere."""

    stage: str
    call: int = 0
    changes: tuple[tuple[str, str], ...] = ()

    def __call__(self, root: Path, run: Path) -> None:
        calls = {name: calls for name, (calls, _) in tiny_run.stages(root, run).items()}
        calls["report"] = [["--run", str(run), "--config", str(root / "config.yaml")]]
        arguments = list(calls[self.stage][self.call])
        if "--output" in arguments:
            # Elsewhere, and under a name that says nothing: what is there already would not be made again.
            arguments[arguments.index("--output") + 1] = str(run.parent / "out" / "x.out")
        for old, new in self.changes:
            places = {str(run / old): str(run / new), Path(old).name: Path(new).name}
            arguments = [places.get(argument, argument) for argument in arguments]
        atomic._checked.clear()
        with _knowing_both(run, arguments) if self.changes else nullcontext():
            tiny_run.call(self.stage, arguments)


@contextmanager
def _knowing_both(run: Path, arguments: list[str]) -> Iterator[None]:
    """The run has the models `ncca` and `cca` for as long as the block, by its own configuration."""
    path, at = run / "config.yaml", arguments.index("--config")
    del arguments[at : at + 2]
    before = path.read_bytes()
    path.write_text(yaml.safe_dump({**tiny_run.CONFIG, "models": ["ncca", "cca"]}))
    try:
        yield
    finally:
        path.write_bytes(before)


FIT, INDEX, EVALUATE, SUMMARISE = Reader("fit"), Reader("build_index"), Reader("evaluate"), Reader("summarise")
SECOND = {name: Reader(name, 1) for name in ("accumulate", "embed", "encode_sentences", "encode_documents")}
EVALUATION = "evaluation/ncca.test.all-sentences.json"
TEXTS = "text/encoders/tfidf/model.json"
SHARD, SIDECAR = "features/colour/shard-00001.h5", "features/colour/shard-00001.h5.json"

CASES: dict[str, tuple[Forgery, list[Reader]]] = {
    # Shard 0 in the place of shard 1.
    "repeated features": (repeated("features/colour/shard-{}.h5"), [SECOND["accumulate"], SECOND["embed"], FIT]),
    "repeated texts": (repeated("text/tfidf/shard-{}.h5"), [SECOND["accumulate"], SECOND["embed"], FIT]),
    "repeated moments": (repeated("moments/target/shard-{}.h5"), [FIT]),
    "repeated embeddings": (repeated("embeddings/ncca/shard-{}.h5"), [EVALUATE, INDEX, Reader("report")]),
    "repeated shard of the manifest": (
        repeated("manifest/shards/{}.json"), [*SECOND.values(), FIT, EVALUATE, INDEX],
    ),
    # What another run has made, whole and under the same name.
    "another encoder": (of_another_run("encoders/colour"), [INDEX]),
    "another encoder's features": (of_another_run("features/colour"), [FIT, SECOND["embed"]]),
    "one shard of another encoder's features": (of_another_run(SHARD), [FIT, SECOND["embed"]]),
    "another run's moments": (of_another_run("moments/target"), [FIT]),
    "one shard of another run's moments": (of_another_run("moments/target/shard-00001.h5"), [FIT]),
    "another run's model": (of_another_run("models/ncca"), [SECOND["embed"], INDEX]),
    "another run's embeddings": (of_another_run("embeddings/ncca"), [INDEX, Reader("report")]),
    "one shard of another run's embeddings": (
        of_another_run("embeddings/ncca/shard-00001.h5"), [EVALUATE, INDEX, Reader("report")],
    ),
    "another run's summary": (of_another_run("evaluation/summary.json"), [Reader("report")]),
    # Under another name.
    "embeddings of another name": (
        renamed("embeddings/ncca", "embeddings/cca"), [Reader("evaluate", 0, (("embeddings/ncca", "embeddings/cca"),))],
    ),
    "a model of another name": (
        renamed("models/ncca", "models/cca"), [Reader("embed", 1, (("models/ncca", "models/cca"),))],
    ),
    "an evaluation of another model": (told(EVALUATION, with_value("cca", "model")), [SUMMARISE]),
    "an evaluation of another split": (told(EVALUATION, with_value("dev", "split")), [SUMMARISE]),
    "an evaluation of another protocol": (told(EVALUATION, with_value("first-sentence", "protocol")), [SUMMARISE]),
    # Records that were made up.
    "features that name no encoder": (told(SIDECAR, without("details", "inputs", "encoder")), [SECOND["embed"]]),
    "features of no images": (told(SIDECAR, without("details", "inputs", "images")), [SECOND["accumulate"], FIT]),
    "features without a fingerprint": (told(SIDECAR, with_value(3, "fingerprint")), [SECOND["accumulate"], FIT]),
    "inputs that are a list": (told(SIDECAR, with_value([], "details", "inputs")), [SECOND["accumulate"], FIT]),
    "a negative number of rows": (told(SIDECAR, with_value(-1, "rows")), [SECOND["accumulate"], FIT]),
    "a sidecar that is a list": (told(SIDECAR, lambda value: ["a"]), [SECOND["accumulate"], FIT]),
    "moments of other pairs": (
        told("moments/target/shard-00001.h5.json", with_value("dev", "details", "pairs")), [FIT],
    ),
    "moments of no encoder": (told("moments/target/shard-00001.h5.json", without("details", "encoders")), [FIT]),
    "a model of no encoder": (told("models/ncca/model.json", without("details", "encoders")), [SECOND["embed"], INDEX]),
    "a model of no text encoder": (
        told("models/ncca/model.json", without("details", "text_encoders")), [SECOND["embed"]],
    ),
    "a text encoder that is a list": (told(TEXTS, lambda value: ["a"]), [SECOND["encode_sentences"], INDEX]),
    "a text encoder of too long terms": (
        told(TEXTS, with_value(10**9, "details", "settings", "settings", "max_ngram")), [SECOND["encode_sentences"]],
    ),
    "a text encoder without weights": (
        told(TEXTS, with_value([], "details", "settings", "idf")),
        [SECOND["encode_sentences"], SECOND["encode_documents"]],
    ),
    "vectors that name no text encoder": (
        told("text/tfidf/shard-00001.h5.json", without("details", "inputs", "text_encoder")), [SECOND["embed"]],
    ),
    "vectors of another text encoder": (
        told("text/tfidf/shard-00001.h5.json", with_value("x", "details", "encoder", "name")), [SECOND["embed"], FIT],
    ),
    "a manifest of empty shards": (told("manifest/manifest.json", with_value(0, "shard_size")), [FIT, EVALUATE, INDEX]),
    "a manifest of more shards": (told("manifest/manifest.json", with_value(9, "shards")), [FIT, EVALUATE, INDEX]),
    "a manifest's shard without sentences": (
        told("manifest/shards/00001.json", without("sentences")), [SECOND["accumulate"], FIT],
    ),
    "an evaluation without recall": (
        told(EVALUATION, without("image_to_sentence", "recall@1")), [SUMMARISE],
    ),
    "an evaluation that is a list": (told(EVALUATION, lambda value: ["a"]), [SUMMARISE]),
    "half a summary": (
        told("evaluation/summary.json.json", with_value(0, "bytes")), [Reader("report")],
    ),
}  # fmt: skip
NOT_FOUND = {
    "vectors that name no text encoder",
    "features that name no encoder", "features of no images", "moments of no encoder",
    "a model of no encoder", "a model of no text encoder", "a text encoder of too long terms",
    "a text encoder without weights", "an evaluation without recall",
}  # fmt: skip
"""What `verify` does not look for: records that are whole and say less than their readers need."""


def require_refused(read: Callable[[], None], name: str, run: Path) -> None:
    """The error is ours, of one sentence, and names the file, or the folder of the artefact that it is of."""
    with pytest.raises(IntegrityError) as caught:
        read()
    said, parts = str(caught.value), (name, name.removesuffix(".json"), str(Path(name).parent))
    assert caught.value.exit_code == 1 and "\n" not in said
    assert any(str(run / part) in said for part in parts), said


@pytest.mark.parametrize("case", CASES)
def test_every_reader_refuses_a_forgery_by_name(case: str, collection: Path, run: Path, other: Path) -> None:
    forge, readers = CASES[case]
    name = forge(run, other)
    forged = {path: path.read_bytes() for path in files_of(run).values()}
    for reader in readers:
        require_refused(lambda reader=reader: reader(collection, run), name, run)
    assert not (run.parent / "out").exists()
    assert {path: path.read_bytes() for path in files_of(run).values()} == forged
    assert bool(examine(run).faults) != (case in NOT_FOUND)


def test_the_readers_read_a_sound_run(collection: Path, run: Path) -> None:
    for reader in {reader for _, readers in CASES.values() for reader in readers if not reader.changes}:
        reader(collection, run)
        shutil.rmtree(run.parent / "out", ignore_errors=True)


def test_tokens_of_another_shard_are_refused(run: Path, other: Path) -> None:
    name = repeated("text/tokens/shard-{}.h5")(run, other)
    require_refused(lambda: TokenRows(Manifest(run / "manifest"), run / "text/tokens"), name, run)


FILES = {
    "features/colour/shard-00001.h5": SECOND["accumulate"],
    "features/colour/shard-00001.h5.json": SECOND["accumulate"],
    "moments/target/shard-00002.h5.json": FIT,
    "models/ncca/model.safetensors": SECOND["embed"],
    TEXTS: SECOND["encode_sentences"],
    "manifest/manifest.json": FIT,
    "manifest/shards/00001.images.parquet": EVALUATE,
    "manifest/shards/00001.json": SECOND["accumulate"],
    EVALUATION: SUMMARISE,
    "evaluation/summary.json": Reader("report"),
    "index/ncca/card.json": Reader("report"),
    "index/ncca/model.json": Reader("report"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_refused_at_once(name: str, odd: str, collection: Path, run: Path, other: Path) -> None:
    replaced(name, ODD[odd])(run, other)
    assert odd not in ("pipe", "loop") or any(fault.path == run / name for fault in examine(run).faults)
    with pytest.raises((JointspaceError, click.BadParameter)) as caught:  # click looks for folders, too
        FILES[name](collection, run)
    # Where a file stands in the place of text/, nothing can be written there either.
    assert isinstance(caught.value, IntegrityError | click.BadParameter) or (
        odd == "parent is a file" and str(caught.value).startswith(f"cannot write {(run / name).parent}")
    )
    assert "\n" not in str(caught.value) and str(run / Path(name).parent) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_what_may_not_be_read_is_refused(
    name: str, collection: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user than root: the operating system's answer is made up for one file."""
    opened = os.open

    def forbidden(path: str, *more: int, **given: object) -> int:
        if str(path) == str(run / name):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **given)

    monkeypatch.setattr(reading.os, "open", forbidden)
    with pytest.raises(JointspaceError, match="permission denied.*; allow this user to read it"):
        FILES[name](collection, run)


def test_an_older_version_s_shard_is_refused_with_the_remedy(collection: Path, run: Path, other: Path) -> None:
    """Before shards said which they are."""
    name = told(SIDECAR, without("details", "shard"))(run, other)
    with pytest.raises(IntegrityError, match="does not say which shard it is: an earlier version wrote it; run its st"):
        SECOND["accumulate"](collection, run)
    assert any(name.removesuffix(".json") in str(fault.path) for fault in examine(run).faults)


def test_swapped_folders_are_found_and_refused(run: Path, collection: Path) -> None:
    put(run / "embeddings/ncca", run / "embeddings/cca")
    put(run / "index/ncca", run / "index/cca")
    found = {fault.path.relative_to(run).as_posix(): fault.reason for fault in examine(run).faults}
    assert found["embeddings/cca/shard-00000.h5"].startswith("misplaced: it is of model ncca, not of cca")
    assert "index/cca/card.json" not in found  # a bundle may have any name but that of another model
    put(run / "models/ncca", run / "models/cca")
    found = {fault.path.relative_to(run).as_posix() for fault in examine(run).faults}
    assert {"index/cca/card.json", "models/cca/model.safetensors"} <= found


def test_an_index_has_the_encoders_of_its_model(run: Path) -> None:
    card = read_json(run / "index/ncca/card.json")
    model = read_json(run / "index/ncca/model.json")["details"]
    assert model["encoders"] == {"colour": {"encoder": "encoder"}}
    assert card["inputs"]["encoders/colour"] == "encoder" and list(card["encoders"]) == ["colour"]


def test_features_made_elsewhere_have_no_encoder_unless_one_is_named(collection: Path, run: Path) -> None:
    """Without made_by the index carries none, and what it cannot do is said."""
    from pipeline.errors import UsageError
    from pipeline.index.search import Searcher
    from pipeline.storage.bundle import Bundle

    calls, path = tiny_run.stages(collection, run), collection / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["encoders"][0]["made_by"] = None
    (own := run / "own.yaml").write_text(yaml.safe_dump(values))
    for name in ("import_features", "accumulate", "fit", "embed", "build_index"):
        tiny_run.call_all(name, [[str(own) if one == str(path) else one for one in call] for call in calls[name][0]])
    bundle = Bundle(run / "index/ncca")
    assert bundle.card["encoders"] == {}
    assert Searcher(bundle).images("a dog", 1)
    with pytest.raises(UsageError, match="has no encoder colour, whose features were imported"):
        Searcher(bundle).sentences({}, 1)
