"""Images for the report: contact sheets of regions, alignments and phrases, and a plane of phrases and regions."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image
from sklearn.manifold import TSNE

from pipeline.compute.multivectors import ScoreRule, several_vectors_each
from pipeline.images.preprocess import Photograph
from pipeline.index.exact import evenly_spaced
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.metrics.phrases import best_within
from pipeline.models.neural.alignment import align, align_alone, longest_vectors, word_magnitudes
from pipeline.report.photographs import GOLDEN, ReportPicture, SheetPicture, draw_sheet, drawing, picture_with_texts
from pipeline.run import Run
from pipeline.run.reading.photos import open_photographs
from pipeline.run.reading.texts import read_analyzer, read_words
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.regions import PhraseVectors, RegionShard

BLOCK_IMAGES = 1024
"""Number of images whose vectors are in memory at once."""
SHEET_COLUMNS = 6
"""Number of images in a row of a contact sheet."""
SHEET_IMAGES = 24
"""Largest number of images on a contact sheet."""
ALIGNED_IMAGES = 12
"""Largest number of images on the contact sheet of alignments. The sheet shows each image twice."""
SHOWN_REGIONS = 5
"""Largest number of regions that are drawn in an image."""
PLANE_SENTENCES = 60
"""Largest number of sentences whose phrases are drawn in the plane."""
MIN_WORD_COUNT = 5
"""Smallest number of occurrences of a word in the table of magnitudes, which lists words by the length of their
vectors. Rarer words are left out."""
LISTED_WORDS = 20
"""Number of words with the longest vectors, and with the shortest vectors, in the table of magnitudes."""
MIN_PLANE_POINTS = 5
"""Smallest number of points in the plane that t-SNE draws. A phrase or a region is one point. If there are fewer
points, no plane is drawn."""
INK = "#222222"
"""Colour of text and outlines in the plane."""


def draw_regions(run: Run, encoder: str) -> ReportPicture:
    """Draw a contact sheet of evenly spaced images of the first shard, with the regions of `encoder` that have the
    highest scores."""
    regions = RegionShard(run.layout.regions(encoder).shard(0))
    rows = evenly_spaced(regions.rows, SHEET_IMAGES)
    image_id, best = regions.image_id[rows], slice(1, 1 + SHOWN_REGIONS)  # The region 0 is the whole image.
    names = [Photograph.from_row(row).name for row in run.manifest.pick(image_id)]

    def pictures() -> Iterator[SheetPicture]:
        for row, name, (image, reason) in zip(rows, names, open_photographs(run, image_id), strict=True):
            block = regions.packed(np.array([row]))
            yield SheetPicture(image, block.boxes[best], block.scores[best], reason or name)

    return drawing(f"{encoder}: the best regions and their scores", draw_sheet(pictures(), SHEET_COLUMNS))


def draw_alignments(run: Run, model: str, split: str) -> tuple[list[ReportPicture], dict[str, Any]]:
    """Draw the alignments of a multi-vector model, after Karpathy and Fei-Fei (2015).

    Return two contact sheets and a table. The first sheet shows some images of the split. Each image is paired with the
    sentence of the split that has the highest score with this image, and is drawn twice. The first drawing shows each
    word at the region with which it has the highest score. The second drawing shows the segments of words that the
    alignment assigns to one region each (Figure 5). A drawing has at most SHOWN_REGIONS regions. The second sheet shows
    the regions with the longest vectors (Figure 8). The table lists the words with the longest and the shortest vectors
    (Table 4).
    """
    embeddings = run.embeddings(model)
    pairs = run.pairs(split)
    analyze = read_analyzer(run)
    shown = pairs.image_id[evenly_spaced(len(pairs.image_id), ALIGNED_IMAGES)]
    queries = several_vectors_each(embeddings.read("images", shown))
    rule = embeddings.comparison
    assert isinstance(rule, ScoreRule)
    best = np.full(len(shown), -np.inf)
    retrieved = np.zeros_like(shown)
    words: list[str] = []
    lengths: list[np.ndarray] = []
    regions: list[tuple[int, np.ndarray, float]] = []
    for block in pairs.blocks(BLOCK_IMAGES):
        images = several_vectors_each(embeddings.read("images", block.image_id))
        sentences = several_vectors_each(embeddings.read("sentences", block.sentence_id))
        for sentence in read_words(run, block.sentence_id, analyze):
            words += sentence
        lengths.append(np.linalg.norm(sentences.array, axis=1))
        for row in longest_vectors(images.array, images.owners, SHEET_IMAGES):
            image_id = int(block.image_id[images.owners[row]])
            regions.append((image_id, images.box_array[row], float(np.linalg.norm(images.array[row]))))
        scores = multivector_scores(queries, sentences, rule).numpy()
        better = scores.max(axis=1) > best
        best[better] = scores.max(axis=1)[better]
        retrieved[better] = block.sentence_id[scores.argmax(axis=1)[better]]
    ranked = word_magnitudes(words, np.concatenate(lengths), MIN_WORD_COUNT)
    regions = sorted(regions, key=lambda region: -region[2])[:SHEET_IMAGES]
    photographs = open_photographs(run, [image_id for image_id, _, _ in regions])
    longest = (
        SheetPicture(image, box[None], np.array([length]), reason or f"{length:.2f}")
        for (_, box, length), (image, reason) in zip(regions, photographs, strict=True)
    )
    sheets = {
        "words at their best regions, then segments": _aligned(run, embeddings, shown, retrieved),
        "the regions with the longest vectors": longest,
    }
    drawn = [
        drawing(f"{model}, {split}: {name}", draw_sheet(pictures, SHEET_COLUMNS)) for name, pictures in sheets.items()
    ]
    magnitudes = {"highest": ranked[::-1][:LISTED_WORDS], "lowest": ranked[:LISTED_WORDS]}
    return drawn, {"model": model, "split": split, **magnitudes}


def _aligned(run: Run, embeddings: Embeddings, image_id: np.ndarray, sentence_id: np.ndarray) -> Iterator[SheetPicture]:
    images = several_vectors_each(embeddings.read("images", image_id))
    sentences = several_vectors_each(embeddings.read("sentences", sentence_id))
    spoken = read_words(run, sentence_id, read_analyzer(run))
    words = sentences.split("vectors")
    regions = images.split("vectors")
    chains = [align(*pair, run.config.align.beta) for pair in zip(words, regions, strict=True)]
    texts = run.manifest.sentences["text"].take(sentence_id).to_pylist()
    for number, (chain, (image, reason)) in enumerate(zip(chains, open_photographs(run, image_id), strict=True)):
        boxes = images.between(number, number + 1).box_array
        for name, segments in (("words", align_alone(words[number], regions[number])), ("segments", chain)):
            labels = [f"{' '.join(spoken[number][part.first : part.last])} {part.score:.1f}" for part in segments]
            scores = [part.score for part in segments]
            line = reason or f"{name}: {texts[number]}"
            yield picture_with_texts(
                image, line, boxes[[part.region for part in segments]], labels, scores, SHOWN_REGIONS
            )


def draw_phrases(run: Run, model: str, split: str) -> list[ReportPicture]:
    """Draw noun phrases of some images, each phrase at the region with the highest score.

    The phrases of an image are from the first of its sentences that has a noun phrase. Return a contact sheet of the
    images, and a plane of phrases and regions (after Niu et al. 2017, Figure 8). The plane is left out if it would have
    fewer than MIN_PLANE_POINTS points. The list is empty if no image with phrases has regions.
    """
    manifest = run.manifest
    stored = PhraseVectors(run.layout.phrases(model, split).path)
    parts = np.flatnonzero(stored.regions["number"].to_numpy() > 0)
    owners, sentences = (stored.phrases[name].to_numpy() for name in ("image_id", "sentence_id"))
    region_images = stored.regions["image_id"].to_numpy()[parts]
    region_vectors = stored.region_vectors[parts]
    best, scores = best_within(owners, stored.phrase_vectors, region_images, region_vectors)
    first = np.unique(owners, return_index=True)[1]
    spoken = np.flatnonzero(np.isin(sentences, sentences[first]) & (best >= 0))
    if not len(spoken):
        return []
    texts = np.array(stored.phrases["text"].to_pylist(), object)
    every = np.unique(sentences[spoken])
    shown = every[evenly_spaced(len(every), SHEET_IMAGES)]
    lines = manifest.sentences["text"].take(shown).to_pylist()

    def pictures() -> Iterator[SheetPicture]:
        photographs = open_photographs(run, manifest.sentence_images[shown])
        for sentence_id, line, (image, reason) in zip(shown, lines, photographs, strict=True):
            rows = spoken[sentences[spoken] == sentence_id]
            boxes = stored.boxes[parts[best[rows]]]
            yield picture_with_texts(
                image, reason or line, boxes, texts[rows].tolist(), scores[rows].tolist(), SHOWN_REGIONS
            )

    drawn = [drawing(f"{model}, {split}: phrases at their regions", draw_sheet(pictures(), SHEET_COLUMNS))]
    rows = spoken[np.isin(sentences[spoken], every[evenly_spaced(len(every), PLANE_SENTENCES)])]
    regions, links = np.unique(best[rows], return_inverse=True)
    vectors = np.concatenate([stored.phrase_vectors[rows], region_vectors[regions]])
    if len(vectors) >= MIN_PLANE_POINTS:
        groups = np.unique(owners[rows], return_inverse=True)[1]
        plane = _draw_plane(vectors, texts[rows], links, groups, run.config.seed)
        drawn.append(drawing(f"{model}, {split}: phrases and regions in a plane", plane))
    return drawn


def _draw_plane(
    vectors: np.ndarray, texts: np.ndarray, links: np.ndarray, groups: np.ndarray, seed: int
) -> Image.Image:
    """Draw p phrases and r regions in a plane by t-SNE (after Niu et al. 2017, Figure 8).

    `vectors` (p + r, c) has the vectors of the phrases, then of the regions. t-SNE keeps neighbours together, but the
    distances between groups of points are unreliable. `texts` (p,) are the phrases. `links` (p,) has for each phrase
    the number of the region to which a line is drawn, and `groups` (p,) the number of the image, which decides the
    colour of the phrase and the region.
    """
    perplexity = min(30, (len(vectors) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(vectors).astype(np.float64)
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["hsv"](groups * GOLDEN % 1)
    for text, point, region, colour in zip(texts, points, points[len(texts) + links], colours, strict=False):
        axes.plot(*zip(point, region, strict=True), color=colour, linewidth=0.8)
        axes.scatter(*region, marker="s", s=22, color=[colour], edgecolors=INK, linewidths=0.4, zorder=5)
        axes.annotate(text, point, color=INK, fontsize=6.5, ha="center", va="center", zorder=10)
    axes.set(xticks=[], yticks=[], xlabel="t-SNE (squares are regions, and each image has one colour)")
    axes.margins(0.05)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return Image.open(buffer)
