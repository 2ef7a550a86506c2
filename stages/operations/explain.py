"""`explain`: what became of one image."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FOLDER

if TYPE_CHECKING:
    from pipeline.storage.verify import ImageTrace


@click.command("explain")
@click.argument("image")
@click.option("--run", type=FOLDER, required=True, help="Folder of the run, such as results/demo.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(image: str, run: Path, as_json: bool) -> None:
    """Trace IMAGE (a file name or image_id) from the manifest to the indexes, or say why it was left out."""
    from dataclasses import asdict

    from pipeline.errors import InputError
    from pipeline.printable import printable, printable_json
    from pipeline.run.layout import Layout
    from pipeline.storage.manifest import Manifest, read_rejects
    from pipeline.storage.verify import find_images, find_rejects, trace

    found, left_out = [], run / "rejects.jsonl"  # of a collection that was refused as a whole
    if (manifest_file := Layout(run).manifest.commit).exists():
        manifest = Manifest(manifest_file.parent)
        rejects = find_rejects(manifest.rejects, image)
        found = [trace(run, manifest, image_id) for image_id in find_images(manifest, image)]
    elif left_out.exists():
        rejects = find_rejects(list(read_rejects(left_out)), image)
    else:
        raise InputError(f"{run} is not the folder of a run: it has no manifest; name one such as results/demo")
    if not found and not rejects:
        raise InputError(f"{run} has no {image}; give a name as in the collection, or an image_id")

    if as_json:
        value = {"images": [asdict(one) for one in found], "rejects": rejects}
        click.echo(printable_json(value, default=str))
        return
    lines = [line for one in found for line in _lines(one, run)]
    for reject in rejects:
        row = "" if reject["row"] is None else f", row {reject['row']}"
        lines.append(f"left out ({reject['what']}): {reject['file']!r}{row}: {reject['reason']}")
    for line in lines:
        click.echo(printable(line))


def _lines(found: "ImageTrace", run: Path) -> Iterator[str]:
    image = found.image
    name = "::".join(filter(None, (image["path"], image["member"])))
    yield f"image {image['image_id']}: {name}, {image['width']} x {image['height']}, split {image['split']}"
    yield f"  sha256 {image['sha256']}"
    yield f"  manifest row {image['image_id']}, shard {found.shard}, {found.boxes} boxes"
    for sentence in found.sentences:
        yield f"  sentence {sentence['sentence_id']}: {sentence['text']}"
    for document in found.documents:
        yield f"  document: {document['title']} | {document['tags']} | {document['description']}"
    for place in found.places:
        rows = _rows(place.rows)
        yield f"  {place.file.relative_to(run)}: {place.of} {rows or 'nowhere'}{place.note and ': '}{place.note}"


def _rows(rows: tuple[int, ...]) -> str:
    """`row 3`, or `rows 3 to 7` where they follow one another."""
    if len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1:
        return f"rows {rows[0]} to {rows[-1]}"
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}" if rows else ""
