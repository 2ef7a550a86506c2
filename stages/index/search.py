"""`search`: searches an index with text, a photo, or both, for photos, regions of photos, or captions."""

import gc
import os
import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.compute import runtime
from pipeline.errors import InputError, RejectLimitError, UsageError
from pipeline.printable import printable, printable_json
from stages.commands import FILE, FOLDER, Command, config_option, only_index, say, verify_option

if TYPE_CHECKING:
    from pipeline.index.search import Answer, Encoded, Searcher
    from pipeline.storage.stored_index import StoredIndex

MAX_VALUE_CHARACTERS = 80
"""Maximum number of characters of a column's value in a line of the table. The option --json prints the whole value."""
EXAMPLE = 'jointspace search INDEX "a red bus"'
"""The example of a command in messages about the arguments and options."""


@dataclass(frozen=True)
class Query:
    """A query for an index: a `sentence`, or the photo in the file `image_path`.

    A photo finds captions. With `similar` it finds similar photos, and with `text` it finds photos that match the photo
    and the text. `minus` has words that are subtracted from the query, and `plus` has words that are added to the
    query. A photo with such words finds photos. `weight` (0 to 1) is the weight of `text`, and the weight of the photo
    is 1 - `weight`. `among` is the number of nearest photos that are reranked for `minus` and `plus` of a photo.
    `regions` asks for regions of photos. `match_text` says whether the words of `sentence` are also searched as text,
    and `sort` is a column that sorts its likely matches. `where` is a condition on the columns of the photos, and `top`
    is the number of results.
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
    match_text: bool = True
    sort: str | None = None
    where: str | None = None
    top: int = 10

    @property
    def words(self) -> list[str]:
        """All texts of the query. A model may not know some of their words."""
        return [words for words in (self.sentence, self.text, *self.minus, *self.plus) if words is not None]

    @property
    def wants_captions(self) -> bool:
        """Whether the query asks for captions of a photo."""
        return self.image_path is not None and not (self.similar or self.text is not None or self.minus or self.plus)

    def check(self, *files: Path | None) -> None:
        """Check the combination of options. `files` are the paths of files of queries, or None.

        Raises UsageError if there is not exactly one of a text, a photo and a file, or if options exclude each other.
        """
        files_given = [path for path in files if path is not None]
        given = [value for value in (self.sentence, self.image_path, *files_given) if value is not None]
        if len(given) != 1:
            raise UsageError(
                f"Give one query: a text, as in: {EXAMPLE}, or --image FILE (with --text for words), or --queries FILE."
            )
        is_changed = bool(self.minus or self.plus)
        if is_changed and (files_given or self.regions):
            raise UsageError("--minus and --plus change one query for photos. Leave out --queries and --regions.")
        if self.sort is not None and (self.sentence is None or self.regions):
            raise UsageError(f"--sort needs a text query for photos, as in: {EXAMPLE} --sort taken.")
        if self.image_path is None and (self.similar or self.text is not None):
            raise UsageError("--similar and --text need a photo. Add --image FILE.")
        if is_changed and (self.similar or self.text is not None):
            raise UsageError(
                "--minus and --plus cannot be used together with --similar or --text. Leave out --minus and --plus, or"
                " leave out --similar and --text."
            )
        if self.where is not None and not self.where.strip():
            raise UsageError(
                "The condition of --where is empty. Leave --where out, or write a condition: --where 'price < 20'."
            )
        if self.regions and self.sentence is None:
            raise UsageError(f"--regions needs a text query, as in: {EXAMPLE} --regions.")


@click.command(
    "search", cls=Command,
    former={"--top": "--top-k", "--among": "--rerank", "--file": "--queries", "--run": "--trusted-run"},
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="[INDEX] [TEXT]")
@click.option(
    "--index", "index_folders", type=FOLDER, multiple=True, metavar="INDEX",
    help="Instead of INDEX: search this index. Repeat it to search several indexes of the same model together.",
)  # fmt: skip
@click.option(
    "--image", "image_path", type=FILE, metavar="FILE", help="Search with this photo. By default, rank captions for it."
)
@click.option("--similar", is_flag=True, help="With --image: find similar photos instead of captions.")
@click.option("--text", help="With --image: find photos that are similar and match these words.")
@click.option(
    "--weight", type=click.FloatRange(0, 1), default=Query.weight, show_default=True,
    help="With --text: the weight of the words, from 0 to 1. The weight of the photo is 1 minus this weight.",
)  # fmt: skip
@click.option(
    "--regions", is_flag=True, help="Rank regions of photos and print their boxes. The model must have regions."
)
@click.option("--minus", multiple=True, metavar="WORDS", help="Find photos without these words: subtract their vector.")
@click.option("--plus", multiple=True, metavar="WORDS", help="Find photos with these words: add their vector.")
@click.option(
    "--sort", metavar="COLUMN",
    help="Sort the likely matches of a text by a column: dates from the newest, other values from the smallest."
    " A minus sign before COLUMN reverses this.",
)  # fmt: skip
@click.option(
    "--match-text/--no-match-text", default=Query.match_text, show_default=True,
    help="Find the words of the query in captions, file names and columns too.",
)  # fmt: skip
@click.option(
    "--rerank", "among", type=click.IntRange(min=0), metavar="N", default=Query.among, show_default=True,
    help="With --image and --minus or --plus: rerank the N nearest photos by the distance to their mean. 0 does not"
    " rerank.",
)  # fmt: skip
@click.option(
    "--where", metavar="CONDITION",
    help="Keep results whose photo satisfies this: \"price < 20 and taken >= '2024-01-01'\".",
)  # fmt: skip
@click.option(
    "--queries", "queries_path", type=FILE, metavar="FILE",
    help="Answer each line of this text file as a query. The exit code is 3 if some could not be answered.",
)  # fmt: skip
@click.option("--batch", "batch_path", type=FILE, hidden=True)  # the former name of --queries with --json
@click.option(
    "--trusted-run", "root", type=FOLDER, metavar="RUN",
    help="Run whose parser, which is code, reads the queries of a tree model. Name only a run that you trust.",
)  # fmt: skip
@click.option(
    "-k", "--top-k", "top", type=click.IntRange(min=1), metavar="N", default=Query.top, show_default=True,
    help="Number of results.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print JSON instead of a table. With --queries, print one JSON object per line.",
)  # fmt: skip
@verify_option
@config_option
@runtime.without_collection()  # A garbage collection would not help, because the process ends with the answer.
def command(
    words: tuple[str, ...],
    index_folders: tuple[Path, ...],
    queries_path: Path | None,
    batch_path: Path | None,
    root: Path | None,
    as_json: bool,
    verify: bool,
    config_path: Path | None,
    **options: Any,  # Any: the other fields of Query, as click has parsed them
) -> None:
    """Search an index with text, with a photo, or with both.

    INDEX is the folder of an index, such as results/demo/index/sae. If the folder results has only one index, INDEX may
    be left out. With --index, TEXT is the only argument.
    """
    from pipeline.config import loading
    from pipeline.index.calibration import explain_missing_line
    from pipeline.index.queries import spell
    from pipeline.index.search import Searcher
    from pipeline.storage.stored_index import open_index

    path = queries_path or batch_path
    needs_text = not (path or options["image_path"])
    folders, sentence = _split_words(words, index_folders, needs_text)
    query = Query(sentence, **options)
    query.check(queries_path, batch_path)
    if config_path is not None:
        loading.load(config_path)  # A query that needs no configuration must still report an error in the file.
    index = open_index(*(folders or [only_index(EXAMPLE)]), run=root, skip_verified=not verify)
    searcher = Searcher(index)
    if path:
        _answer_each(searcher, path, query, as_json or batch_path is not None)
        return
    if query.wants_captions and not searcher.has("sentences"):
        query = replace(query, similar=True)
        click.echo("This index has no captions. These are similar photos instead.", err=True)
    hits = find(searcher, query, config_path)
    if not hits.matched and (ignored := searcher.ignored(*query.words)):
        click.echo(
            printable(f"The search ignored these words, which the model does not know: {spell(ignored)}"), err=True
        )
    if hits.judgement and hits.judgement.warning:
        click.echo(hits.judgement.warning, err=True)
    if query.sentence is not None and (missing := explain_missing_line(index, shlex.quote(str(index.folder)))):
        say(missing, err=True)
    if as_json:
        click.echo(printable_json(_listed(hits), str))
        return
    _print_table(hits, index)


def _split_words(
    words: tuple[str, ...], index_folders: tuple[Path, ...], needs_text: bool
) -> tuple[tuple[Path, ...], str | None]:
    """Return the folders of indexes (or none) and the text of the query (or None) from the arguments of the command.

    `words` are the arguments, `index_folders` the values of --index, and `needs_text` says whether this is a text
    query. A single argument of a text query is the text, unless it contains a slash and no space, or is the folder of
    an index. Raises UsageError if the text was not in quotes, or is before the folder of the index.
    """
    from pipeline.storage.index_folder import is_index

    if not index_folders and words:
        first, *rest = words
        is_path = ("/" in first and " " not in first) or (os.path.isdir(first) and is_index(Path(first)))
        if is_path or not needs_text or (len(rest) == 1 and " " in rest[0]):
            index_folders = (Path(first),)
            words = tuple(rest)
    if len(words) > 1:
        *text, last = words
        is_folder = (os.path.isdir(last) and is_index(Path(last))) or ("/" in last and " " in words[0])
        if is_folder and not index_folders:
            right = shlex.join(["jointspace", "search", last, " ".join(text)])
            raise UsageError(f"The arguments are in the wrong order. The folder of the index comes first: {right}")
        index = str(index_folders[0]) if index_folders else "INDEX"
        raise UsageError(f"Put the text in quotes: {shlex.join(['jointspace', 'search', index, ' '.join(words)])}")
    return index_folders, words[0] if words else None


def find(searcher: "Searcher", query: Query, config_path: Path | None = None) -> "Answer":
    """Answer one query with photos, regions of photos, or the captions of a photo, the best first.

    The section `collection` of the configuration in `config_path`, or of the default configuration if `config_path` is
    None, limits the size of the query's photo.

    Raises InputError if a text of the query is blank or has no word that the model knows, if the vectors of the query
    cancel each other out, or if the photo cannot be used. A text query without `minus`, `plus` and `regions` is an
    exception: if `match_text` is true and photos have all words of the text, these photos are found although the model
    knows no word. Raises UsageError if the index or its model cannot answer this kind of query, if the configuration is
    not valid, or if `where`, `sort` or `weight` is not valid.
    """
    if query.sentence is not None:
        if query.regions:
            return searcher.regions(query.sentence, query.top, query.where)
        changes = query.match_text, query.minus, query.plus, query.sort
        return searcher.images(query.sentence, query.top, query.where, *changes)
    assert query.image_path is not None
    photograph = partial(_encode, query.image_path, searcher, config_path)
    if query.minus or query.plus:
        return searcher.analogy(photograph, query.minus, query.plus, query.top, query.among, query.where)
    if query.wants_captions:
        return searcher.sentences(photograph, query.top, query.where)
    return searcher.similar(photograph, query.top, query.text, query.weight, query.where)


def _listed(hits: "Answer") -> list[dict]:
    """Return the hits as JSON objects. If the index was calibrated, each hit of a text query has the key `likely`,
    which says whether it is a likely match. Hits whose texts have the words of the query have the key `matches`."""
    values = [
        {"rank": hit.rank, "score": hit.score, **({"matches": hit.matches} if hit.matches else {}), **hit.row}
        for hit in hits
    ]
    if hits.judgement:
        values = [{**value, "likely": value["rank"] <= hits.judgement.likely} for value in values]
    return values


def _print_table(hits: "Answer", index: "StoredIndex") -> None:
    """Print one line per hit: rank, score, name of the photo or caption, the fields in which words of the query were
    found, the columns of the collection, and the box of a region.

    A further line separates the likely matches from the rest. If the photos of the index are in several folders, the
    name of a photo is its whole path.
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
        found = f"  [words in {', '.join(hit.matches)}]" if hit.matches else ""
        click.echo(printable(f"{hit.rank:>4}  {hit.score:>8.4f}  {name}{found}{values}{box}"))
    if judgement and judgement.likely >= len(hits):
        click.echo(f"----  {judgement.remark}")


