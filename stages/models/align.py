"""`align`: which words of a sentence describe which region of its image, by the embeddings of a multi-vector model."""

from pipeline.run import Job, Run, Stage
from stages.inputs import named

BLOCK = 1024
"""Images whose vectors are in memory at once."""


def align(run: Run, job: Job, model: str, split: str) -> None:
    """Write the segments of each caption in a split and the boxes they match, one caption per line."""
    from tqdm import tqdm

    from pipeline.models.neural.alignment import align
    from pipeline.storage.records import write_alignments
    from stages.texts import read_analyzer, read_words

    embeddings, pairs, beta = run.embeddings(model), run.pairs(split), run.config.align.beta
    analyze = read_analyzer(run)
    lines = []
    for block in tqdm(list(pairs.blocks(BLOCK)), desc=f"align {split}", unit="block", disable=None):
        images = embeddings.read("images", block.image_id)
        sentences = embeddings.read("sentences", block.sentence_id)
        spoken = read_words(run, block.sentence_id, analyze, sentences)
        words, regions = sentences.split("vectors"), images.split("vectors")
        for number, (sentence_id, owner) in enumerate(zip(block.sentence_id, block.owners, strict=True)):
            lines += [
                {
                    "sentence_id": int(sentence_id),
                    "image_id": int(block.image_id[owner]),
                    "words": spoken[number][segment.first : segment.last],
                    "box": images.boxes[images.offsets[owner] + segment.region].tolist(),
                    "score": segment.score,
                }
                for segment in align(words[number], regions[owner], beta)
            ]
    write_alignments(job.path, lines, provenance=job.provenance, details={"model": model, "split": split})


STAGE = Stage(
    align,
    version=4,
    names=("model", "split"),
    choices=lambda config: config.aligned_splits(),
    wanted=lambda config: config.aligned_splits(config.align.splits),
    keys=lambda config, model, split: {"beta": config.align.beta},
    reads=lambda config, layout, model, split: named(
        layout.manifest, layout.embeddings(model), layout.token_vocabulary
    ),
    writes=lambda layout, model, split: layout.alignments(model, split),
)
