"""Tests of the stages `parse`, `train-parser`, `build-label-table` and `encode-trees` on a small collection."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from synthetic_run import make_run, make_stage
from trainable_run import encode_parses

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.shards import TOKENS, TREES, Shard, shard_path
from pipeline.storage.texts import ParseShard, read_packed_trees
from pipeline.text.dependencies import read_conllu
from pipeline.text.trees import Trees

THINGS = ("dog", "cat", "bird", "horse", "boat", "house", "tree", "car")


def sentences(images: int = 24) -> list[tuple[str, list[str]]]:
    """Return the sentences that `make_run` makes, two per image, as pairs of an id (`FILE#NUMBER`) and a list of
    words.
    """
    kinds = [THINGS[i % 8] for i in range(images)]
    texts = [(["a", kind], ["the", "big", kind, "number", str(i)]) for i, kind in enumerate(kinds)]
    return [(f"{kinds[i]}-{i}.png#{k}", words) for i, both in enumerate(texts) for k, words in enumerate(both)]


def conllu(rows: list[tuple[str, list[str]]]) -> str:
    """Return parses of the sentences `rows` in CoNLL-U. The root is the second word of a sentence of two words, and
    otherwise the third word. All other words depend on the root.
    """
    text = ""
    for name, words in rows:
        head = 2 if len(words) == 2 else 3
        text += f"# sent_id = {name}\n"
        for number, word in enumerate(words, start=1):
            tag = "NOUN" if number == head else "X"
            relation = "root" if number == head else "nummod" if number > head else "det"
            text += f"{number}\t{word}\t_\t{tag}\t_\t_\t{0 if number == head else head}\t{relation}\t_\t_\n"
        text += "\n"
    return text


def config(folder: Path, **parse: object) -> Path:
    """Write a configuration with the settings `parse` in the section of this name into `folder`, and return its
    path.
    """
    path = folder / "config.yaml"
    value = {"parse": parse, "tokens": {"min_count": 1}, "data_root": str(folder), "weights_root": str(folder)}
    value |= {"parts": 3}
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run of 24 images in three shards, and the file `p.conllu` with parses of its 48 sentences. Return the
    folder of both.
    """
    make_run(tmp_path)
    (tmp_path / "p.conllu").write_text(conllu(sentences()))
    return tmp_path


def parse(run: Path, part: int = 0, **settings: object) -> Path:
    """Configure the run with `settings` in the section `parse`, parse the captions of the shard number `part`, and
    return the path of the parses.
    """
    config(run, **settings)
    make_stage("parse", run, "--part", part)
    return run / f"text/parses/shard-{part:05d}.conllu"


def encode(run: Path, number: int = 0) -> tuple[Shard, Shard]:
    """Run the stages that follow `parse` for the whole run, and return the trees and the tokens of the shard
    `number`.
    """
    encode_parses(run)
    return Shard(shard_path(run / "text/trees", number), TREES), Shard(shard_path(run / "text/tokens", number), TOKENS)


def test_files_of_parses_become_trees_over_the_tokens(run: Path) -> None:
    for shard in range(3):
        parse(run, shard, conllu="p.conllu", brackets=None)
    shard, words = encode(run, 2)
    table = json.loads((run / "text/labels.json").read_text())
    assert table["relations"] == ["det", "nummod", "root"] and table["relation_counts"] == [48, 32, 32]
    assert table["phrases"][:2] == ["X", "NOUN"] and "NP" in table["phrases"]
    dependency, phrase = (
        Trees(**read_packed_trees(run / "text/trees", kind, [2])) for kind in ("dependency", "phrase")
    )
    np.testing.assert_array_equal(dependency.words, words["ids"])
    np.testing.assert_array_equal(dependency.offsets, words["offsets"])
    np.testing.assert_array_equal(phrase.words[phrase.words >= 0], words["ids"])
    assert dependency.parents[:7].tolist() == [1, -1, 2, 2, -1, 2, 2]
    assert [table["relations"][label] for label in dependency.labels[:2]] == ["det", "root"]
    assert table["phrases"][phrase.labels[2]] == "NP" and phrase.parents[:3].tolist() == [2, 2, -1]
    assert shard["sentence_id"].tolist() == list(range(40, 48))


