"""`align`: which words of a sentence describe which region of its image, by the embeddings of a multi-vector model."""

from pipeline.plan.needs import PYTHON, Need, per_described, process
from pipeline.run import Job, Run, Stage
from stages.commands import count

BLOCK = 1024
"""Images whose vectors are in memory at once."""
IMAGES, COLUMNS, TOP = 24, 6, 4


def align(
    run: Run, job: Job, model: str, split: str, images: int = IMAGES, columns: int = COLUMNS, top: int = TOP
) -> None:
    """Write each sentence's segments in a split with the boxes they match, one a line; draw some."""
    import numpy as np
    from tqdm import tqdm

    from pipeline.images.contact_sheet import draw_sheet, picture_spoken_of, to_png
    from pipeline.models.neural.alignment import align
    from pipeline.storage.alignments import write_alignments
    from stages.inputs import open_photographs, read_analyzer, read_words

    manifest, embeddings, pairs = run.manifest, run.embeddings(model, multi_vector=True), run.pairs(split)
    analyze = read_analyzer(run, embeddings)
    segments = []
    for block in tqdm(list(pairs.blocks(BLOCK)), desc=f"align {split}", unit="block", disable=None):
        seen = embeddings.read("images", block.image_id)
        sentences = embeddings.read("sentences", block.sentence_id)
        spoken = read_words(run, block.sentence_id, analyze, sentences)
        words, regions = sentences.split("vectors"), seen.split("vectors")
        found = align(words, [regions[owner] for owner in block.owners], run.config.align.beta)
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
    drawn = np.unique(pairs.owners, return_index=True)[1]  # the first sentence of each image
    drawn = pairs.sentence_id[drawn[np.unique(np.linspace(0, len(drawn) - 1, images).astype(int))]]
    texts = manifest.sentences["text"].take(drawn).to_pylist()
    photographs = open_photographs(run, manifest.sentence_images[drawn])
    pictures = []
    for sentence_id, text, (image, reason) in zip(drawn, texts, photographs, strict=True):
        own = [one for one in segments if one["sentence_id"] == sentence_id]
        boxes, said, scores = ([one[key] for one in own] for key in ("box", "words", "score"))
        pictures.append(picture_spoken_of(image, reason or text, boxes, list(map(" ".join, said)), scores, top))
    details = {"model": model, "split": split, "vocabulary": embeddings.vocabulary, "inputs": embeddings.inputs}
    sheet = to_png(draw_sheet(pictures, columns))
    write_alignments(job.path, segments, sheet, fingerprint=job.fingerprint, details=details)


STAGE = Stage(
    align,
    version=2,
    needs=Need(
        process(PYTHON + 1500, described=0.01),
        lambda s: 0.002 * s.sentences,
        per_described(300),
        "words of the split times regions",
    ),
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
    shown={"alignments": "Regions and alignments"},
    options=(
        count("--images", IMAGES, "Images drawn."),
        count("--columns", COLUMNS, "Images side by side."),
        count("--top", TOP, "Regions drawn in each."),
    ),
)
