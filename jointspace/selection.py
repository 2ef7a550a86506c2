"""Choosing the images to caption first."""

from jointspace.arguments import Views, to_count, to_dense_views
from pipeline.models.linear.selection import ChosenPhotos, choose_photos


def suggest(image_vectors: Views, count: int = 100, *, seed: int = 0) -> ChosenPhotos:
    """Choose `count` of n images whose captions teach `fit` the most, by their vectors (n, D) alone.

    The vectors are an array, or a mapping of encoder names to arrays. The result has the row numbers of the images to
    caption: `train`, the most useful first, and for `dev` and `test` a tenth each, which are drawn with `seed`.

    >>> chosen = suggest(np.random.default_rng(0).normal(size=(200, 16)), 50)
    >>> [len(rows) for rows in chosen]
    [40, 5, 5]

    Raises InputError if a vector is not finite, or if the encoders have different numbers of vectors. Raises UsageError
    if `count` is less than 10 or greater than n.
    """
    views = to_dense_views(image_vectors, "image", None)
    return choose_photos(views, to_count(count, "count"), to_count(seed, "seed", least=0))
