"""spaCy learns a small grammar by its own training; its pipeline parses in batches."""

from pathlib import Path

import pytest

from pipeline.demo import DrawingSettings, collection_texts, scene_record
from pipeline.text.dependencies import Parse, read_conllu

pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
from pipeline.text.parsing import judge, train, write_corpus  # noqa: E402


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
