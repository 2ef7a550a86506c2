"""`align`: which words of a sentence describe which region of its image, by a row of embeddings."""

from pathlib import Path

import click

from stages import options

BLOCK = 1024
"""Images whose vectors are in memory at once."""


@click.command("align")
@options.manifest
@options.embeddings
@click.option("--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What the row's tokens are of.")
@click.option("--split", required=True, help="Split of the manifest whose sentences are aligned.")
@click.option("--images", "count", type=click.IntRange(min=1), default=24, show_default=True, help="Images drawn.")
@click.option("--columns", type=click.IntRange(min=1), default=6, show_default=True, help="Images side by side.")
@click.option("--top", type=click.IntRange(min=1), default=4, show_default=True, help="Regions drawn in each.")
@options.config
@options.output("file", "The segments, a file of JSON lines; a sheet of some lies beside it, with the ending .png.")
def command(
    manifest_folder: Path,
    embeddings_folder: Path,
    vocabulary_path: Path,
    split: str,
    count: int,
    columns: int,
    top: int,
    config_path: Path | None,
    output: Path,
) -> None:
    """Write the segments of every sentence of a split, one a line, with their boxes in the image; draw some."""
    import numpy as np
    from tqdm import tqdm

    from pipeline import config
    from pipeline.images.contact_sheet import draw_sheet, picture_spoken_of, to_png
    from pipeline.models.neural.alignment import align
    from pipeline.storage.alignments import write_alignments
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.places import require_output
    from stages.inputs import open_photographs, read_own_vocabulary, read_words

    settings = config.load(config_path)
    manifest = Manifest(manifest_folder)
    embeddings, pairs = Embeddings(manifest, embeddings_folder, multi_vector=True), split_pairs(manifest, split)
    vocabulary = read_own_vocabulary(vocabulary_path, embeddings)
    about = {"model": embeddings.row, "split": split}
    require_output(output, about)
    segments = []
    for block in tqdm(list(pairs.blocks(BLOCK)), desc=f"align {split}", unit="block", disable=None):
        images = embeddings.read("images", block.image_id)
        sentences = embeddings.read("sentences", block.sentence_id)
        spoken = read_words(manifest, block.sentence_id, vocabulary, vocabulary_path, sentences)
        words, regions = sentences.split("vectors"), images.split("vectors")
        found = align(words, [regions[owner] for owner in block.owners], settings.align.beta)
        for sentence_id, owner, own_words, own in zip(block.sentence_id, block.owners, spoken, found, strict=True):
            segments += [
                {
                    "sentence_id": int(sentence_id),
                    "image_id": int(block.image_id[owner]),
                    "words": own_words[one.first : one.last],
                    "box": images.boxes[images.offsets[owner] + one.region].tolist(),
                    "score": one.score,
                }
                for one in own
            ]
    details = {**about, "vocabulary": embeddings.vocabulary, "inputs": embeddings.inputs}
    digest = fingerprint("alignments", 1, [about, settings.align.beta], embeddings.inputs)
    drawn = np.unique(pairs.owners, return_index=True)[1]  # the first sentence of each image
    drawn = pairs.sentence_id[drawn[np.unique(np.linspace(0, len(drawn) - 1, count).astype(int))]]
    texts = manifest.sentences["text"].take(drawn).to_pylist()
    photographs = open_photographs(manifest, manifest.sentence_images[drawn], settings)
    pictures = []
    for sentence_id, text, (image, reason) in zip(drawn, texts, photographs, strict=True):
        own = [one for one in segments if one["sentence_id"] == sentence_id]
        boxes, said, scores = ([one[key] for one in own] for key in ("box", "words", "score"))
        pictures.append(picture_spoken_of(image, reason or text, boxes, list(map(" ".join, said)), scores, top))
    write_alignments(output, segments, to_png(draw_sheet(pictures, columns)), fingerprint=digest, details=details)
