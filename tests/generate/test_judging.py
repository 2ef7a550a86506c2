"""The metrics of generated captions are compared with nltk, with definitions and with published software. The tagger of
parts of speech is tested too."""

import math
import shutil
from collections import Counter

import numpy as np
import pytest
from nltk.translate.bleu_score import corpus_bleu
from synthetic_text import make_pairs, make_vocabulary

from pipeline.errors import InputError
from pipeline.generate import metrics
from pipeline.generate.generator import TAGS, Tagger, read_tagged

REFERENCES = [
    [text.split() for text in group]
    for group in (
        ("a dog runs over green grass", "the brown dog is running"),
        ("two men play football in the rain", "men in red play a game"),
        ("a child sits on a swing", "the little child is swinging high"),
    )
]
CONLLU = """# text = A dog barks .
1\tA\ta\tDET\t_\t_\t2\tdet\t_\t_
2\tdog\tdog\tNOUN\t_\t_\t3\tnsubj\t_\t_
3-4\tbarks.\t_\t_\t_\t_\t_\t_\t_\t_
3\tbarks\tbark\tVERB\t_\t_\t0\troot\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tRun\trun\tVERB\t_\t_\t0\troot\t_\t_
"""


def test_bleu_equals_nltk_and_a_perfect_match_has_the_best_values() -> None:
    pytest.importorskip("pycocoevalcap", reason="the extra `metrics` is not installed")
    texts = ("a dog runs on the grass", "two men play a game in the rain", "a child sits")
    candidates = [text.split() for text in texts]
    found, _ = metrics.judge(candidates, REFERENCES, meteor=False)
    for n, value in enumerate((found.bleu_1, found.bleu_2, found.bleu_3), 1):
        assert value == pytest.approx(100 * corpus_bleu(REFERENCES, candidates, [1 / n] * n), abs=1e-3)
    perfect, _ = metrics.judge([group[0] for group in REFERENCES], REFERENCES, meteor=False)
    assert perfect.bleu_4 == pytest.approx(100) and perfect.rouge_l == pytest.approx(100)
    assert perfect.cider > found.cider > 0 and perfect.meteor is None
    assert perfect.not_measured == {"meteor": "describe.meteor is false"}


def cider_d(candidates: list[list[str]], references: list[list[list[str]]]) -> float:
    """Compute the mean CIDEr-D of the candidates, from 0 to 10, with sigma = 6, by its definition (Vedantam et al.
    2015, equations 2 to 5 and section 8). `references` has the references of each candidate, all as lists of words."""

    def counts(words: list[str], n: int) -> Counter:
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    def weigh(found: Counter, n: int) -> dict:
        seen = {gram: sum(any(gram in counts(one, n) for one in group) for group in references) for gram in found}
        return {gram: many * math.log(len(references) / max(1, seen[gram])) for gram, many in found.items()}

    def length(weights: dict) -> float:
        return math.sqrt(sum(value**2 for value in weights.values()))

    total = 0.0
    for words, group in zip(candidates, references, strict=True):
        for n in range(1, 5):
            own = weigh(counts(words, n), n)
            for one in group:
                theirs = weigh(counts(one, n), n)
                product = sum(min(value, theirs.get(gram, 0)) * theirs.get(gram, 0) for gram, value in own.items())
                if norm := length(own) * length(theirs):
                    penalty = math.exp(-((len(words) - len(one)) ** 2) / (2 * 6**2))
                    total += 10 * penalty * product / norm / len(group) / 4
    return total / len(candidates)


def test_cider_equals_its_definition() -> None:
    pytest.importorskip("pycocoevalcap", reason="the extra `metrics` is not installed")
    texts = ("a dog runs over the grass", "two men play a game in the rain", "a little child sits on a swing")
    candidates = [text.split() for text in texts]
    found = metrics.judge(candidates, REFERENCES, meteor=False)[0].cider
    assert found == pytest.approx(100 * cider_d(candidates, REFERENCES), rel=1e-6)


def test_metrics_of_a_sample_follow_from_the_statistics() -> None:
    """`Statistics.measure` gives the metrics that `judge` computes if each caption counts once. For a sample in which a
    caption is repeated or missing, it gives the metrics of `judge` for this list of captions, except CIDEr. CIDEr keeps
    the word weights of all references, and its value is the mean over the sample."""
    pytest.importorskip("pycocoevalcap", reason="the extra `metrics` is not installed")
    # The last text has two words, so it has no n-grams of three or four words.
    texts = ("a dog runs on the grass", "two men play a game in the rain", "a child")
    candidates = [text.split() for text in texts]
    found, statistics = metrics.judge(candidates, REFERENCES, meteor=False)
    measured = [name for name in metrics.METRICS if name != "meteor"]
    once = np.ones(3, int)
    assert [statistics.measure(name, once) for name in measured] == pytest.approx([getattr(found, n) for n in measured])
    weights = np.array([2, 0, 3])
    rows = np.repeat(np.arange(3), weights)
    sample, _ = metrics.judge([candidates[i] for i in rows], [REFERENCES[i] for i in rows], meteor=False)
    names = [name for name in measured if name != "cider"]
    assert [statistics.measure(name, weights) for name in names] == pytest.approx([getattr(sample, n) for n in names])
    assert sample.bleu_4 < found.bleu_4
    assert statistics.measure("cider", weights) == pytest.approx(np.average(statistics.cider, weights=weights))


@pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")
@pytest.mark.slow  # The test starts Java.
def test_meteor_equals_the_value_of_its_published_scorer() -> None:
    """METEOR of three captions, the first of which has two words with other endings than its reference, equals 94.15.
    This expected value is the output of meteor-1.5.jar."""
    pytest.importorskip("pycocoevalcap", reason="the extra `metrics` is not installed")
    candidates = [["a", "dog", "run", "over", "green", "grasses"], *(group[0] for group in REFERENCES[1:])]
    found, _ = metrics.judge(candidates, REFERENCES, meteor=True)
    assert found.meteor == pytest.approx(94.15, abs=0.005) and not found.not_measured


def test_tagger_learns_from_a_treebank_without_punctuation() -> None:
    treebank = list(read_tagged(CONLLU.split("\n"), "bank.conllu"))
    assert treebank == [[("a", "DET"), ("dog", "NOUN"), ("barks", "VERB")], [("run", "VERB")]]
    vocabulary = make_vocabulary()
    tokens = make_pairs(1, 0).sentences
    more = [[("a", "DET"), ("dog", "NOUN"), ("is", "AUX"), ("here", "ADV")]] * 5
    tags = Tagger([*treebank, *more], 0).tag(tokens, vocabulary.terms)
    assert [TAGS[i] for i in next(iter(tags))] == ["DET", "NOUN", "AUX", "ADV"]
    with pytest.raises(InputError, match="bank.conllu, line 2"):
        list(read_tagged(["# text", "1\tdog\tdog"], "bank.conllu"))
    with pytest.raises(InputError, match="has no tagged words"):
        Tagger([], 0)
