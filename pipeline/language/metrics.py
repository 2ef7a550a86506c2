"""How near generated sentences come to those that people wrote: BLEU, ROUGE-L, CIDEr and METEOR by pycocoevalcap.

Its Penn Treebank tokeniser needs Java and is left out: references and candidates are both the words of the token
vocabulary's own analyzer (lowercase, without punctuation where the configuration says so), joined by spaces.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UsageError

Words = Sequence[str]


@dataclass(frozen=True)
class Judgement:
    """Percent, but CIDEr, which is 10 for a perfect match, times 10 as it is usually printed."""

    bleu_1: float
    bleu_2: float
    bleu_3: float
    bleu_4: float
    rouge_l: float
    cider: float
    meteor: float | None


def judge(candidates: Sequence[Words], references: Sequence[Sequence[Words]], meteor: bool) -> Judgement:
    """Of one candidate for each image against its references; BLEU is of the corpus, with the closest reference length.

    METEOR is measured where `meteor` asks for it and there is Java. Raises UsageError without pycocoevalcap.
    """
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.meteor.meteor import Meteor
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        raise UsageError("metrics need pycocoevalcap; install it by: pip install 'jointspace[metrics]'") from None
    given = {i: [" ".join(words) for words in group] for i, group in enumerate(references)}
    made = {i: [" ".join(words)] for i, words in enumerate(candidates)}
    bleu = Bleu(4).compute_score(given, made, verbose=0)[0]
    scores = [*bleu, *(scorer.compute_score(given, made)[0] for scorer in (Rouge(), Cider()))]
    if meteor and shutil.which("java"):
        scores.append(Meteor().compute_score(given, made)[0])
    percent = [100 * float(score) for score in scores]
    return Judgement(*percent, *[None] * (7 - len(percent)))


@dataclass(frozen=True)
class Variety:
    """Shares of the candidates in percent: `copied` word by word from a training sentence, `distinct` among themselves;
    and their mean `length` in words."""

    copied: float
    distinct: float
    length: float


def variety(candidates: Sequence[Words], copied: Sequence[bool]) -> Variety:
    """What the candidates are made of; `copied` says which of them are a training sentence."""
    distinct = len(set(map(tuple, candidates))) / len(candidates)
    return Variety(100 * float(np.mean(copied)), 100 * distinct, float(np.mean(list(map(len, candidates)))))
