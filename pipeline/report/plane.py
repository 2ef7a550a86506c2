"""Words and images of one joint space in a plane (seed 001, Figure 5)."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from PIL import Image

SIDE = 72
"""Pixels of a photograph's longer side."""
INK, ACCENT = "#222222", "#b3261e"


def project_to_plane(vectors: np.ndarray) -> np.ndarray:
    """(n, 2), the first two principal components of the rows of `vectors` (n, c).

    The sign of a component is that with which its largest coordinate is positive.
    """
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    u, values, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(vectors), 2))
    places[:, : min(2, len(values))] = (u * values)[:, :2]
    return places * np.sign(places[np.abs(places).argmax(axis=0), [0, 1]] + np.finfo(float).tiny)


def draw_plane(
    words: Sequence[str], word_places: np.ndarray, images: Sequence[Image.Image], image_places: np.ndarray
) -> bytes:
    """A PNG with each of the `words` written at its place (a, 2), and each of the `images` small at its own (b, 2)."""
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    axes = figure.subplots()
    for image, place in zip(images, image_places, strict=True):
        small = image.copy()
        small.thumbnail((SIDE, SIDE))
        axes.add_artist(AnnotationBbox(OffsetImage(np.asarray(small)), place, frameon=False))
    for word, place in zip(words, word_places, strict=True):
        axes.annotate(
            word, place, color=ACCENT, fontsize=15, fontweight="bold", ha="center", va="center", zorder=10,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    every = np.vstack([word_places, image_places])
    margin = 0.12 * np.maximum(np.ptp(every, axis=0), 1e-9)
    low, high = every.min(axis=0) - margin, every.max(axis=0) + margin
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
    axes.set_xlabel("first principal component", color=INK)
    axes.set_ylabel("second", color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
