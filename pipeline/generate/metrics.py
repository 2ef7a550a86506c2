"""How near generated sentences come to those that people wrote: BLEU, ROUGE-L, CIDEr and METEOR by pycocoevalcap.

Its Penn Treebank tokeniser needs Java and is left out: references and candidates are both the words of the token
vocabulary's own analyzer (lowercase, without punctuation where the configuration says so), joined by spaces.
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
    """Percent, but CIDEr, which is 10 for a perfect match, times 100. `not_measured` has the reason of each that is
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
    """Of one candidate for each image against its references; BLEU is of the corpus, with the closest reference length.

    METEOR is measured where `meteor` asks for it and there is Java, and none of them without pycocoevalcap.
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
    """Shares of the candidates in percent: `copied` word by word from a training sentence, `distinct` among themselves;
    and their mean `length` in words."""

    copied: float
    distinct: float
    length: float


def variety(candidates: Sequence[Words], copied: Sequence[bool]) -> Variety:
    """What the candidates are made of; `copied` says which of them are a training sentence."""
    distinct = len(set(map(tuple, candidates))) / len(candidates)
    return Variety(100 * float(np.mean(copied)), 100 * distinct, float(np.mean(list(map(len, candidates)))))
