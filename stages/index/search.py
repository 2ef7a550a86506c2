"""`search`: images for a sentence, an image, or both; regions for a snippet; sentences for an image."""

import gc
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.compute import runtime
from pipeline.errors import InputError, UsageError
from pipeline.printable import printable, printable_json
from stages.commands import FILE, FOLDER, config_option, verify_option

if TYPE_CHECKING:
    from pipeline.index.search import Answer, Encoded, Searcher
    from pipeline.storage.stored_index import StoredIndex

MAX_VALUE_CHARACTERS = 80
"""Number of characters of a column's value that a line shows; --json has all."""


@dataclass(frozen=True)
class Query:
    """A query: a `sentence`, or the photo in `image_path`, with the words `text`, or less and more of some words.

    `where` is a condition on the columns of the images, and `top` the number of results. `weight` is the weight of
    `text` beside the photo. `among` is the number of the nearest that are sorted again for `minus` and `plus`.
    """

    sentence: str | None = None
    image_path: Path | None = None
    similar: bool = False
    text: str | None = None
    weight: float = 0.5
    regions: bool = False
    minus: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    among: int = 20
    where: str | None = None
    top: int = 10

    @property
    def words(self) -> list[str]:
        """All words of the query, of which a model may not know some."""
        return [words for words in (self.sentence, self.text, *self.minus, *self.plus) if words is not None]

    @property
    def wants_captions(self) -> bool:
        """Whether the answer is the captions of a photo."""
        return self.image_path is not None and not (self.similar or self.text is not None or self.minus or self.plus)

    def check(self, *files: Path | None) -> None:
        """Check that the query and the `files` of queries go together. Raises UsageError where they do not."""
        given = [value for value in (self.sentence, self.image_path, *files) if value is not None]
        if len(given) != 1:
            raise UsageError(
                "give a query in words, or --image FILE (with --text for additional words), or --file FILE"
            )
        is_changed = bool(self.minus or self.plus)
        if self.image_path is None and is_changed:
            raise UsageError("--minus and --plus need --image FILE")
        if self.image_path is None and (self.similar or self.text is not None):
            raise UsageError("--similar and --text need --image FILE")
        if is_changed and (self.similar or self.text is not None):
            raise UsageError("--minus and --plus do not go with --similar and --text; leave these out")
        if self.regions and self.sentence is None:
            raise UsageError("--regions needs a query in words")


@click.command("search")
@click.argument("sentence", nargs=-1, metavar="[TEXT]")
@click.option(
    "--index", "index_folders", type=FOLDER, required=True, multiple=True,
    help="The index to search; several of one model are searched as one.",
)  # fmt: skip
@click.option("--image", "image_path", type=FILE, help="Search by this photo: rank captions for it.")
@click.option("--similar", is_flag=True, help="With --image: find similar photos instead of captions.")
@click.option("--text", help="With --image: find photos that are similar and match these words.")
@click.option(
    "--weight", type=click.FloatRange(0, 1), default=Query.weight, show_default=True,
    help="With --text: how much the words count; the image counts for the rest.",
)  # fmt: skip
@click.option("--regions", is_flag=True, help="Rank regions of images, with their boxes; for models of regions.")
@click.option("--minus", multiple=True, metavar="WORD", help="With --image: find similar photos without this word.")
@click.option("--plus", multiple=True, metavar="WORD", help="With --image: find similar photos with this word added.")
@click.option(
    "--among", type=click.IntRange(min=0), default=Query.among, show_default=True,
    help="With --minus or --plus: the nearest that are re-sorted by distance to their mean; 0 for none.",
)  # fmt: skip
@click.option(
    "--where", metavar="CONDITION",
    help="Only images whose columns satisfy this, or their captions: \"price < 20 and taken >= '2024-01-01'\".",
)  # fmt: skip
@click.option("--file", "queries_path", type=FILE, help="Answer each line of this text file, in one search.")
@click.option("--batch", "batch_path", type=FILE, hidden=True)  # --file with --json, as it was called
@click.option("--run", "root", type=FOLDER, help="Run that you trust, whose parser reads queries to tree models.")
@click.option("--top", type=click.IntRange(min=1), default=Query.top, show_default=True, help="Number of results.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print JSON instead of a table; with --file, one JSON object per line.",
)  # fmt: skip
@verify_option
@config_option
@runtime.without_collection()  # the process ends with the answer
def command(
    sentence: tuple[str, ...],
    index_folders: tuple[Path, ...],
    queries_path: Path | None,
    batch_path: Path | None,
    root: Path | None,
    as_json: bool,
    verify: bool,
    config_path: Path | None,
    **options: Any,  # Any: the other fields of Query, as click has parsed them
) -> None:
    """Search an index with TEXT, with a photo, or with both."""
    from pipeline.index.queries import spell
    from pipeline.index.search import Searcher
    from pipeline.storage.stored_index import open_index

    if len(sentence) > 1:
        raise UsageError(f'put the query in quotes: jointspace search "{" ".join(sentence)}" --index ...')
    query = Query(sentence[0] if sentence else None, **options)
    path = queries_path or batch_path
    query.check(queries_path, batch_path)
    index = open_index(*index_folders, run=root, skip_verified=not verify)
    searcher = Searcher(index)
    if path:
        _answer_each(searcher, path, query, as_json or batch_path is not None)
        return
    if query.wants_captions and not searcher.has("sentences"):
        query = replace(query, similar=True)
        click.echo("the index has no captions, so these are similar images", err=True)
    hits = find(searcher, query, config_path)
    if ignored := searcher.ignored(*query.words):
        click.echo(printable(f"ignored, unknown to this model: {spell(ignored)}"), err=True)
    if hits.judgement and hits.judgement.warning:
        click.echo(hits.judgement.warning, err=True)
    if query.sentence is not None and not index.card.says_likely:
        click.echo("this index does not say where likely answers end: run build-index again", err=True)
    if as_json:
        click.echo(printable_json(_listed(hits), str))
        return
    _print_table(hits, index)