def _answer_each(searcher: "Searcher", path: Path, query: Query, as_json: bool) -> None:
    """Answer each line of the file at `path` that is not blank, as a text query with `where`, `top` and `match_text` of
    `query`.

    If `as_json` is true, the output has one JSON object for each query, with its text. The object of an answered query
    also has the results, the unknown words, and, if the index was calibrated, whether the query is out of domain. The
    object of any other query has the error. If `as_json` is false, the output has each query with its table below, and
    a blank line between two queries. Raises InputError if all lines are blank, and at the end RejectLimitError if some
    queries could not be answered.
    """
    from pipeline.foreign.files import read_lines
    from pipeline.index.queries import spell

    gc.enable()  # The command has turned the garbage collector off for one query, but a file may have many queries.
    sentences = [line for line in read_lines(path) if line.strip()]
    if not sentences:
        raise InputError(f"{path} has no query. Write one query per line.")
    failed = 0
    for number, (sentence, answer) in enumerate(
        zip(sentences, searcher.batch(sentences, query.top, query.where, query.match_text), strict=True)
    ):
        failed += answer.error is not None
        ignored = {} if answer.error or answer.matched else searcher.ignored(sentence)
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
        if remark := answer.error or (
            ignored and f"The search ignored these words, which the model does not know: {spell(ignored)}"
        ):
            click.echo(printable(f"      {remark}"))
        _print_table(answer, searcher.index)
    if failed:
        raise RejectLimitError(
            f"{failed} of {len(sentences)} queries of {path} could not be answered. The output has the reasons."
        )


