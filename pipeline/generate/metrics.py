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
METRICS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor")


@dataclass(frozen=True)
class Judgement:
    """In percent; CIDEr (10 for a perfect match) times 100. `not_measured` has the reason for each metric that is
    None."""

    bleu_1: float | None = None
    bleu_2: float | None = None
    bleu_3: float | None = None
    bleu_4: float | None = None
    rouge_l: float | None = None
    cider: float | None = None
    meteor: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


def judge(candidates: Sequence[Words], references: Sequence[Sequence[Words]], meteor: bool) -> Judgement:
    """One candidate per image against its references; BLEU is the corpus's, with the closest reference length.

    METEOR is measured if `meteor` is set and Java is installed; without pycocoevalcap nothing is.
    """
    if find_spec(PACKAGE) is None:
        reason = "pycocoevalcap is not installed; pip install 'jointspace[metrics]' and run evaluate-descriptions again"
        return Judgement(not_measured=dict.fromkeys(METRICS, reason))
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge

    given = {i: [" ".join(words) for words in group] for i, group in enumerate(references)}
    made = {i: [" ".join(words)] for i, words in enumerate(candidates)}
    bleu = Bleu(4).compute_score(given, made, verbose=0)[0]
    scores = [*bleu, *(scorer.compute_score(given, made)[0] for scorer in (Rouge(), Cider()))]
    without = {}
    if not meteor:
        without["meteor"] = "describe.meteor is false"
    elif not shutil.which("java"):
        without["meteor"] = "there is no Java; install it and run evaluate-descriptions again"
    else:
        scores.append(Meteor().compute_score(given, made)[0])
    measured = {name: 100 * float(score) for name, score in zip(METRICS, scores, strict=False)}
    return Judgement(**measured, not_measured=without)


@dataclass(frozen=True)
class Variety:
    """Percent of the candidates `copied` word by word from a training sentence, percent `distinct`, and their mean
    `length` in words."""

    copied: float
    distinct: float
    length: float


def variety(candidates: Sequence[Words], copied: Sequence[bool]) -> Variety:
    """The variety of the candidates; `copied` says which are a training sentence."""
    distinct = len(set(map(tuple, candidates))) / len(candidates)
    return Variety(100 * float(np.mean(copied)), 100 * distinct, float(np.mean(list(map(len, candidates)))))
