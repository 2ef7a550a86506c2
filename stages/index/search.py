"""`search`: images for a sentence, regions for a snippet, sentences for an image, or images for it and some words."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FILE, FOLDER, config_option

if TYPE_CHECKING:
    from pipeline.index.search import Hit, Searcher
    from pipeline.storage.bundle import Bundle


@click.command("search")
@click.argument("sentence", required=False)
@click.option("--index", "bundle_folder", type=FOLDER, required=True, help="Folder that `build-index` wrote.")
@click.option("--image", "image_path", type=FILE, help="Rank sentences for this image instead.")
@click.option("--regions", is_flag=True, help="Rank regions of images, with their boxes; multi-vector models only.")
@click.option("--minus", multiple=True, metavar="WORD", help="With --image: rank images for it less this word.")
@click.option("--plus", multiple=True, metavar="WORD", help="With --image: rank images for it plus this word.")
@click.option(
    "--among", type=click.IntRange(min=0), default=20, show_default=True,
    help="With --minus or --plus: the nearest that are re-sorted by distance to their mean; 0 for none.",
)  # fmt: skip
@click.option("--batch", "batch_path", type=FILE, help="Answer each line of this file, one JSON object a line.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Number of results.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
@config_option
def command(
    sentence: str | None,
    bundle_folder: Path,
    image_path: Path | None,
    regions: bool,
    minus: tuple[str, ...],
    plus: tuple[str, ...],
    among: int,
    batch_path: Path | None,
    top: int,
    as_json: bool,
    config_path: Path | None,
) -> None:
    """Rank the images of an index for SENTENCE, its sentences for an image, or its images for an image and words."""
    from pipeline.errors import UsageError
    from pipeline.index.search import Searcher
    from pipeline.printable import printable, printable_json
    from pipeline.storage.bundle import Bundle

    if (sentence, image_path, batch_path).count(None) != 2:
        raise UsageError("give either a sentence or --image FILE or --batch FILE")
    if image_path is None and (minus or plus):
        raise UsageError("--minus and --plus change an image; give --image FILE too")
    bundle = Bundle(bundle_folder)
    searcher = Searcher(bundle)
    if regions and (sentence is None or not searcher.multi_vector):
        raise UsageError("--regions needs a sentence and the index of a multi-vector model, such as dvsa")
    if batch_path is not None:
        _answer_each(searcher, batch_path, top)
        return
    changed = (*minus, *plus)
    if sentence is not None:
        hits = (searcher.regions if regions else searcher.images)(sentence, top)
    elif changed:
        searcher.require_words(minus, plus)  # before the photograph is encoded, which takes longer
        features = {} if searcher.multi_vector else _features(image_path, bundle, searcher.encoders, config_path)
        hits = searcher.analogy(features, minus, plus, top, among)
    elif searcher.multi_vector:
        hits = searcher.sentences_like(_read(image_path), top)
    else:
        hits = searcher.sentences(_features(image_path, bundle, searcher.encoders, config_path), top)

    asked = changed if sentence is None else (sentence,)
    if unknown := list(dict.fromkeys(word for words in asked for word in searcher.unknown_words(words))):
        click.echo(printable(f"not in the vocabulary, so ignored: {', '.join(unknown)}"), err=True)
    if as_json:
        click.echo(printable_json([_shown(hit) for hit in hits]))
        return
    for hit in hits:
        what = hit.row["text"] if "text" in hit.row else "::".join(filter(None, (hit.row["path"], hit.row["member"])))
        box = "  " + " ".join(f"{side:.0f}" for side in hit.row["box"]) if regions else ""
        click.echo(printable(f"{hit.rank:>4}  {hit.score:>8.4f}  {what}{box}"))


def _shown(hit: "Hit") -> dict:
    return {"rank": hit.rank, "score": hit.score, **hit.row}


def _answer_each(searcher: "Searcher", path: Path, top: int) -> None:
    """Print a line of JSON for each line of the file: the query, and its results and unknown words, or the error."""
    from pipeline.errors import InputError
    from pipeline.printable import printable_json

    try:
        sentences = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}); give a UTF-8 text file with a sentence a line") from error
    for sentence, answer in zip(sentences, searcher.batch(sentences, top), strict=True):
        if isinstance(answer, InputError):
            found = {"error": str(answer)}
        else:
            found = {"unknown": searcher.unknown_words(sentence), "results": [_shown(hit) for hit in answer]}
        click.echo(printable_json({"query": sentence, **found}))


def _features(image_path: Path, bundle: "Bundle", names: tuple[str, ...], config_path: Path | None) -> dict:
    """The photograph as the bundle's encoders see it. InputError names a file that cannot be used."""
    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.images.decode import DecodingProcess, ImageLimits
    from pipeline.index.query import image_features

    limits = ImageLimits.from_settings(config.load(config_path).collection)
    data = _read(image_path)
    with DecodingProcess(limits) as decode:
        try:
            image = decode(data)
        except InputError as error:
            raise InputError(f"{image_path}: {error}; give another image") from error
    return image_features(image, {name: bundle.encoder(name) for name in names})


def _read(path: Path) -> bytes:
    """The bytes of a photograph's file."""
    from pipeline.errors import InputError

    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); give another image") from error
