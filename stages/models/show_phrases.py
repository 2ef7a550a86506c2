"""`show-phrases`: the region that each noun phrase speaks of, on photographs and in a plane."""

from pathlib import Path

import click

from stages import options


@click.command("show-phrases")
@options.manifest
@options.phrases
@click.option("--images", "count", type=click.IntRange(min=1), default=24, show_default=True, help="Images drawn.")
@click.option("--columns", type=click.IntRange(min=1), default=6, show_default=True, help="Images side by side.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Regions drawn in each.")
@click.option(
    "--points", type=click.IntRange(min=1), default=60, show_default=True, help="Images whose phrases are in the plane."
)
@options.config
@options.output("file", "The sheet of photographs, a PNG file; the plane lies beside it, with the ending .plane.png.")
def command(
    manifest_folder: Path,
    phrases_folder: Path,
    count: int,
    columns: int,
    top: int,
    points: int,
    config_path: Path | None,
    output: Path,
) -> None:
    """Draw the noun phrases of the first sentence of some images of a split, and the regions that they speak of."""
    import numpy as np

    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.evaluate.phrases import best_within
    from pipeline.images.contact_sheet import draw_sheet, picture_spoken_of, to_png
    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.plane import draw_links, scatter_in_plane
    from pipeline.storage.atomic import DRAWING, add_artefact
    from pipeline.storage.batch import Batch
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.phrases import PhraseVectors
    from stages.inputs import open_photographs

    settings, manifest, stored = config.load(config_path), Manifest(manifest_folder), PhraseVectors(phrases_folder)
    require_same(
        "manifest", {str(manifest_folder): manifest.fingerprint, str(phrases_folder): stored.inputs["manifest"]}
    )
    parts = np.flatnonzero(stored.regions["number"].to_numpy() > 0)
    images, sentences = (stored.phrases[name].to_numpy() for name in ("image_id", "sentence_id"))
    best, scores = best_within(
        images, stored.phrase_vectors, stored.regions["image_id"].to_numpy()[parts], stored.region_vectors[parts]
    )
    first = np.unique(images, return_index=True)[1]
    spoken = np.flatnonzero(np.isin(sentences, sentences[first]) & (best >= 0))
    if not len(spoken):
        raise InputError(f"{phrases_folder} has no noun phrase whose image has regions; run embed-phrases on another")
    texts = np.array(stored.phrases["text"].to_pylist(), object)

    told = np.unique(sentences[spoken])
    drawn = told[evenly_spaced(len(told), count)]
    lines = manifest.sentences["text"].take(drawn).to_pylist()
    photographs = open_photographs(manifest, manifest.sentence_images[drawn], settings)
    pictures = []
    for sentence_id, line, (image, reason) in zip(drawn, lines, photographs, strict=True):
        own = spoken[sentences[spoken] == sentence_id]
        boxes = stored.boxes[parts[best[own]]]
        pictures.append(picture_spoken_of(image, reason or line, boxes, texts[own], scores[own], top))

    shown = spoken[np.isin(sentences[spoken], told[evenly_spaced(len(told), points)])]
    regions, links = np.unique(best[shown], return_inverse=True)
    vectors = np.concatenate([stored.phrase_vectors[shown], stored.region_vectors[parts[regions]]])
    places = scatter_in_plane(vectors, settings.seed)
    groups = np.unique(images[shown], return_inverse=True)[1]
    plane = draw_links(texts[shown], places[: len(shown)], places[len(shown) :], links, groups)
    details = {"model": stored.row, "split": stored.split, "inputs": {"phrases": stored.fingerprint}}
    digest = fingerprint("phrases drawn", 1, [count, columns, top, points, settings.seed], details["inputs"])
    batch, about = Batch(), {"kind": DRAWING, "fingerprint": digest, "details": details}
    add_artefact(batch, output, to_png(draw_sheet(pictures, columns)), rows=len(pictures), **about)
    add_artefact(batch, output.with_suffix(".plane.png"), plane, rows=len(shown), **about)
    batch.publish()
