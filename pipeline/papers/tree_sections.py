"""Sections 6.6 and 6.7 of Socher et al. 2014, in the form of `pipeline.papers.tables`.

Section 6.6 groups the captions of one image by their verbs and lengths. Section 6.7 lists the relations of dependency
trees with the largest matrices.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.papers import tables

PAPER = "Socher et al."
VERBS = ("neither", "one", "both")
"""The groups of pairs of captions: neither caption, one caption, or both captions have a verb."""
LENGTHS = ("0 to 2", "3 to 5", "6 or more")
LENGTH_BOUNDS = (3, 6)
"""Differences in length, in words, at which the second and the third group of LENGTHS begin."""
WORST_SHARE = 0.01
"""Share of all pairs that have the worst ranks. Among these, the pairs with one verb are counted separately."""
MAX_RELATIONS = 12
"""Maximum number of relations that are listed for a system. The relations with the greatest norms are listed."""
FAILURE = (
    "The paper says that SDT-RNN fails mostly for captions without a verb among captions with a verb. The table has the"
    " mean rank of a caption among the neighbours of another caption of its image, by the number of verbs in the pair,"
    f" and the percentage of pairs with exactly one verb, among all pairs and among the {WORST_SHARE:.0%} with the"
    " worst ranks."
)
ROBUST = (
    "The paper says that SDT-RNN suffers less than bags of words from captions of different lengths. The table has the"
    " mean rank of pairs that both have a verb, by the difference of their lengths in words, and the last of these as a"
    " percentage of the first."
)


def pair_tables(
    systems: Mapping[str, Sequence[np.ndarray]],
    reproduced: Sequence[str],
    pairs: np.ndarray,
    verbs: np.ndarray,
    lengths: np.ndarray,
) -> list[tables.Result]:
    """Make the two tables of section 6.6: mean ranks of pairs of captions of one image, by verbs and by lengths.

    `pairs` (p, 2) are the row numbers of two of the m captions. `systems` maps the label of a system to an array (p,)
    per training. The first caption of each pair is a query, and the array has the rank of the second caption among the
    captions of other images, from 1 for the best. Systems with a label in `reproduced` have the settings of the paper.
    `verbs` (m,) is 1 for a caption with a verb, 0 for a caption without a verb, and -1 for a caption whose words are
    not tagged. Pairs with an untagged caption are left out. `lengths` (m,) has the numbers of words.
    """
    tagged = (verbs[pairs] >= 0).all(axis=1)
    pairs = pairs[tagged]
    having = verbs[pairs].sum(axis=1)
    apart = np.digitize(np.abs(np.diff(lengths[pairs], axis=1)).ravel(), LENGTH_BOUNDS)
    by_verbs = []
    by_lengths = []
    for label, trainings in systems.items():
        ranks = [training[tagged] for training in trainings]
        worst = [np.argsort(-rank, kind="stable")[: max(1, int(WORST_SHARE * len(rank)))] for rank in ranks]
        shares = [_shares(having, [np.arange(len(having))] * len(ranks)), _shares(having, worst)]
        means = [_means(ranks, having == kind) for kind in range(len(VERBS))]
        by_verbs.append(_row(label, reproduced, [*means, *shares]))
        means = [_means(ranks, (having == 2) & (apart == kind)) for kind in range(len(LENGTHS))]
        first = means[0]
        last = means[-1]
        ratio = first and last and [100 * end / begin for begin, end in zip(first, last, strict=True)]
        by_lengths.append(_row(label, reproduced, [*means, ratio]))
    verb_columns = [
        tables.group("mean rank by verbs in the pair", VERBS),
        tables.group("pairs with one verb, %", ["all", "worst"]),
    ]
    length_columns = [tables.group("mean rank by length difference", LENGTHS), tables.group("", ["last of first, %"])]
    title = "section 6.6, captions of one image that are far apart, by their"
    return [
        tables.table(PAPER, f"{title} verbs", columns=verb_columns, rows=by_verbs, notes=[FAILURE]),
        tables.table(PAPER, f"{title} lengths", columns=length_columns, rows=by_lengths, notes=[ROBUST]),
    ]


def relation_table(relations: Mapping[str, Sequence[tuple[str, Sequence[float], int]]]) -> tables.Result:
    """Make the list of section 6.7, as the notes of a table without rows.

    `relations` maps the label of a system to its relations. A relation has a name, the norm of its matrix in each
    training, and the number of training words that have the relation.
    """
    notes = ["Published, by falling norm: nominal subject, possession, passive auxiliary, prepositions."]
    for label, rows in relations.items():
        largest = sorted(rows, key=lambda row: -np.mean(row[1]))[:MAX_RELATIONS]
        named = (f"{name} {np.mean(norms):.2f} ({count:,})" for name, norms, count in largest)
        notes.append(f"- `{label}`, norm (and training words with the relation): {', '.join(named)}.")
    return tables.table(PAPER, "section 6.7, relations by the norm of their matrix", notes=notes)


def _row(label: str, reproduced: Sequence[str], values: Sequence[Sequence[float] | None]) -> tables.Result:
    found = [tables.system("", values)]
    return tables.row(label, reproduced=found) if label in reproduced else tables.row(label, improved=found)


def _means(ranks: Sequence[np.ndarray], chosen: np.ndarray) -> list[float] | None:
    return [float(rank[chosen].mean()) for rank in ranks] if chosen.any() else None


def _shares(having: np.ndarray, subsets: Sequence[np.ndarray]) -> list[float] | None:
    return [float(100 * np.mean(having[rows] == 1)) for rows in subsets] if len(having) else None
