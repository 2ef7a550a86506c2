"""A small parser learns a small grammar; agreement by hand; the pipeline parses in batches."""

from functools import partial

import pytest

from examples.demo import DrawingSettings, collection_texts, scene_record
from pipeline.errors import InputError
from pipeline.settings.parse import ParserSettings
from pipeline.text.conllu import Parse, depths, read_conllu, tree_fault
from pipeline.text.parser_training import Agreement, ParserTraining, compare, judge
from pipeline.text.parsing import BatchParser, parse_words

SETTINGS = ParserSettings(
    width=32, depth=2, hidden=32, dropout=0.0, learning_rate=0.01, batch_words=200, epochs=4, patience=4
)


def test_agreement_counts_words() -> None:
    def parse(heads: tuple[int, ...], relations: tuple[str, ...], tags: tuple[str, ...]) -> Parse:
        return Parse(("a", "b", "c", "d"), tags, tags, heads, relations, (True,) * 4)

    gold = parse((1, -1, 1, 2), ("det", "root", "nmod:poss", "x"), ("A", "B", "C", "D"))
    found = parse((1, -1, 1, 1), ("amod", "root", "nmod", "x"), ("A", "B", "C", "E"))
    assert compare([found], [gold]) == Agreement(75, 25, 50, 75, words=4, sentences=1)
    assert compare([gold, gold], [gold, gold]) == Agreement(100, 100, 100, 100, words=8, sentences=2)


@pytest.fixture(scope="module")
def demo() -> list[Parse]:
    settings = DrawingSettings(train=40, dev=1, test=1, weak=0, seed=3)
    texts = collection_texts([scene_record(settings, index) for index in range(settings.images)])
    return [entry.parse for entry in read_conllu(texts["trees.conllu"].split("\n"), "c")]


@pytest.fixture(scope="module")
def training(demo: list[Parse]) -> ParserTraining:
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
    trained = ParserTraining(demo[:160], demo[160:], SETTINGS, seed=0)
    trained.history = list(trained.learn())
    return trained


def test_a_parser_is_learned_and_the_best_one_kept(training: ParserTraining, demo: list[Parse]) -> None:
    best = max(training.history, key=lambda agreement: agreement.las)
    assert best.las > 60 and best.tags > 90 and best.words == sum(map(len, demo[160:]))
    assert judge(training.pipeline, demo[160:]) == best


def test_batches_fall_back_where_they_must(training: ParserTraining) -> None:
    texts = ["A dog runs on the grass .", "", "dog " * 31, " \n ", "A  cat\tsleeps ."]
    found = BatchParser(partial(getattr, training, "pipeline"), max_words=30)(texts)
    assert [bool(parsed.fallback) for parsed in found] == [False, True, True, True, False]
    assert found[2].parse.heads == tuple(range(-1, 30)) and "30 words" in found[2].fallback
    assert found[4].parse.words == ("A", "cat", "sleeps", ".") == found[4].tree.words
    assert max(depths(found[0].parse.heads)) > 0 and len(found[0].tree) > 7


def test_several_sentences_in_one_have_one_root(training: ParserTraining) -> None:
    (found,) = parse_words(training.pipeline, [("A dog runs . " * 6).split()])
    assert tree_fault(found.heads) is None


def test_treebanks_without_sentences_are_refused(demo: list[Parse]) -> None:
    with pytest.raises(InputError, match="dev treebank has no sentence"):
        ParserTraining(demo, [], SETTINGS, seed=0)
