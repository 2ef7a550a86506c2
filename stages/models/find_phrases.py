"""`find-phrases`: the noun phrases that describe a region best."""

from pathlib import Path

import click

from stages.commands import FOLDER, json_option


@click.command("find-phrases")
@click.argument("model")
@click.argument("image")
@click.option("--run", "root", type=FOLDER, required=True, help="Folder of the run, such as results/demo.")
@click.option("--split", default="test", show_default=True, help="The image's, which embed-phrases embedded.")
@click.option("--box", type=float, nargs=4, help="x1 y1 x2 y2: of the region that overlaps it most. [default: of each]")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Phrases of a region.")
@json_option
def command(
    model: str, image: str, root: Path, split: str, box: tuple[float, ...] | None, top: int, as_json: bool
) -> None:
    """Find the phrases of a split that describe the regions of IMAGE, a file name or an image_id, best.

    Phrases are different in words (Niu et al. 2017, Figure 6).
    """
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.evaluate.phrases import nearest_phrases, overlap
    from pipeline.printable import printable, printable_json
    from pipeline.run import Run
    from pipeline.storage.image_trace import find_images
    from pipeline.storage.phrases import PhraseVectors

    run = Run(root)
    folder, manifest = run.layout.phrases(model, split).path, run.manifest
    stored = PhraseVectors(folder)
    owners, number = (stored.regions[name].to_numpy() for name in ("image_id", "number"))
    rows = np.flatnonzero(np.isin(owners, find_images(manifest, image)) & (number > 0))
    if not len(rows):
        raise InputError(f"{folder} has no region of {image}; name an image of the split {split} that has regions")
    if box:
        rows = rows[[overlap(stored.boxes[rows], np.tile(box, (len(rows), 1))).argmax()]]
    texts = [text.lower() for text in stored.phrases["text"].to_pylist()]
    found = nearest_phrases(stored.region_vectors[rows], stored.phrase_vectors, texts, top)
    if as_json:
        answer = [
            {"region": int(number[row]), "box": stored.boxes[row].tolist(), "phrases": [
                {"text": text, "score": float(score)} for text, score in phrases
            ]}
            for row, phrases in zip(rows, found, strict=True)
        ]  # fmt: skip
        click.echo(printable_json(answer))
        return
    for row, phrases in zip(rows, found, strict=True):
        click.echo(f"region {number[row]}: " + " ".join(f"{side:.0f}" for side in stored.boxes[row]))
        for rank, (text, score) in enumerate(phrases, 1):
            click.echo(printable(f"  {rank}  {score:.4f}  {text}"))
