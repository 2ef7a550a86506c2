"""Tests which show that configurations, runs, commands and options in the spelling of the previous version still work,
with a warning that has the new spelling.
"""

import logging
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from synthetic_run import make_stage

import jointspace
from pipeline.config.loading import load, read_mapping, validate
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import EncoderParts
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import IntegrityError, UsageError
from pipeline.run.jobs import Jobs
from pipeline.run.run import Run
from pipeline.storage.commit import read_commit
from pipeline.storage.texts import VectorShard
from stages.catalogue import declared
from stages.cli import cli, stage
from stages.commands import replace_former_options

FORMER = Path(__file__).parent / "former"
NEW = """
name: former
text: {size: 90, unit_length: false}
encoders:
  - {name: net, architecture: alexnet, layer: fc7}
  - {name: plain, kind: standard, resize: 64, crop: null, patch: 8, codebook: 5}
  - {name: also, kind: standard, images: 50}
  - {name: pool, kind: pooled, of: boxes, pooling: max}
  - {name: boxes, architecture: resnet18, weights: finetuned}
  - {name: given, kind: imported, path: f.npy, features: v}
  - {name: lib, kind: timm, architecture: resnet18}
  - {name: clip, kind: open_clip, architecture: ViT-B-32, weights: openai}
  - {name: dino, kind: transformers, architecture: dino}
regions: {encoders: [boxes]}
text_encoders:
  - {name: tfidf, kind: tf-idf, normalise: [], max_ngram: 1, size: 90, unit_length: true}
  - {name: bare, kind: tf-idf, size: 90, unit_length: false}
  - {name: glove, kind: averaged, weight: 2, source: file, file: words.txt, idf: false}
  - {name: fisher, kind: fisher, components: 4}
  - {name: bert, kind: transformers, architecture: bert}
  - {name: mini, kind: sentence-transformers, architecture: mini}
  - {name: clips, kind: open_clip, architecture: ViT-B-32, weights: openai}
  - {name: theirs, kind: imported, path: s.npy, made_by: maker}
query_text_encoders:
  - {name: maker, kind: averaged, source: corpus}
study:
  encoders: [{name: studied, kind: standard}]
"""
"""The content of tests/former/encoders.yaml in the spelling of this version."""


def test_former_key_of_the_papers_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    new = {"reproduce": {"papers": ["gong"]}}
    former = {"reproduce": {"papers": ["gong"], "in_place_of": {"mobilenet_v2": "vgg19 fc7"}}}
    assert validate(former) == validate(new)
    assert "reproduce: the next release will not accept this spelling. Write {papers: [gong]} instead" in caplog.text


def test_entries_of_every_kind_mean_what_the_new_spelling_means(caplog: pytest.LogCaptureFixture) -> None:
    new = validate(yaml.safe_load(NEW))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        former = load(FORMER / "encoders.yaml")
    assert former == new
    warned = [record.getMessage() for record in caplog.records]
    texts = {"tfidf", "glove", "fisher", "bert", "mini", "clips", "theirs", "maker"}
    nested = {"plain", "also", "pool", "studied", *texts}
    values = read_mapping(FORMER / "encoders.yaml")
    replaced = set()
    for line in warned:
        key, written = re.fullmatch(r"(\S+): .*Write ({.*}) instead.", line).groups()
        section = values["study"] if key.startswith("study.") else values
        entry = yaml.safe_load(written)
        if key == "text":
            section[key] = entry
            continue
        entries = section[key.removeprefix("study.")]
        (number,) = (number for number, before in enumerate(entries) if before["name"] == entry["name"])
        entries[number] = entry
        replaced.add(entry["name"])
    assert replaced == nested and len(warned) == len(nested) + 1
    caplog.clear()
    assert validate(values) == new and not caplog.records


def test_a_key_without_effect_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    former = {"name": "a", "kind": "imported", "path": "f.npy", "resize": 64, "crop": 64}
    config = validate({"encoders": [former]})
    assert config == validate({"encoders": [{"name": "a", "kind": "imported", "path": "f.npy"}]})
    assert "Write {name: a, kind: imported, path: f.npy} instead" in caplog.text
    former = {"name": "a", "architecture": "resnet18", "of": None, "pooling": "mean", "path": None, "made_by": None}
    assert validate({"encoders": [former]}) == validate({"encoders": [{"name": "a", "architecture": "resnet18"}]})
    assert "Write {name: a, architecture: resnet18} instead" in caplog.text