def test_sentences_without_a_matching_parse_become_chains(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = sentences()
    rows[3] = (rows[3][0], [*rows[3][1], "more"])
    del rows[0]
    (run / "p.conllu").write_text(conllu(rows))
    with caplog.at_level(logging.INFO):
        path = parse(run, conllu="p.conllu", brackets=None)
    sidecar = json.loads(path.with_name(path.name + ".json").read_text())["details"]
    assert sidecar["n_fallbacks"] == 2
    assert [fallback["sentence_id"] for fallback in sidecar["fallbacks"]] == [0, 3]
    assert "because it was not parsed: no parse of this id" in caplog.text
    assert "6 other words: the big cat number 1 more" in caplog.text
    assert "20 captions, of which 2 were not parsed" in caplog.text
    entries = list(read_conllu(ParseShard(run / "text/parses", 0).conllu, "f"))
    assert [entry.parse.heads for entry in entries[:4]] == [(-1, 0), (2, 2, -1, 2, 2), (1, -1), (-1, 0, 1, 2, 3)]
    assert [number for number, entry in enumerate(entries) if "fallback" in entry.comments] == [0, 3]


def test_brackets_without_conllu_also_give_dependencies(run: Path) -> None:
    rows = []
    for name, words in sentences():
        leaves = (f"({tag} {word})" for tag, word in zip(("DT", "NN", "NN", "NN", "CD"), words, strict=False))
        rows.append(f"{name}\t(NP {' '.join(leaves)})\n")
    (run / "p.brackets").write_text("".join(rows))
    path = parse(run, conllu=None, brackets="p.brackets")
    entry = next(read_conllu(path.read_text().split("\n"), "f"))
    assert entry.parse.heads == (1, -1) and entry.parse.relations == ("det", "root")
    assert path.with_suffix(".brackets").read_text().startswith("0\t(NP (DT a) (NN dog))\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (conllu(sentences()[:1]) * 2, "has the id dog-0.png#0, which an earlier sentence has too"),
        (conllu(sentences()).replace("\t2\tdet", "\t0\tdet", 1), "p.conllu, sentence before line 4: 2 roots"),
    ],
)
def test_errors_in_a_file_of_parses_are_located(run: Path, text: str, message: str) -> None:
    (run / "p.conllu").write_text(text)
    with pytest.raises(InputError, match=message):
        parse(run, conllu="p.conllu", brackets=None)
    assert not (run / "text/parses").exists()


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the treebank `all.conllu` of 48 sentences, each of which ends with a full stop, and return its folder."""
    folder = tmp_path_factory.mktemp("treebank")
    (folder / "all.conllu").write_text(conllu([(name, [*words, "."]) for name, words in sentences()]))
    return folder


@pytest.fixture(scope="module")
def parser(treebank: Path) -> Path:
    """Train a parser on the small treebank with `train-parser`, and return the folder of the parser. Skip the tests if
    spaCy is not installed.
    """
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
    config(treebank, training={"epochs": 4}, treebank=dict.fromkeys(("train", "dev", "test"), "all.conllu"))
    make_stage("train_parser", treebank)
    return treebank / "parser"


def test_a_trained_parser_is_evaluated_and_parses_the_sentences(
    run: Path, parser: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = json.loads((parser / "pipeline.json").read_text())
    assert judged["dev"] == judged["test"]  # The configuration names the same file for both.
    assert judged["test"].keys() == {"dep_uas", "dep_las", "tag_acc"} and judged["test"]["dep_uas"] > 50
    shutil.copytree(parser, run / "parser")
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.text.parsing.MAX_WORDS", 4)
        path = parse(run, 0, engine="spacy", workers=0)
    sidecar = json.loads(path.with_name(path.name + ".json").read_text())["details"]
    assert sidecar["n_fallbacks"] == 10 and "more than 4 words" in sidecar["fallbacks"][0]["reason"]
    by_name = parse(run, 1, engine="spacy", workers=0, pipeline=str(parser / "pipeline"))
    assert json.loads(by_name.with_name(by_name.name + ".json").read_text())["details"]["n_fallbacks"] == 0
    parse(run, 2, engine="spacy", workers=0)
    trees, _ = encode(run)
    assert trees.rows == 20 and trees.details["n_misfits"] == 0


def test_a_changed_parser_is_refused(run: Path, parser: Path) -> None:
    copy = shutil.copytree(parser, run / "parser")
    with open(copy / "pipeline/meta.json", "a") as file:
        file.write(" ")
    with pytest.raises(IntegrityError, match="meta.json is changed"):
        parse(run, engine="spacy")
