"""English lemmas that are words of the collection, and whether the collection is English at all."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

MOSTLY = 0.5
"""Share of a collection's words that the English dictionary must know. Of Flickr8k's sentences it knows 99 in 100, of
their German translations 19."""
ENDINGS = (("ies", "y"), ("ied", "y"), ("es", ""), ("es", "e"), ("s", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
           ("ing", ""))  # fmt: skip
"""Inflections of English and what takes their place in a lemma (the rules of detachment of WordNet's Morphy)."""
STOP_WORDS = frozenset((
    "a", "about", "above", "across", "after", "again", "against", "all", "along", "also", "although", "always",
    "am", "among", "an", "and", "any", "are", "around", "as", "at", "be", "because", "been", "before", "behind",
    "being", "below", "beneath", "beside", "between", "both", "but", "by", "did", "do", "does", "doing", "down",
    "during", "each", "either", "else", "every", "for", "from", "had", "has", "have", "having", "he", "her",
    "here", "hers", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "let", "me", "my",
    "neither", "no", "nor", "not", "of", "off", "on", "onto", "or", "our", "ours", "out", "over", "per", "she",
    "since", "so", "some", "such", "than", "that", "the", "their", "theirs", "them", "then", "there", "these",
    "they", "this", "those", "though", "through", "to", "too", "toward", "towards", "under", "until", "up",
    "upon", "us", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who", "whom",
    "whose", "why", "with", "within", "without", "you", "your", "yours",
))  # fmt: skip
"""English words that say nothing of a photograph by themselves. scikit-learn's list, which text.stop_words leaves out,
has nouns and numbers too (fire, side, two)."""


def find_lemma(word: str) -> str:
    """The lemma of a word by the English dictionary, in lower case where the word is."""
    import simplemma

    lemma = simplemma.lemmatize(word, lang="en")
    return lemma.lower() if word.islower() else lemma


def is_english(counts: Mapping[str, int]) -> bool:
    """Whether most of the words of a collection are English: `counts` are the sentences that have each. A collection
    without words of letters is."""
    import simplemma

    words = Counter({word: count for word, count in counts.items() if word.isalpha()})
    known = sum(count for word, count in words.items() if simplemma.is_known(word, lang="en"))
    return known >= MOSTLY * words.total()


def choose_lemmas(counts: Mapping[str, int], stop_words: Collection[str], min_count: int) -> dict[str, str]:
    """Each word of a collection -> its term, which is a word of the collection, or one of `stop_words`; and each lemma
    that is neither -> the term of its words. `counts` are the sentences that have each word.

    The dictionary's lemma is taken if at least `min_count` sentences have it, else the first word without its ending
    for which this is so (the dictionary has `playe` for `playing`), else whichever of these is the lemma of other words
    of the collection. A lemma that does not occur itself is represented by the shortest of its words, so that `geese`
    remain together with the query `goose`.
    """
    listed = {word: find_lemma(word) for word in counts}
    support = Counter(lemma for word, lemma in listed.items() if lemma != word)
    words_of: dict[str, list[str]] = defaultdict(list)
    for word, lemma in listed.items():
        candidates = list(_candidates(word, lemma))
        common = (one for one in candidates if counts.get(one, 0) >= min_count or one.lower() in stop_words)
        others = {one: support[one] + (one in counts) - (one == lemma != word) for one in candidates}
        words_of[next(common, None) or max(candidates, key=others.__getitem__)].append(word)
    terms = {}
    for lemma, words in words_of.items():
        is_term = lemma in counts or lemma.lower() in stop_words
        term = lemma if is_term else min(words, key=lambda word: (len(word), word))
        terms |= dict.fromkeys(words if is_term else [*words, lemma], term)
    return dict(sorted(terms.items()))


def make_lemmatiser(terms: Mapping[str, str]) -> Callable[[str], str]:
    """The function word -> term by `choose_lemmas`, also of words that were not in the collection; without `terms` the
    dictionary's."""

    def lemmatise(word: str) -> str:
        if (term := terms.get(word)) is not None:
            return term
        lemma = find_lemma(word)
        return next((terms[one] for one in _candidates(word, lemma) if one in terms), lemma)

    return lemmatise


def _candidates(word: str, lemma: str) -> Iterator[str]:
    """What may be the lemma of a word: the dictionary's, then, of a word that is inflected, it without its ending."""
    yield lemma
    if lemma == word:
        return
    for ending, lemma_ending in ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 1:
            yield stem + lemma_ending
            if not lemma_ending and stem[-1] == stem[-2:-1]:
                yield stem[:-1]  # running
