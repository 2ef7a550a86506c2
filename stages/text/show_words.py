"""`show-words`: words and images of one joint space in a plane."""

from pathlib import Path

import click

from pipeline.run import Run
from stages.commands import FILE, on_run, output


@click.command("show-words")
@click.argument("model")
@click.argument("words", nargs=-1, required=True)
@click.option("--split", default="test", show_default=True, help="Split whose images are shown.")
@click.option(
    "--query", "queries", multiple=True, help="Show the images nearest to this text, not to each word; may be repeated."
)
@click.option("--images", "count", type=click.IntRange(min=1), default=5, show_default=True, help="Images for each.")
@on_run
@output(FILE, "The picture, a PNG file.")
def command(
    run: Run, model: str, words: tuple[str, ...], split: str, queries: tuple[str, ...], count: int, output: Path
) -> None:
    """Draw WORDS, and the images nearest to them in the space of MODEL, by their first two principal components."""
    import numpy as np

    from pipeline.index.search import Searcher
    from pipeline.report.plane import draw_plane, project_to_plane
    from pipeline.storage.atomic import publish_bytes
    from pipeline.storage.fingerprint import require_same
    from stages.inputs import open_photographs

    bundle, embeddings = run.bundle(model), run.embeddings(model)
    searcher = Searcher(bundle)
    models = {str(bundle.folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model}
    require_same("model", models)
    image_id = run.pairs(split).image_id
    images = embeddings.read("images", image_id)
    for text in (*words, *queries):
        searcher.require_known(text)
    nearest = []
    for text in queries or words:
        distances = np.square(images - searcher.embed_sentence(text)).sum(axis=1)
        nearest.append(np.argsort(distances, kind="stable")[:count])
    rows = np.unique(np.concatenate(nearest))
    opened = open_photographs(run, image_id[rows])
    photographs = {row: image for row, (image, _) in zip(rows, opened, strict=True) if image is not None}

    vectors = np.concatenate([*map(searcher.embed_sentence, words), images[list(photographs)]])
    places = project_to_plane(vectors)
    shown = list(photographs.values())
    publish_bytes(output, draw_plane(words, places[: len(words)], shown, places[len(words) :]))