def find(searcher: "Searcher", query: Query, config_path: Path | None = None) -> "Answer":
    """Return what an index has for one query: photos, regions of photos, or the captions of a photo.

    The configuration in `config_path` limits the photo of the query. Raises InputError for words that the model does
    not know and for a photo that cannot be used, and UsageError for what the index cannot answer.
    """
    if query.sentence is not None:
        answer = searcher.regions if query.regions else searcher.images
        return answer(query.sentence, query.top, query.where)
    assert query.image_path is not None
    photograph = partial(_encode, query.image_path, searcher, config_path)
    if query.minus or query.plus:
        return searcher.analogy(photograph, query.minus, query.plus, query.top, query.among, query.where)
    if query.wants_captions:
        return searcher.sentences(photograph, query.top, query.where)
    return searcher.similar(photograph, query.top, query.text, query.weight, query.where)


def _listed(hits: "Answer") -> list[dict]:
    """Return the hits as JSON has them. Hits of a sentence say whether they are likely, where that is known."""
    values = [{"rank": hit.rank, "score": hit.score, **hit.row} for hit in hits]
    if hits.judgement:
        values = [{**value, "likely": value["rank"] <= hits.judgement.likely} for value in values]
    return values


def _print_table(hits: "Answer", index: "StoredIndex") -> None:
    """Print a line for each hit: its rank, score and name, the collection's own columns, and the box of a region. Under
    the last likely one a line says so.

    If the photos of the index are in several folders, which may have the same names, the name is the whole path.
    """
    from pipeline.index.conditions import BUILT_IN_COLUMNS
    from pipeline.storage.tables import SHARD

    roots = [shard.card.data_root for shard in index.shards]
    judgement = hits.judgement
    for hit in hits:
        if judgement and hit.rank == judgement.likely + 1:
            click.echo(f"----  {judgement.remark}")
        name = hit.row["text"] if "text" in hit.row else "::".join(filter(None, (hit.row["path"], hit.row["member"])))
        name = f"{roots[hit.row[SHARD]]}/{name}" if len({*roots}) > 1 and "text" not in hit.row else name
        columns = {key: hit.row[key] for key in hit.row if key not in (*BUILT_IN_COLUMNS, "sentence_id", "text")}
        values = "".join(
            f"  {key}={f'{value}'[:MAX_VALUE_CHARACTERS]}" for key, value in columns.items() if value is not None
        )
        box = "  " + " ".join(f"{side:.0f}" for side in hit.row["box"]) if "box" in hit.row else ""
        click.echo(printable(f"{hit.rank:>4}  {hit.score:>8.4f}  {name}{values}{box}"))
    if judgement and judgement.likely >= len(hits):
        click.echo(f"----  {judgement.remark}")


def _answer_each(searcher: "Searcher", path: Path, query: Query, as_json: bool) -> None:
    """Answer each line of the file that is not blank, with the condition and the number of results of `query`.

    Prints a line of JSON for each: the sentence, and its results and unknown words, or the error. Without `as_json`,
    prints the table under the sentence, with a blank line between two.
    """
    from pipeline.foreign.files import read_lines
    from pipeline.index.queries import spell

    gc.enable()  # there may be many
    sentences = [line for line in read_lines(path) if line.strip()]
    if not sentences:
        raise InputError(f"{path} has no query; write one per line")
    for number, (sentence, answer) in enumerate(
        zip(sentences, searcher.batch(sentences, query.top, query.where), strict=True)
    ):
        ignored = {} if answer.error else searcher.ignored(sentence)
        if as_json:
            near = {word: known for word, known in ignored.items() if known}
            results = {"unknown": list(ignored), "near": near, "results": _listed(answer)}
            if answer.judgement:
                results["off_topic"] = answer.judgement.off_topic
            value = {"query": sentence, **({"error": answer.error} if answer.error else results)}
            click.echo(printable_json(value, str))
            continue
        click.echo(printable(sentence) if number == 0 else f"\n{printable(sentence)}")
        if answer.judgement and answer.judgement.warning:
            click.echo(f"      {answer.judgement.warning}")
        if remark := answer.error or (ignored and f"ignored, unknown to this model: {spell(ignored)}"):
            click.echo(printable(f"      {remark}"))
        _print_table(answer, searcher.index)


def _encode(image_path: Path, searcher: "Searcher", config_path: Path | None) -> "Encoded":
    """Return a photo as the model takes it. Raises InputError that names a file that cannot be used."""
    from concurrent.futures import ThreadPoolExecutor

    from pipeline.config import loading
    from pipeline.images.decode import decoding_process
    from pipeline.images.opening import ImageLimits
    from pipeline.index.queries import encode_image

    try:
        data = image_path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {image_path} ({error.strerror}); give another image") from error
    if searcher.multi_vector:
        return data
    limits = ImageLimits.from_settings(loading.load(config_path).collection)
    with decoding_process(limits) as decode, ThreadPoolExecutor(1) as thread:
        stored = searcher.stored_encoders()
        opened = thread.submit(lambda: {name: encoder.open() for name, encoder in stored.items()})  # takes as long
        try:
            image = decode(data)
        except InputError as error:
            raise InputError(f"{image_path}: {error}; give another image") from error
        return encode_image(image, opened.result())
