"""The searcher of a bundle, whichever kind of model it is of."""

from pipeline.index.search import Parts, Searcher


def open_searcher(parts: Parts) -> Searcher:
    """The searcher of a bundle, whichever kind of model it is of."""
    if parts.card.get("kind") != "fragments":
        return Searcher(parts)
    from pipeline.index.fragment_search import FragmentSearcher  # takes torch, which other models do without

    return FragmentSearcher(parts)
