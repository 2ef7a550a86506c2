"""Metrics that compare generated captions with human captions: BLEU, ROUGE-L, CIDEr and METEOR from pycocoevalcap.

The Penn Treebank tokeniser of pycocoevalcap is not used, because it needs Java. The caller splits references and
candidates into words by the analyzer of the token vocabulary, whose settings say whether words become lowercase and
punctuation is removed.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

Words = Sequence[str]

PACKAGE = "pycocoevalcap"
GENERATED_FLOOR = 1e-9
"""The number that pycocoevalcap adds to the divisors in BLEU, so that it never divides by 0. The divisors are the
number of generated n-grams and the length of the reference. Statistics.measure adds the same number."""
MATCHED_FLOOR = 1e-15
"""The number that pycocoevalcap adds to the number of matched n-grams, so that every precision in BLEU is positive. The
number is also added to the length of the generated caption. Statistics.measure does the same."""
METRICS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor")


@dataclass(frozen=True)
class Judgement:
    """The metrics of a set of generated captions, multiplied by 100. CIDEr is from 0 to 1000, and the others are from 0
    to 100. Higher is better. A metric that was not measured is None, and `not_measured` maps its name to the reason."""

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
    """Sufficient statistics of d generated captions, from which `measure` computes the metrics of any sample of these
    captions, such as a resample of a bootstrap.

    - `made` (d, 4) counts the n-grams of each caption, for n from 1 to 4.
    - `matched` (d, 4) counts the n-grams of each caption that a reference also has. If an n-gram occurs more often in
      the caption than in any single reference, the additional occurrences are not counted.
    - `lengths` (d, 2) has the number of words of each caption, and of the reference whose length is closest to the
      caption's.
    - `rouge_l` and `cider` (d,) are the metrics of each caption, multiplied by 100. The word weights of CIDEr come from
      all references, and do not depend on the sample.

    METEOR is missing, because a separate Java process adds up its statistics.
    """

    matched: np.ndarray
    made: np.ndarray
    lengths: np.ndarray
    rouge_l: np.ndarray
    cider: np.ndarray

    def measure(self, metric: str, weights: np.ndarray) -> float:
        """Compute `metric`, any of METRICS except meteor, for a sample of the captions, and return it multiplied by
        100. `weights` (d,) says how often each caption is in the sample. BLEU is computed from the counts of the whole
        sample (Papineni et al. 2002), with the floors of pycocoevalcap. ROUGE-L and CIDEr are means over the sample."""
        if not metric.startswith("bleu"):
            return float(weights @ getattr(self, metric) / weights.sum())
        n = int(metric[-1])
        matched = weights @ self.matched[:, :n] + MATCHED_FLOOR
        made = weights @ self.made[:, :n] + GENERATED_FLOOR
        length, closest = weights @ self.lengths
        brevity = min(1.0, np.exp(1 - (closest + GENERATED_FLOOR) / (length + MATCHED_FLOOR)))
        return 100 * float(np.prod(matched / made) ** (1 / n) * brevity)


def judge(
    candidates: Sequence[Words], references: Sequence[Sequence[Words]], meteor: bool
) -> tuple[Judgement, Statistics | None]:
    """Compare the generated caption of each image with the image's references. `candidates` has one list of words per
    image. `references`, in the same order, has one or more lists of words per image. Returns the metrics over all
    images, and the statistics of the captions.

    BLEU is computed from the counts of all candidates together. Of the references of a candidate, BLEU uses the length
    that is closest to the length of the candidate. METEOR is measured only if `meteor` is true and Java is installed.
    If pycocoevalcap is not installed, all metrics are None, `not_measured` says so for each metric, and the statistics
    are None.
    """
    if find_spec(PACKAGE) is None:
        reason = (
            "pycocoevalcap is not installed. Run `pip install 'jointspace[metrics]'`, and then rerun the stage"
            " evaluate-descriptions"
        )
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
    scores = [*bleu, rouge, cider]
    without = {}
    if not meteor:
        without["meteor"] = "describe.meteor is false"
    elif not shutil.which("java"):
        without["meteor"] = "Java is not installed. Install it, then rerun evaluate-descriptions"
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
    """Measure how varied the generated captions `candidates` are, of which there is at least one. `copied[i]` says
    whether candidate i has the same words as a training sentence. Returns the percentage of candidates that are copied
    (`copied`), the number of different candidates in percent of the number of candidates (`distinct`), and the mean
    number of words (`length`)."""
    distinct = len(set(map(tuple, candidates))) / len(candidates)
    length = float(np.mean(list(map(len, candidates))))
    return {"copied": 100 * float(np.mean(copied)), "distinct": 100 * distinct, "length": length}