def _encode(image_path: Path, searcher: "Searcher", config_path: Path | None) -> "Encoded":
    """Encode the photo of a query with the encoders of the index.

    Return the features of the photo, or the bytes of the file for a region model. The section `collection` of the
    configuration in `config_path`, or of the default configuration if `config_path` is None, limits the size of the
    photo. Raises InputError that names the file if the file cannot be read or decoded.
    """
    from concurrent.futures import ThreadPoolExecutor

    from pipeline.config import loading
    from pipeline.images.decode import decoding_process
    from pipeline.images.opening import ImageLimits
    from pipeline.index.queries import encode_image

    try:
        data = image_path.read_bytes()
    except OSError as error:
        raise InputError(
            f"jointspace cannot read {image_path} ({error.strerror}). Give another photo with --image."
        ) from error
    if searcher.multi_vector:
        return data
    limits = ImageLimits.from_settings(loading.load(config_path).collection)
    with decoding_process(limits) as decode, ThreadPoolExecutor(1) as thread:
        stored = searcher.stored_encoders()
        opened = thread.submit(
            lambda: {name: encoder.open() for name, encoder in stored.items()}
        )  # The encoders are opened while the photo is decoded, because these two steps take about equally long.
        try:
            image = decode(data)
        except InputError as error:
            raise InputError(f"{image_path}: {error}. Give another photo with --image.") from error
        return encode_image(image, opened.result())
