"""spaCy learns a small grammar by its own training; its pipeline parses in batches."""

from pathlib import Path

import pytest

from examples.demo import DrawingSettings, collection_texts, scene_record
from pipeline.storage.parsers import load_parser
from pipeline.text.conllu import Parse, depths, read_conllu
from pipeline.text.parsing import BatchParser

pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
from pipeline.text.parser_training import judge, train, write_corpus  # noqa: E402


@pytest.fixture(scope="module")
def demo() -> list[Parse]:
    settings = DrawingSettings(train=20, dev=1, test=1, weak=0, seed=3)
    texts = collection_texts([scene_record(settings, index) for index in range(settings.images)])
    return [entry.parse for entry in read_conllu(texts["trees.conllu"].split("\n"), "c")]


@pytest.fixture(scope="module")
def folder(demo: list[Parse], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    words = write_corpus(demo[:80], folder / "train.spacy")
    write_corpus(demo[80:], folder / "dev.spacy")
    train(folder, words, epochs=8, seed=0)
    return folder


def test_a_parser_is_learned(folder: Path) -> None:
    scores = judge(folder / "trained/model-best", folder / "dev.spacy")
    assert scores["dep_las"] > 40 and scores["tag_acc"] > 70 and scores["dep_uas"] >= scores["dep_las"]


def test_batches_fall_back_where_they_must(folder: Path) -> None:
    texts = ["A dog runs on the grass .", "", "dog " * 31, " \n ", "A  cat\tsleeps ."]
    found = BatchParser(lambda: load_parser(str(folder / "trained/model-best")), max_words=30)(texts)
    assert [bool(parsed.fallback) for parsed in found] == [False, True, True, True, False]
    assert found[2].parse.heads == tuple(range(-1, 30)) and "30 words" in found[2].fallback
    assert found[4].parse.words == ("A", "cat", "sleeps", ".") == found[4].tree.words
    assert max(depths(found[0].parse.heads)) > 0 and len(found[0].tree) > 7
