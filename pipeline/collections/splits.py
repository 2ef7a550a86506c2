"""Which split each image is in, in one pass over all images in their order.

An image without a sentence is kept, too: in the split `weak` if it has a document and the collection names no other
split, else in `gallery`.
"""

import numpy as np

from pipeline.collections.records import DIVIDED

EVERY, MOST = 10, 1000  # every tenth image to be divided goes to dev and every tenth to test, up to MOST of each


class Division:
    """Train, dev or test in place of DIVIDED, for some images after the others.

    If the collection itself `names` images of dev or test, all others go to train. Else, of every ten usable images in
    order, the fifth goes to dev and the tenth to test, so that images added at the end change nothing.
    """

    def __init__(self, names: bool) -> None:
        self._names, self._seen = names, 0

    def __call__(self, splits: np.ndarray, usable: np.ndarray) -> np.ndarray:
        """(n,) the splits of the next images, whose `splits` are those that the collection gives them."""
        divided = splits == DIVIDED
        result = np.where(divided, "train", splits)
        if self._names:
            return result
        rows = np.flatnonzero(divided & usable)
        tens, place = np.divmod(np.arange(self._seen, self._seen + len(rows)), EVERY)
        for split, chosen in (("dev", EVERY // 2 - 1), ("test", EVERY - 1)):
            result[rows[(place == chosen) & (tens < MOST)]] = split
        self._seen += len(rows)
        return result


def place(
    division: Division, given: np.ndarray, usable: np.ndarray, said: np.ndarray, documented: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The splits (n,) of some images according to the collection, and the actual ones; `said` and `documented` say
    which have a sentence and a document."""
    asked = division(given, usable & said)
    silent = usable & ~said
    asked[silent & (given == DIVIDED)] = "gallery"
    asked[silent & (given == DIVIDED) & documented] = "weak"
    splits = asked.copy()
    splits[silent & ~((asked == "weak") & documented)] = "gallery"
    return asked, splits
