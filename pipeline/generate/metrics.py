"""Comparing generated sentences with human ones: BLEU, ROUGE-L, CIDEr and METEOR by pycocoevalcap.

Its Penn Treebank tokeniser, which needs Java, is not used: references and candidates are both tokenised by the token
vocabulary's analyzer (by configuration lowercase, without punctuation).
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

Words = Sequence[str]

PACKAGE = "pycocoevalcap"
SMALL, TINY = 1e-9, 1e-15
"""What pycocoevalcap adds to n-grams made, and to n-grams matched, so that nothing is divided by 0."""
METRICS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor")


@dataclass(frozen=True)
class Judgement:
    """Metrics in percent; CIDEr (10 for a perfect match) is times 100. `not_measured` says why a metric is None."""

    bleu_1: float | None = None
    bleu_2: float | None = None
    bleu_3: float | None = None
    bleu_4: float | None = None
    rouge_l: float | None = None
    cider: float | None = None
    meteor: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Statistics:
    """Sufficient statistics of d descriptions, by which the metrics of any sample of them can be had.

    `matched` and `made` (d, 4) count its n-grams, n from 1 to 4: those that a reference has, and all; `lengths` (d, 2)
    its words and those of the closest reference; `rouge_l` and `cider` (d,) are its own, in percent. CIDEr weighs words
    by all references, whatever the sample. METEOR is not here: its scorer adds up in a process of its own.
    """

    matched: np.ndarray
    made: np.ndarray
    lengths: np.ndarray
    rouge_l: np.ndarray
    cider: np.ndarray

    def measure(self, metric: str, weights: np.ndarray) -> float:
        """The `metric`, one of `METRICS` but METEOR, where description i counts `weights[i]` times; BLEU as Papineni et
        al. 2002 define it of a corpus, with the floors of the reference scorer."""
        if not metric.startswith("bleu"):
            return float(weights @ getattr(self, metric) / weights.sum())
        n = int(metric[-1])
        matched, made = weights @ self.matched[:, :n] + TINY, weights @ self.made[:, :n] + SMALL
        length, closest = weights @ self.lengths
        brevity = min(1.0, np.exp(1 - (closest + SMALL) / (length + TINY)))
        return 100 * float(np.prod(matched / made) ** (1 / n) * brevity)


def judge(
    candidates: Sequence[Words], references: Sequence[Sequence[Words]], meteor: bool
) -> tuple[Judgement, Statistics | None]:
    """One candidate per image against its references; BLEU is the corpus's, with the closest reference length.

    METEOR is measured if `meteor` is set and Java is installed; without pycocoevalcap nothing is.
    """
    if find_spec(PACKAGE) is None:
        reason = "pycocoevalcap is not installed; pip install 'jointspace[metrics]' and run evaluate-descriptions again"
        return Judgement(not_measured=dict.fromkeys(METRICS, reason)), None
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge

    given = {i: [" ".join(words) for words in group] for i, group in enumerate(references)}
    made = {i: [" ".join(words)] for i, words in enumerate(candidates)}
    scorer = BleuScorer(n=4)
    for i, (text,) in made.items():
        scorer += (text, given[i])
    bleu = scorer.compute_score(option="closest")[0]
    (rouge, rouges), (cider, ciders) = (one.compute_score(given, made) for one in (Rouge(), Cider()))
    scores, without = [*bleu, rouge, cider], {}
    if not meteor:
        without["meteor"] = "describe.meteor is false"
    elif not shutil.which("java"):
        without["meteor"] = "there is no Java; install it and run evaluate-descriptions again"
    else:
        scores.append(Meteor().compute_score(given, made)[0])
    measured = {name: 100 * float(score) for name, score in zip(METRICS, scores, strict=False)}
    counted = scorer.ctest
    closest = (min((abs(length - one["testlen"]), length) for length in one["reflen"])[1] for one in counted)
    statistics = Statistics(
        np.array([one["correct"] for one in counted]),
        np.array([one["guess"] for one in counted]),
        np.array([(one["testlen"], length) for one, length in zip(counted, closest, strict=True)]),
        100 * np.asarray(rouges, np.float64),
        100 * np.asarray(ciders, np.float64),
    )
    return Judgement(**measured, not_measured=without), statistics


def variety(candidates: Sequence[Words], copied: Sequence[bool]) -> dict[str, float]:
    """Percent of the candidates `copied` word by word from a training sentence, as `copied` says of each, percent
    `distinct`, and their mean `length` in words."""
    distinct = len(set(map(tuple, candidates))) / len(candidates)
    length = float(np.mean(list(map(len, candidates))))
    return {"copied": 100 * float(np.mean(copied)), "distinct": 100 * distinct, "length": length}
