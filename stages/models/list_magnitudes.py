"""`list-magnitudes`: the words and regions with the longest and shortest vectors, by a row of embeddings."""

from pathlib import Path

import click

from stages import options


@click.command("list-magnitudes")
@options.manifest
@options.embeddings
@click.option("--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What the row's tokens are of.")
@click.option("--split", required=True, help="Split of the manifest that is looked at.")
@click.option("--words", "listed", type=click.IntRange(min=1), default=40, show_default=True, help="Words at each end.")
@click.option("--images", "count", type=click.IntRange(min=1), default=24, show_default=True, help="Regions listed.")
@click.option("--columns", type=click.IntRange(min=1), default=6, show_default=True, help="Images side by side.")
@options.config
@options.output("file", "The tables, a JSON file; a sheet of the regions lies beside it, with the ending .png.")
def command(
    manifest_folder: Path,
    embeddings_folder: Path,
    vocabulary_path: Path,
    split: str,
    listed: int,
    count: int,
    columns: int,
    config_path: Path | None,
    output: Path,
) -> None:
    """List words by the mean length of their vectors, and the regions with the longest ones; draw these."""
    import numpy as np

    from pipeline import config
    from pipeline.images.contact_sheet import Picture, draw_sheet, to_png
    from pipeline.models.neural.alignment import longest_vectors, word_magnitudes
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.places import require_output
    from stages.inputs import open_photographs, read_own_vocabulary, read_words

    settings = config.load(config_path)
    manifest = Manifest(manifest_folder)
    embeddings, pairs = Embeddings(manifest, embeddings_folder, multi_vector=True), split_pairs(manifest, split)
    require_output(output, {"model": embeddings.row, "split": split})
    vocabulary = read_own_vocabulary(vocabulary_path, embeddings)
    sentences = embeddings.read("sentences", pairs.sentence_id)
    spoken = read_words(manifest, pairs.sentence_id, vocabulary, vocabulary_path, sentences)
    words = [word for own in spoken for word in own]
    terms, ids = np.unique(words, return_inverse=True)
    table = word_magnitudes(sentences.vectors, ids, settings.align.least_count)
    images = embeddings.read("images", pairs.image_id)
    owners = images.owners
    rows = longest_vectors(images.vectors, owners, count)

    columns_of_words = (terms[table.words].tolist(), table.lengths.tolist(), table.counts.tolist())
    ranked = [
        {"word": word, "magnitude": length, "count": places}
        for word, length, places in zip(*columns_of_words, strict=True)
    ]
    regions = [
        {"image_id": int(pairs.image_id[owners[row]]), "box": images.boxes[row].tolist(), "magnitude": float(length)}
        for row, length in zip(rows, np.linalg.norm(images.vectors[rows], axis=1), strict=True)
    ]
    about = {"model": embeddings.row, "split": split}
    value = {
        **about,
        "lowest": ranked[:listed],
        "highest": ranked[::-1][:listed],
        "regions": regions,
        "inputs": embeddings.inputs,
        "fingerprint": fingerprint("magnitudes", 1, [about, settings.align.least_count], embeddings.inputs),
    }
    photographs = open_photographs(manifest, pairs.image_id[owners[rows]], settings)
    pictures = [
        Picture(image, np.array([one["box"]]), np.array([one["magnitude"]]), reason or f"{one['magnitude']:.2f}")
        for one, (image, reason) in zip(regions, photographs, strict=True)
    ]
    publish_record(output, value, {output.with_suffix(".png").name: to_png(draw_sheet(pictures, columns))})
