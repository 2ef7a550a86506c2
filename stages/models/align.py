"""`align`: which words of a sentence describe which region of its image, by the embeddings of a multi-vector model."""

from typing import TYPE_CHECKING

from pipeline.run import Job, Run, Stage
from stages.commands import count

if TYPE_CHECKING:
    import numpy as np

    from pipeline.images.contact_sheet import SheetPicture
    from pipeline.multivectors import MultiVectors

BLOCK = 1024
"""Images whose vectors are in memory at once."""
IMAGES, COLUMNS, TOP = 12, 6, 4


def align(
    run: Run, job: Job, model: str, split: str, images: int = IMAGES, columns: int = COLUMNS, top: int = TOP
) -> None:
    """Write each sentence's segments in a split with the boxes they match, one a line; draw some images with the best
    sentence of the split, each word at its own best region and then in segments."""
    import numpy as np
    from tqdm import tqdm

    from pipeline.images.contact_sheet import draw_sheet, to_png
    from pipeline.metrics.multivector_scores import multivector_scores
    from pipeline.models.neural.alignment import align
    from pipeline.storage.alignments import write_alignments
    from stages.inputs import read_analyzer, read_words

    embeddings, pairs, beta = run.embeddings(model), run.pairs(split), run.config.align.beta
    analyze = read_analyzer(run)
    shown = pairs.image_id[np.unique(np.linspace(0, len(pairs.image_id) - 1, images).astype(int))]
    queries, best, retrieved = embeddings.read("images", shown), np.full(len(shown), -np.inf), np.zeros_like(shown)
    segments = []
    for block in tqdm(list(pairs.blocks(BLOCK)), desc=f"align {split}", unit="block", disable=None):
        seen = embeddings.read("images", block.image_id)
        sentences = embeddings.read("sentences", block.sentence_id)
        spoken = read_words(run, block.sentence_id, analyze, sentences)
        words, regions = sentences.split("vectors"), seen.split("vectors")
        found = align(words, [regions[owner] for owner in block.owners], beta)
        for sentence_id, owner, own_words, own in zip(block.sentence_id, block.owners, spoken, found, strict=True):
            segments += [
                {
                    "sentence_id": int(sentence_id),
                    "image_id": int(block.image_id[owner]),
                    "words": own_words[one.first : one.last],
                    "box": seen.boxes[seen.offsets[owner] + one.region].tolist(),
                    "score": one.score,
                }
                for one in own
            ]
        scores = multivector_scores(queries, sentences, embeddings.comparison).numpy()
        better = scores.max(axis=1) > best
        best[better], retrieved[better] = scores.max(axis=1)[better], block.sentence_id[scores.argmax(axis=1)[better]]
    sentences = embeddings.read("sentences", retrieved)
    pictures = _draw(run, shown, queries, retrieved, sentences, read_words(run, retrieved, analyze, sentences), top)
    details = {"model": model, "split": split}
    sheet = to_png(draw_sheet(pictures, columns))
    write_alignments(job.path, segments, sheet, provenance=job.provenance, details=details)


def _draw(
    run: Run, image_id: "np.ndarray", seen: "MultiVectors", sentence_id: "np.ndarray", sentences: "MultiVectors",
    spoken: "list[list[str]]", top: int,
) -> "list[SheetPicture]":  # fmt: skip
    """Two pictures of each image with its best sentence: every word at its own best region, with the product, and the
    segments of the chain (Karpathy and Fei-Fei 2015, Figure 5)."""
    from pipeline.images.contact_sheet import picture_spoken_of
    from pipeline.models.neural.alignment import align, align_alone
    from stages.inputs import open_photographs

    words, regions = sentences.split("vectors"), seen.split("vectors")
    chains = align(words, regions, run.config.align.beta)
    texts = run.manifest.sentences["text"].take(sentence_id).to_pylist()
    pictures = []
    for number, (chain, (image, reason)) in enumerate(zip(chains, open_photographs(run, image_id), strict=True)):
        boxes, own = seen.between(number, number + 1).boxes, spoken[number]
        for named, found in (("words", align_alone(words[number], regions[number])), ("segments", chain)):
            said = [f"{' '.join(own[one.first : one.last])} {one.score:.1f}" for one in found]
            line = reason or f"{named}: {texts[number]}"
            drawn = boxes[[one.region for one in found]], said, [one.score for one in found]
            pictures.append(picture_spoken_of(image, line, *drawn, top))
    return pictures


STAGE = Stage(
    align,
    version=3,
    names=("model", "split"),
    choices=lambda config: config.aligned_splits(),
    wanted=lambda config: config.aligned_splits(config.align.splits),
    keys=lambda config, model, split: {"beta": config.align.beta},
    reads=lambda config, layout, model, split: {
        "manifest": layout.manifest,
        "embeddings": layout.embeddings(model),
        "vocabulary": layout.token_vocabulary,
    },
    writes=lambda layout, model, split: (layout.alignments(model, split), layout.alignment_sheet(model, split)),
    options=(
        count("--images", IMAGES, "Images drawn, each twice."),
        count("--columns", COLUMNS, "Images side by side."),
        count("--top", TOP, "Regions drawn in each."),
    ),
)
