"""Scores of what is embedded, whichever kind of row it is of."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pipeline.storage.embeddings import SplitPairs


def read_side(embeddings: Any, modality: str, ids: "np.ndarray") -> Any:
    """The `images` or `sentences` whose ids are `ids` (k,), ascending: vectors (k, c), or FragmentSets."""
    if not hasattr(embeddings, "score"):
        return embeddings.read(modality, ids)
    from pipeline.metrics.fragment_scores import FragmentSets

    sets = embeddings.read_sets(modality, ids)
    return FragmentSets(sets.vectors, sets.offsets, sets.globals)


def score_pairs(embeddings: Any, pairs: "SplitPairs") -> "np.ndarray":
    """(n, m) the scores of all images by all sentences of `pairs`."""
    images, sentences = (
        read_side(embeddings, what, ids) for what, ids in (("images", pairs.image_id), ("sentences", pairs.sentence_id))
    )
    if not hasattr(embeddings, "score"):
        return images @ sentences.T
    from pipeline.metrics.fragment_scores import ScoreRule, fragment_scores

    return fragment_scores(images, sentences, ScoreRule.from_dict(embeddings.score)).numpy()
