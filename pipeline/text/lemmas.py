"""Finds English lemmas for the words of a collection, and decides whether the collection is English."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

MIN_ENGLISH_SHARE = 0.6
"""Minimum share of the words of a collection that must be in the English dictionary, so that the collection counts as
English. The share is 0.99 for the captions of Flickr8k, 0.18 for German captions of the same photos, and 0.42 for 21
Dutch captions."""
ENDINGS = (("ies", "y"), ("ied", "y"), ("es", ""), ("es", "e"), ("s", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
           ("ing", ""))  # fmt: skip
"""Pairs of an English ending and the ending of the lemma that replaces it. They are the detachment rules of WordNet's
Morphy for verbs, and a rule for `ied`."""
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
"""English words that describe nothing in a photo by themselves. A query of such words alone counts as a query without a
searchable word (`KnownTerms.searches`). The full-text search drops these words if the query has other words. The longer
list of scikit-learn, which is used if text.stop_words is true, also has nouns and numbers, such as fire, side and
two."""


def find_lemma(word: str) -> str:
    """Return the lemma of a word by the English dictionary. The lemma of a word in lower case is in lower case too."""
    import simplemma

    lemma = simplemma.lemmatize(word, lang="en")
    return lemma.lower() if word.islower() else lemma


def is_english(counts: Mapping[str, int]) -> bool:
    """Return whether at least MIN_ENGLISH_SHARE of the words of a collection are English.

    `counts` has the number of sentences with each word, and a word counts once for each of these sentences. Words with
    other characters than letters are ignored. A collection without any word of letters counts as English.
    """
    import simplemma

    words = Counter({word: count for word, count in counts.items() if word.isalpha()})
    known = sum(count for word, count in words.items() if simplemma.is_known(word, lang="en"))
    return known >= MIN_ENGLISH_SHARE * words.total()


def choose_lemmas(counts: Mapping[str, int], stop_words: Collection[str], min_count: int) -> dict[str, str]:
    """Choose the term that represents each word of a collection.

    `counts` has the number of sentences with each word. Return a mapping from words to terms. Every term is a word of
    the collection or a stop word. If the lemma of some words is neither a word of the collection nor a stop word, the
    mapping also has this lemma as a key, with the same term as these words.

    The candidates for the lemma of a word are its lemma in the dictionary and the results of replacing its ending by
    ENDINGS. For `playing`, for example, the dictionary has the wrong lemma `playe`. The lemma is the first candidate
    that is a stop word or that at least `min_count` sentences have. If there is no such candidate, each candidate gets
    a point for every other word of the collection that has this candidate as its lemma in the dictionary, and a point
    if the candidate is a word of the collection itself. The lemma is the candidate with the most points.

    If a lemma is neither a word of the collection nor a stop word, the shortest word with this lemma becomes the term.
    If only `geese` occurs, for example, the query `goose` finds it.
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
    """Return a function from a word to its term.

    `terms` is the result of `choose_lemmas`. If a word is not a key of `terms`, the function looks up the candidates
    for its lemma (see `choose_lemmas`) in order. The term of the first candidate that is a key is the term of the word.
    If no candidate is a key, the term is the word's lemma in the dictionary.
    """

    def lemmatise(word: str) -> str:
        if (term := terms.get(word)) is not None:
            return term
        lemma = find_lemma(word)
        return next((terms[one] for one in _candidates(word, lemma) if one in terms), lemma)

    return lemmatise


def _candidates(word: str, lemma: str) -> Iterator[str]:
    """Yield the candidates for the lemma of `word`. The first candidate is `lemma`, the lemma of the word in the
    dictionary.

    If `lemma` differs from `word`, the word is inflected. The results of replacing its ending by ENDINGS then follow.
    If an ending is removed without a replacement, and the rest ends with a doubled letter as in `running`, the rest
    without its last letter follows too.
    """
    yield lemma
    if lemma == word:
        return
    for ending, lemma_ending in ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 1:
            yield stem + lemma_ending
            if not lemma_ending and stem[-1] == stem[-2:-1]:
                yield stem[:-1]  # This undoes a doubled consonant, as in `running`.
