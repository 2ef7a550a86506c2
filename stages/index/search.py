"""`search`: images for a sentence, an image, or both; regions for a snippet; sentences for an image."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import runtime
from stages.commands import FILE, FOLDER, config_option

if TYPE_CHECKING:
    from pipeline.index.search import Encoded, Hit, Searcher


@click.command("search")
@click.argument("sentence", nargs=-1, metavar="[SENTENCE]")
@click.option(
    "--index", "bundle_folders", type=FOLDER, required=True, multiple=True,
    help="The index to search; several of one model are searched as one.",
)  # fmt: skip
@click.option("--image", "image_path", type=FILE, help="Search by this photo: rank captions for it.")
@click.option("--similar", is_flag=True, help="With --image: find similar photos instead of captions.")
@click.option("--text", help="With --image: find photos that are similar and match these words.")
@click.option(
    "--weight", type=click.FloatRange(0, 1), default=0.5, show_default=True,
    help="With --text: how much the words count; the image counts for the rest.",
)  # fmt: skip
@click.option("--regions", is_flag=True, help="Rank regions of images, with their boxes; for models of regions.")
@click.option("--minus", multiple=True, metavar="WORD", help="With --image: find similar photos without this word.")
@click.option("--plus", multiple=True, metavar="WORD", help="With --image: find similar photos with this word added.")
@click.option(
    "--among", type=click.IntRange(min=0), default=20, show_default=True,
    help="With --minus or --plus: the nearest that are re-sorted by distance to their mean; 0 for none.",
)  # fmt: skip
@click.option(
    "--where", metavar="CONDITION",
    help="Only images of whose columns this is true, or their sentences: \"price < 20 and taken >= '2024-01-01'\".",
)  # fmt: skip
@click.option("--batch", "batch_path", type=FILE, help="Answer each line of this file, one JSON object per line.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Number of results.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@config_option
@runtime.without_collection()  # the process ends with the answer
def command(
    sentence: tuple[str, ...],
    bundle_folders: tuple[Path, ...],
    image_path: Path | None,
    similar: bool,
    text: str | None,
    weight: float,
    regions: bool,
    minus: tuple[str, ...],
    plus: tuple[str, ...],
    among: int,
    where: str | None,
    batch_path: Path | None,
    top: int,
    as_json: bool,
    config_path: Path | None,
) -> None:
    """Search an index by SENTENCE, by a photo, or by both."""
    from functools import partial

    from pipeline.errors import UsageError
    from pipeline.index.columns import OURS
    from pipeline.index.queries import spell
    from pipeline.index.search import Searcher
    from pipeline.printable import printable, printable_json
    from pipeline.storage.bundles import open_bundle

    if len(sentence) > 1:
        raise UsageError(f'put the sentence in quotes: jointspace search "{" ".join(sentence)}" --index ...')
    sentence = sentence[0] if sentence else None
    if (sentence, image_path, batch_path).count(None) != 2:
        raise UsageError("give either a sentence or --image FILE (with --text for words beside it) or --batch FILE")
    changed = (*minus, *plus)
    if image_path is None and changed:
        raise UsageError("--minus and --plus change an image; give --image FILE too")
    if image_path is None and (similar or text is not None):
        raise UsageError("--similar and --text are about an image; give --image FILE too")
    if changed and (similar or text is not None):
        raise UsageError("--minus and --plus rank images already; leave out --similar and --text")
    bundle = open_bundle(*bundle_folders)
    searcher = Searcher(bundle)
    if regions:
        if sentence is None:
            raise UsageError("--regions needs a sentence, or some words of one")
        searcher.require_regions()
    if batch_path is not None:
        _answer_each(searcher, batch_path, top, where)
        return
    if image_path and not (similar or changed or text is not None or searcher.has("sentences")):
        similar = True
        click.echo("the index has no sentences, so these are the images like it", err=True)
    photograph = partial(_encode, image_path, searcher, config_path)
    if sentence is not None:
        hits = (searcher.regions if regions else searcher.images)(sentence, top, where)
    elif changed:
        hits = searcher.analogy(photograph, minus, plus, top, among, where)
    elif similar or text is not None:
        hits = searcher.similar(photograph, top, text, weight, where)
    else:
        hits = searcher.sentences(photograph, top, where)

    asked = [words for words in (sentence, text, *changed) if words is not None]
    if ignored := searcher.ignored(*asked):
        click.echo(printable(f"ignored, since the model does not know them: {spell(ignored)}"), err=True)
    if as_json:
        click.echo(printable_json([_shown(hit) for hit in hits], str))
        return
    for hit in hits:
        name = hit.row["text"] if "text" in hit.row else "::".join(filter(None, (hit.row["path"], hit.row["member"])))
        columns = {key: hit.row[key] for key in hit.row if key not in (*OURS, "sentence_id", "text")}
        values = "".join(f"  {key}={value}" for key, value in columns.items() if value is not None)
        box = "  " + " ".join(f"{side:.0f}" for side in hit.row["box"]) if regions else ""
        click.echo(printable(f"{hit.rank:>4}  {hit.score:>8.4f}  {name}{values}{box}"))


def _shown(hit: "Hit") -> dict:
    return {"rank": hit.rank, "score": hit.score, **hit.row}


def _answer_each(searcher: "Searcher", path: Path, top: int, where: str | None) -> None:
    """Print a line of JSON for each line of the file: the query, and its results and unknown words, or the error."""
    from pipeline.errors import InputError
    from pipeline.printable import printable_json

    gc.enable()  # there may be many
    try:
        sentences = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}); give a UTF-8 text file with a sentence a line") from error
    for sentence, answer in zip(sentences, searcher.batch(sentences, top, where), strict=True):
        if isinstance(answer, InputError):
            found = {"error": str(answer)}
        else:
            ignored = searcher.ignored(sentence)
            near = {word: known for word, known in ignored.items() if known}
            found = {"unknown": list(ignored), "near": near, "results": [_shown(hit) for hit in answer]}
        click.echo(printable_json({"query": sentence, **found}, str))


def _encode(image_path: Path, searcher: "Searcher", config_path: Path | None) -> "Encoded":
    """A photograph as the model takes it. InputError names a file that cannot be used."""
    from concurrent.futures import ThreadPoolExecutor

    from pipeline.config import loading
    from pipeline.errors import InputError
    from pipeline.images.decode import DecodingProcess, ImageLimits
    from pipeline.index.queries import encode_image

    try:
        data = image_path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {image_path} ({error.strerror}); give another image") from error
    if searcher.multi_vector:
        return data
    limits = ImageLimits.from_settings(loading.load(config_path).collection)
    with DecodingProcess(limits) as decode, ThreadPoolExecutor(1) as thread:
        stored = searcher.stored_encoders()
        opened = thread.submit(lambda: {name: encoder.open() for name, encoder in stored.items()})  # takes as long
        try:
            image = decode(data)
        except InputError as error:
            raise InputError(f"{image_path}: {error}; give another image") from error
        return encode_image(image, opened.result())
