"""A joint space in a plane: words and images (Kiros et al. 2014, Figure 5), phrases and regions (after Niu et al. 2017,
Figure 8)."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from PIL import Image
from sklearn.manifold import TSNE

SIDE = 72
"""Pixels of a photograph's longer side."""
INK, ACCENT = "#222222", "#b3261e"
GOLDEN = 0.381966
"""Of the colour circle, from one image to the next."""


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
    return _to_png(figure)


def scatter_in_plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """(n, 2), places of the rows of `vectors` (n, c) by t-SNE: what is near there is near here, and distances between
    groups mean little. Fewer than five rows have the places of `project_to_plane`."""
    if len(vectors) < 5:
        return project_to_plane(vectors)
    perplexity = min(30, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(vectors).astype(np.float64)


def draw_links(
    phrases: Sequence[str], phrase_places: np.ndarray, region_places: np.ndarray, links: np.ndarray, groups: np.ndarray
) -> bytes:
    """A PNG with each of the `phrases` written at its place (p, 2), a square at each region's (r, 2), and a line from
    each phrase to the region `links` (p,) that it speaks of, in the colour of its image `groups` (p,)."""
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["hsv"](groups * GOLDEN % 1)
    for text, place, region, colour in zip(phrases, phrase_places, region_places[links], colours, strict=True):
        axes.add_line(Line2D(*np.stack([place, region], axis=1), color=colour, linewidth=0.8))
        axes.scatter(*region, marker="s", s=22, color=[colour], edgecolors=INK, linewidths=0.4, zorder=5)
        axes.annotate(text, place, color=INK, fontsize=6.5, ha="center", va="center", zorder=10)
    axes.set(xticks=[], yticks=[], xlabel="t-SNE; squares are regions, colours images")
    axes.margins(0.05)
    axes.autoscale_view()
    return _to_png(figure)


def _to_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
