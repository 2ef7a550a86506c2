"""Test images with what models find for them and their nearest training images: Figures 3 and 4 of Gong et al. 2014."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.report.descriptions import templates
from pipeline.report.examples import ReportPicture


@dataclass(frozen=True)
class TransferCase:
    """A test image, the sentences that each model finds for it, best first, with whether each is its own, and the
    nearest images of each training set with their text."""

    what: ReportPicture
    answers: Mapping[str, Sequence[tuple[str, bool]]]
    nearest: Mapping[str, Sequence[tuple[ReportPicture, str]]]


def find_nearest(queries: np.ndarray, blocks: Iterable[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """(q, count) the image_ids of the nearest by Euclidean distance to each of `queries` (q, D), nearest first, among
    `blocks` of image_id (b,) and x (b, D), of which one is held at a time; fewer if there are fewer."""
    ids, distances = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0))
    for image_id, x in blocks:
        apart = (x.astype(float) ** 2).sum(axis=1) - 2.0 * (queries @ x.T)  # less |q|^2, the same for all
        ids = np.hstack([ids, np.broadcast_to(image_id, apart.shape)])
        distances = np.hstack([distances, apart])
        kept = np.argsort(distances, axis=1, kind="stable")[:, :count]
        ids, distances = (np.take_along_axis(part, kept, axis=1) for part in (ids, distances))
    return ids


def render(title: str, cases: Sequence[TransferCase]) -> str:
    """The page, which needs nothing else."""
    return templates().get_template("transfer.html").render(title=title, cases=cases)