@pytest.fixture(scope="module")
def former_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack a run of the previous version, and return its folder, which has the collection in `data` and the run in
    `results/colours`.

    The run has the features of one network, the vectors of two text encoders, a model and its index.
    """
    with zipfile.ZipFile(FORMER / "run.zip") as archive:
        archive.extractall(folder := tmp_path_factory.mktemp("former"))
    return folder


def test_stored_encoders_give_the_same_vectors_as_before(former_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(former_run)
    run = Run(former_run / "results/colours")
    eye = restore_encoder(ImageEncoder, run.encoder("eye"))
    rows = run.manifest.images.slice(0, 3).to_pylist()
    images = [Image.open(former_run / "data" / row["path"]).convert("RGB") for row in rows]
    stored = run.features.open("eye", 0)["features"][:3]
    np.testing.assert_allclose(eye.encode(images), stored, rtol=1e-4, atol=1e-5)
    for name in ("tfidf", "glove"):
        shard = VectorShard(run.layout.sentences(name).shard(0))
        vectors = restore_encoder(TextEncoder, run.text_encoder(name)).encode(run.manifest.texts(0))
        dense = [one.toarray() if name == "tfidf" else one for one in (vectors, shard.matrix)]
        np.testing.assert_allclose(*dense, atol=1e-3)


def test_the_index_of_a_former_run_answers_text_queries_and_photos(former_run: Path) -> None:
    index = jointspace.load(former_run / "results/colours/index/ncca")
    assert {hit.row["path"].partition("-")[0] for hit in index.search("a red picture", k=6)} == {"red"}
    photo = next((former_run / "data").glob("blue-*.png"))
    assert {hit.row["path"].partition("-")[0] for hit in index.search(image=photo, k=6)} == {"blue"}


def test_artefacts_made_from_former_encoders_are_still_valid(former_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage `prepare_encoder`, which has replaced a stage of the previous version, prepares the text encoders
    again. The encoder `glove` keeps its digest, and the vectors of all sentences are still up to date.
    """
    monkeypatch.chdir(former_run)
    run = Run(former_run / "results/colours")
    before = read_commit(run.layout.text_encoder("glove").commit).digest
    make_stage("prepare_encoder", run.root, "glove")
    make_stage("prepare_encoder", run.root, "tfidf")
    assert read_commit(run.layout.text_encoder("glove").commit).digest == before
    run = Run(run.root)
    jobs = Jobs(run)
    for name in ("glove", "tfidf"):
        stage = declared()["encode_sentences"]
        assert all(jobs.is_done(jobs.shard_job(stage, (name,), number)) for number in range(run.manifest.n_shards)), (
            name
        )


def test_a_model_of_a_library_without_its_files_is_named() -> None:
    settings = {"kind": "transformers", "architecture": "clip", "config": {}, "weights": {"origin": "clip"}}
    with pytest.raises(
        IntegrityError, match="stored encoder is from an earlier version.*Run the stage prepare-encoder"
    ):
        restore_encoder(ImageEncoder, EncoderParts(settings, {}))


def test_former_commands_are_hidden_and_name_the_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    for former, arguments, new in (
        ("prepare-text-encoder", ["glove", "--run", "r"], ["prepare-encoder", "text/encoders/glove", "--run", "r"]),
        ("import-features", ["--run", "r", "given"], ["import-vectors", "--run", "r", "features/given"]),
        ("import_sentences", ["given", "--part", "3"], ["import-vectors", "text/given", "--part", "3"]),
    ):
        caplog.clear()
        name, command, rest = cli.resolve_command(None, [former, *arguments])
        assert (name, rest) == ("stage", new) and former.replace("_", "-") not in stage.list_commands(None)
        assert stage.resolve_command(None, rest)[1].name == new[0]
        assert f"is called jointspace stage {' '.join(new)} now" in caplog.text


def test_stages_work_without_the_word_stage_and_are_not_listed(caplog: pytest.LogCaptureFixture) -> None:
    name, command, rest = cli.resolve_command(None, ["build_index", "ncca", "--run", "r"])
    assert (command.name, rest) == ("build-index", ["ncca", "--run", "r"])
    assert "jointspace build-index is called jointspace stage build-index now" in caplog.text
    assert "build-index" in stage.list_commands(None) and "build-index" not in cli.list_commands(None)
    with pytest.raises(UsageError, match="Unknown command search. .jointspace stage --help. lists"):
        stage.resolve_command(None, ["search", "a dog"])


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["embed", "ncca", "--run", "r", "--again"], {"again": True, "model": "ncca"}),
        (["fit", "--run=r", "--config=c.yaml"], {"set_config_path": Path("c.yaml"), "root": Path("r")}),
        (["search", "a dog", "--index", "i", "--top", "3"], {"words": ("a dog",), "top": 3}),
        (["search", "i", "--image", "x", "--plus", "dog", "--among=0"], {"among": 0, "words": ("i",)}),
        (["search", "i", "--file", "q.txt", "--run", "r"], {"queries_path": Path("q.txt"), "root": Path("r")}),
        (["serve", "i", "--images", "p", "--run", "r"], {"images_root": Path("p"), "root": Path("r")}),
        (["remove", "i", "--list", "x", "--output", "o"], {"list_path": Path("x"), "output": Path("o")}),
        (["add", "i", "p", "--output", "o"], {"source": Path("p"), "output": Path("o")}),
        (["explain", "beach.jpg", "--run", "r"], {"image": "beach.jpg", "run": Path("r")}),
        (["doctor", "--config", "c.yaml", "--folder", "d"], {"config_path": Path("c.yaml"), "folder": Path("d")}),
        (["plan", "--run", "r", "--images", "99", "--sentences", "2"], {"target": Path("r"), "images": 99}),
        (["migrate", "a", "b", "c.yaml", "--images", "60"], {"images": 60, "config_path": Path("c.yaml")}),
    ],
)  # fmt: skip
def test_former_options_mean_what_the_new_ones_mean(
    words: list[str], new: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    name, *arguments = words
    context = cli.get_command(None, name).make_context(name, arguments)
    assert {key: context.params[key] for key in new} == new
    former = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    warned = [message.split()[0] for message in caplog.messages]
    assert warned and set(warned) <= set(former)
    assert all(" is called --" in message or " is an argument now, as in: " in message for message in caplog.messages)


def test_a_word_after_two_dashes_is_not_an_option() -> None:
    assert replace_former_options(["--a", "1", "--", "--a"], {"--a": "--b"}, "") == ["--b", "1", "--", "--a"]
