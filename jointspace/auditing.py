"""Finding wrong captions in a run or in precomputed vectors, and choosing the images to caption first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jointspace.arguments import Block, Views, row_count, to_count, to_dense_views, to_strings, to_views
from jointspace.space import Distinct, to_owners
from pipeline.collections.formats.vectors import nameless
from pipeline.compute import runtime
from pipeline.errors import InputError, UsageError
from pipeline.images.opening import ImageLimits
from pipeline.index.search import MAX_DRAWN
from pipeline.models.linear.cross_fit import MIN_PHOTOS, TERMS, Scores, cross_fit, draw_folds
from pipeline.models.linear.selection import ChosenPhotos, choose_photos
from pipeline.models.linear.sets import Restriction
from pipeline.models.linear.views import ImageView, TextView
from pipeline.report.photographs import figure
from pipeline.run import Run
from pipeline.run.runner import run_stage
from pipeline.storage.decisions import latest, pair_of, read_decisions
from pipeline.storage.pairs import SplitRows
from pipeline.storage.sources import ImageSources
from pipeline.storage.tables import Row, read_table
from stages.operations.audit import BLOCK_ROWS, worst_captions
from stages.operations.audit import audit as audit_stage

STEPS = ("l2",)
"""Steps that normalise the image vectors of each encoder before an audit of vectors: scaling to unit length."""


class Findings(list[dict[str, Any]]):
    """The list of findings that `audit` returns, with one dictionary per finding.

    A notebook shows the first 50 findings with thumbnails of the photos if a run was audited. If vectors were audited,
    it shows a plain list.
    """

    _draw: Callable[[Row], str] | None = None

    def _repr_html_(self) -> str | None:
        return "".join(map(self._draw, self[:MAX_DRAWN])) if self._draw else None


def audit(
    run: str | Path | None = None,
    *,
    image_vectors: Views | None = None,
    text_vectors: Views | None = None,
    owners: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    seed: int = 0,
) -> Findings:
    """Find captions that are probably wrong, and near-duplicates in a run.

    Pass either the folder of a `run`, which is audited as by the command `jointspace audit`, or image vectors (n, D),
    text vectors (m, d) and `owners`. The function `fit` describes the forms of the vectors and of `owners`. Rows with
    equal image vectors are one image, which has the number of the first of these rows. Float32 arrays, such as
    memory-mapped files, are read in blocks and not copied. `names` (n,) are the names of the images (default: the row
    numbers), and `texts` (m,) are the captions (default: `NAME#k` for caption k of the image NAME). `seed` divides the
    images into folds. If a `run` is passed, `owners`, `names`, `texts` and `seed` are ignored. Near-duplicates come
    first, then findings about all captions of an image, and then findings about single captions. Each group is sorted,
    the most suspicious first.

    Each finding has these columns:

    - `kind`: `caption` (a single caption), `captions` (all captions of a photo), and in a run `copy` (near-duplicates)
      or `leak` (near-duplicates in different splits).
    - `image`, `image_id`: the name of the photo, and its row in the manifest or in `image_vectors`.
    - `captions`, `sentence_id`: the captions in question, and the row of a single caption, or -1 for all captions.
    - `rather`: the caption of another photo that fits this photo best.
    - `rank`, `rivals`: the photo is compared with the captions in question and with `rivals` other captions. `rank` is
      the rank of the captions in question, from 1.
    - `score`, `threshold`: a lower score is more suspicious. Captions with a score up to `threshold` are probably
      wrong. Further captions are listed because they have the lowest scores. For near-duplicates, the score is the
      correlation of the two images, which is at least `threshold`.
    - `false_discovery_rate`: the estimated share of right captions in a list of the findings of this kind with the
      lowest scores. It is the least share over all such lists that include the finding.
    - `reliable`: whether this share is at most 10 percent. With fewer than 1,000 images, the true share can be larger.
    - `split`, `other_image`, `other_image_id`, `other_split`: in a run, the split of the photo, and the near-duplicate.

    A column that has no meaning for a finding is None in a run, and is missing otherwise.

    Captions of a run that were decided with `jointspace serve --review` are left out. Near-duplicates always stay.
    `pandas.DataFrame(findings)` and `pyarrow.Table.from_pylist(findings)` make tables of the findings.

    >>> rng = np.random.default_rng(0)
    >>> meaning = rng.normal(size=(500, 8))
    >>> images, texts = meaning @ rng.normal(size=(8, 50)), meaning @ rng.normal(size=(8, 30))
    >>> texts[[3, 4]] = texts[[4, 3]]
    >>> sorted(finding["image"] for finding in audit(image_vectors=images, text_vectors=texts)[:2])
    ['3', '4']

    Raises UsageError unless either `run` or both kinds of vectors are passed. Raises InputError if the vectors, the
    `owners` or the numbers of names and texts are wrong, and if fewer than 100 images with different vectors have a
    text. If a run has fewer than 100 captioned photos, its captions are not checked, and no error is raised.
    """
    if (run is None) == (image_vectors is None) or (image_vectors is None) != (text_vectors is None):
        raise UsageError(
            "An audit needs a run or vectors, but not both. Pass either the folder of a run, or image_vectors and"
            " text_vectors."
        )
    if image_vectors is None or text_vectors is None:
        return _audit_run(Run(Path(str(run))))
    x = to_dense_views(image_vectors, "image", None)
    y = to_views(text_vectors, "text", None)
    n, m = (row_count(next(iter(blocks.values()))) for blocks in (x, y))
    distinct = Distinct.group_rows(x)
    owners = distinct.first[distinct.groups][to_owners(owners, n, m)]
    names = to_strings(map(str, range(n)) if names is None else names, "names", n)
    texts = nameless([names[row] for row in owners]) if texts is None else to_strings(texts, "texts", m)
    if (described := len(np.unique(owners))) < MIN_PHOTOS:
        raise InputError(
            f"Only {described} images have a text, but an audit needs at least {MIN_PHOTOS} such images. Images with"
            " equal vectors are counted once. Pass more images with texts."
        )
    findings = Findings(worst_captions(*_score(x, y, owners, to_count(seed, "seed", least=0))))
    for finding in findings:
        image_id = finding["image_id"]
        text_id = finding["sentence_id"]
        own = np.flatnonzero(owners == image_id).tolist() if text_id < 0 else [text_id]
        about = {"image": names[image_id], "captions": [texts[row] for row in own], "rather": texts[finding["rather"]]}
        finding.update(about)
    return findings


def _score(x: Mapping[str, np.ndarray], y: Mapping[str, Block], owners: np.ndarray, seed: int) -> tuple[Scores, Scores]:
    """Score each image with all of its texts, and each single text, by cross-fitting.

    Returns the scores of the images and the scores of the texts. `x` and `y` map encoders to the vectors of images (n,
    D) and of texts (m, d). `owners` (m,) has the row of the image of each text. No two images that have texts may have
    equal vectors. `seed` divides the images into folds.
    """
    n = len(next(iter(x.values())))
    folds = draw_folds(np.empty((0, 2), np.int64), n, seed)
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    restriction = Restriction(tuple(x), dict.fromkeys(y, 1.0), TERMS)

    def blocks(fold: int) -> Iterator[SplitRows]:
        for start in range(0, n, BLOCK_ROWS):
            first, last = np.searchsorted(ordered, [start, start + BLOCK_ROWS])
            chosen = order[first:last][folds[ordered[first:last]] == fold]
            if len(chosen):
                image_id, own = np.unique(owners[chosen], return_inverse=True)
                images = {name: block[image_id] for name, block in x.items()}
                yield SplitRows(
                    image_id, images, restriction.cut({name: block[chosen] for name, block in y.items()}), chosen, own
                )

    view = ImageView(tuple(x), tuple(block.shape[1] for block in x.values()), STEPS)
    return cross_fit(blocks, view, restriction.text(TextView.from_vectors(y)), runtime.threads())


def _audit_run(run: Run) -> Findings:
    run_stage(run, audit_stage)
    table, _ = read_table(run.layout.audit.path, "audit")
    decisions = latest(read_decisions(run.layout.decisions))
    findings = Findings(finding for finding in table.to_pylist() if pair_of(finding) not in decisions)
    source = ImageSources([Path(run.photographs.root)], run.config.collection.follow_links)
    limits = ImageLimits.from_settings(run.config.collection)

    def draw_photos(finding: Row) -> str:
        pairs = [("image", "image_id"), ("other_image", "other_image_id")]
        lines = [f"{finding['kind']}, score {finding['score']:.3f}", *(finding["captions"] or ())]
        shown = [(finding[name], finding[key]) for name, key in pairs if finding[name]]
        rows = run.manifest.pick([image_id for _, image_id in shown])
        return "".join(
            figure(source.read, limits, row, name, *lines) for (name, _), row in zip(shown, rows, strict=True)
        )

    findings._draw = draw_photos
    return findings


def suggest(image_vectors: Views, count: int = 100, *, seed: int = 0) -> ChosenPhotos:
    """Choose `count` of n images whose captions teach `fit` the most, by their vectors (n, D) alone.

    The vectors are an array, or a mapping of encoder names to arrays. The result has three lists of row numbers of the
    images to caption. `train` has the most useful images, the most useful first. `dev` and `test` have images that are
    drawn at random with `seed`. The length of each of these two lists is a tenth of `count`, rounded down.

    >>> chosen = suggest(np.random.default_rng(0).normal(size=(200, 16)), 50)
    >>> [len(rows) for rows in chosen]
    [40, 5, 5]

    Raises InputError if a vector is not finite, or if the encoders have different numbers of vectors. Raises UsageError
    if `count` is less than 10 or greater than n.
    """
    views = to_dense_views(image_vectors, "image", None)
    return choose_photos(views, to_count(count, "count"), to_count(seed, "seed", least=0))
