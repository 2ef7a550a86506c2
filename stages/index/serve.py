"""`serve`: a search page and a JSON API for indexes and caption generators."""

import logging
import math
import shlex
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.run import Run
from stages.commands import FOLDER, Command, config_option, only_index, runnable, verify_option

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.config.names import Config
    from pipeline.index.queries import SharedEncoders
    from pipeline.run.reading.generators import StoredGenerator
    from pipeline.serve.gallery import Describer, ServedGallery
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)
THUMBNAIL_SIDE = 320
"""Maximum length in pixels of the longer side of the photos that the page shows in its results."""
SUMMARY = Path("evaluation", "summary.json")
"""Path of the list of evaluations, relative to the folder of a run."""
HEAD_BYTES = 1 << 14
"""Maximum number of bytes in the head of a request (its address and headers), without the text of the query. A request
with a longer head is refused."""
BYTES_PER_CHARACTER = 12
"""Maximum number of bytes of one character in an address: four bytes in UTF-8, each written as %XX."""
SHUTDOWN_SECONDS = 5
"""Number of seconds after which running requests are aborted when the server is stopped."""


@dataclass(frozen=True)
class ServeOptions:
    """The options of the command: the indexes in `folders`, caption generators of the run `root`, and the address.

    `images_root` is the option --data-root, `root` is --trusted-run, and `allowed` is --allow-host. The other
    attributes have the names and the meaning of the options.
    """

    folders: tuple[Path, ...]
    images_root: Path | None = None
    root: Path | None = None
    generators: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    allowed: tuple[str, ...] = ()
    port: int = 8000
    top: int | None = None
    columns: tuple[str, ...] = ()
    review: bool = False
    lazy: bool = False
    verify: bool = False
    config_path: Path | None = None


@click.command("serve", cls=Command, former={"--images": "--data-root", "--run": "--trusted-run", "--top": "--top-k"})
@click.argument("folders", nargs=-1, metavar="[INDEX]...", type=FOLDER)
@click.option(
    "--data-root", "images_root", type=FOLDER, metavar="FOLDER",
    help="Folder of the photos. [default: the folder in which `ingest` or `apply` found them]",
)  # fmt: skip
@click.option(
    "--trusted-run", "root", type=FOLDER, metavar="RUN",
    help="Run whose caption generators and parser, which is code, are used. Name only a run that you trust.",
)  # fmt: skip
@click.option(
    "--generator", "generators", multiple=True, metavar="NAME",
    help="Caption generator of --trusted-run. Repeat it for several.",
)  # fmt: skip
@click.option(
    "--host", default=ServeOptions.host, show_default=True, help="Address to listen on. 0.0.0.0 admits everyone."
)
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME",
    help="Host name that browsers may use. Other names are refused. [default: all names, if --host admits others]",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=ServeOptions.port, show_default=True,
    help="Port to listen on. 0 chooses a free port.",
)  # fmt: skip
@click.option(
    "-k", "--top-k", "top", type=click.IntRange(min=1), metavar="N",
    help="Number of results on the first page. [default: the key serve.top]",
)  # fmt: skip
@click.option(
    "--column", "columns", multiple=True, metavar="NAME",
    help="Column of the collection to show. Repeat it for several. [default: the key serve.columns]",
)  # fmt: skip
@click.option(
    "--review", is_flag=True,
    help="Add the page /review, on which you decide about the captions that `audit` found in the run of INDEX.",
)  # fmt: skip
@click.option("--lazy", is_flag=True, help="Load the image encoders at the first query with a photo, not at start-up.")
@verify_option
@config_option
def command(**options: Any) -> None:  # Any: the fields of ServeOptions, as click has parsed them
    """Start a search page and a JSON API for one or more indexes.

    If the folder results has only one index, INDEX may be left out. With --generator, the page also generates captions.
    Everyone who can reach the address can see the photos. By default, only this machine can reach it.
    """
    serve(ServeOptions(**{**options, "folders": options["folders"] or (only_index("jointspace serve INDEX"),)}))


def serve(options: ServeOptions) -> None:
    """Serve indexes and caption generators until the process receives a signal to stop.

    Raises UsageError if an extra is not installed, if the options contradict each other or the indexes, and if the
    server cannot listen on the address.
    """
    from pipeline.compute import runtime
    from pipeline.config import loading
    from pipeline.errors import UsageError
    from pipeline.images.decode import ImageProcess, check_header, decoding_process
    from pipeline.images.opening import ImageLimits
    from pipeline.index.queries import SharedEncoders

    try:
        import uvicorn

        from pipeline.run.reading.review import open_review
        from pipeline.serve.app import build_app
        from pipeline.serve.border import ANY_HOST, Limits, in_address, is_loopback, trusted_hosts
        from pipeline.serve.gallery import ServedIndex
    except ImportError as error:
        raise UsageError(f"`serve` needs {error.name}. Install it: pip install 'jointspace[serve]'") from error

    chosen_config = loading.load(options.config_path) if options.config_path else None
    run = Run(options.root, chosen_config) if options.root else None
    settings = run.config if run else chosen_config or loading.load(None)
    limits = Limits(
        options.top or settings.serve.top,
        settings.serve.among,
        settings.collection.max_sentence_chars,
        settings.serve.max_requests,
    )
    if limits.top > limits.max_top:
        raise UsageError(
            f"--top-k or the key serve.top is {limits.top}, but a request can have at most {limits.max_top} results."
            " Lower the number."
        )
    if options.review and (options.host != ServeOptions.host or options.allowed):
        raise UsageError("--review writes a file, so no other machine may reach it. Leave out --host and --allow-host.")
    named = _name_all(options.folders)
    image_limits = ImageLimits.from_settings(settings.collection)
    upload_limits = replace(image_limits, max_pixels=settings.serve.max_upload_pixels)
    check = ImageProcess(partial(check_header, limits=upload_limits), "serve.max_upload_pixels")
    uploads = decoding_process(image_limits)  # The decoding processes end together with the server.
    thumbnails = decoding_process(image_limits)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # Malformed forms would fill the log.
    with _listen(options.host, options.port) as listener:
        bound, port = listener.getsockname()[:2]
        hosts = trusted_hosts(options.host, bound, options.allowed)
        private = is_loopback(bound) and not options.allowed
        columns = options.columns or settings.serve.columns
        shown = () if columns is None and not private else columns
        encoders = SharedEncoders(uploads)
        skip_verified = not options.verify
        shared = options.images_root, thumbnails, settings, encoders, options.root, shown, skip_verified
        indexes = {
            name: ServedIndex(name, partial(_open_gallery, folder, *shared), partial(_stamp, folder))
            for name, folder in named.items()
        }
        galleries = [index.gallery for index in indexes.values()]
        if missing := set(columns or ()).difference(*(gallery.columns for gallery in galleries)):
            raise UsageError(f"No index has a column {min(missing)}. Correct --column or the key serve.columns.")
        describers = {}
        if options.generators:
            if run is None:
                raise UsageError("--generator needs the run of the generator. Add --trusted-run RUN.")
            describers = _open_describers(run, options.generators, galleries)
        originals = settings.serve.originals
        review = None
        if options.review:
            name = next(name for name, folder in named.items() if folder == options.folders[0])
            review = open_review(options.folders[0], indexes[name].gallery)
            review = replace(review, command=runnable(review.command))
        app = build_app(
            indexes, limits, runtime.threads(), hosts, check, describers,
            warm=not options.lazy, originals=private if originals is None else originals, review=review,
        )  # fmt: skip
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                proxy_headers=False,
                limit_concurrency=settings.serve.max_connections,
                h11_max_incomplete_event_size=HEAD_BYTES + BYTES_PER_CHARACTER * limits.max_sentence_chars,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                log_level="warning",
                access_log=False,
                server_header=False,
            )
        )
        names = ", ".join([*indexes, *describers])
        log.info("Serving %s at http://%s:%d (Ctrl-C stops the server)", names, in_address(options.host), port)
        if review:
            others = len(review.pairs) - review.probable
            place = f"http://{in_address(options.host)}:{port}/review"
            log.info(
                "The audit found %d pairs of a photo and captions that are probably wrong, and %d other pairs. Review"
                " the pairs at %s",
                review.probable, others, place,
            )  # fmt: skip
        if ANY_HOST in hosts:
            log.warning(
                "The server answers everyone who can reach this machine, under any host name. To admit only one host"
                " name, add --allow-host NAME."
            )
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`. Port 0 chooses a free port.

    Raises UsageError if the address is not available.
    """
    from pipeline.errors import UsageError

    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The server cannot listen on {host} port {port} ({reason}). Choose another --port or --host."
        ) from error


def _stamp(folder: Path) -> tuple[tuple[int, ...], ...] | None:
    """Return a value that changes when the index in `folder` changes, and when a list of removed photos in the run of
    the index changes.

    Return None if there is no index, or if the index cannot be read at the moment. Changes are also noticed if another
    index of the run is damaged.
    """
    from pipeline.errors import IntegrityError
    from pipeline.storage.card import CARD
    from pipeline.storage.index_folder import REMOVED, added_to, home_of, indexes_of_run, shards_in

    try:
        shards = shards_in(folder)
        files = [shard / CARD for shard in (*shards, *added_to(home_of(shards)))]
        files += [path for index in indexes_of_run(folder) for path in sorted(index.rglob(REMOVED))]
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in map(Path.lstat, files))
    except (OSError, IntegrityError):
        return None


def _name_all(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Return name -> folder of the indexes in `folders`. The name is the name of the model. If several indexes have
    the same model, all but the first of them also have a number, as in `ncca-2`.

    An index comes earlier if its model has a better rank among the evaluated models of its own run. Indexes whose
    models were not evaluated come last.
    """
    from pipeline.errors import MALFORMED, JointspaceError
    from pipeline.metrics.summary import ranking
    from pipeline.storage.json_files import read_json
    from pipeline.storage.stored_index import open_index

    def rank(folder: Path) -> float:
        try:
            evaluations = ranking(read_json(folder.absolute().parents[1] / SUMMARY))
            return [evaluation["model"] for evaluation in evaluations].index(open_index(folder).card.model)
        except (OSError, IndexError, JointspaceError, *MALFORMED):
            return math.inf

    named: dict[str, Path] = {}
    for folder in sorted(folders, key=rank):
        named[_free_name(open_index(folder).card.model, named)] = folder
    return named


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return `name` if it is not in `taken`, and otherwise the first of NAME-2, NAME-3, ... that is not in `taken`."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(free for free in names if free not in taken)


def _open_gallery(
    folder: Path,
    images_root: Path | None,
    decode: "Callable[[bytes], Image.Image]",
    settings: "Config",
    encoders: "SharedEncoders",
    run: Path | None,
    columns: Collection[str] | None,
    skip_verified: bool,
) -> "ServedGallery":
    """Open the index in `folder` for the page.

    `images_root` is the folder of the photos, or None for the folder that the card of the index names. `decode` decodes
    the bytes of a file of a photo. `encoders` encode the photos of queries. `run` is the folder of the run whose parser
    reads the queries of a tree model, or None. `columns` has the columns of the collection that the page shows, or is
    None for all columns. If `skip_verified` is true, files that were verified before and not changed since are not
    hashed again.
    """
    from pipeline.index.conditions import BUILT_IN_COLUMNS
    from pipeline.index.search import Searcher
    from pipeline.serve.gallery import ServedGallery
    from pipeline.storage.index_changes import hidden_photos
    from pipeline.storage.stored_index import open_index

    index = open_index(folder, run=run, skip_verified=skip_verified)
    index.check_rows()
    index.hidden = hidden_photos(index, folder)
    photos = images_root or Path(index.card.data_root)
    if not photos.exists():
        log.warning(
            "%s: the folder of the photos, %s, does not exist, so the photos are not shown. If the folder was"
            " moved, give its new path: jointspace serve %s --data-root FOLDER",
            folder, photos, shlex.quote(str(folder)),
        )  # fmt: skip
    hidden = (
        [] if columns is None else set(index.packed_table("images").schema.names).difference(BUILT_IN_COLUMNS, columns)
    )
    source = index.photographs(images_root, settings.collection.follow_links)
    searcher = Searcher(index, hidden)
    return ServedGallery(searcher, _encoder_of(index, encoders), source.read, decode, THUMBNAIL_SIDE)


def _encoder_of(index: "StoredIndex", encoders: "SharedEncoders") -> Callable[[bytes], Mapping[str, Any]]:
    """Return a function from the bytes of a photo to encoder -> features, by the encoders of the index.

    The encoders are loaded when the first photo is encoded.
    """
    from pipeline.index.queries import StoredEncoder

    stored = {name: StoredEncoder(index, name) for name in index.card.encoders}
    return lambda data: encoders(data, stored)


def _open_describers(
    run: Run, names: tuple[str, ...], galleries: Collection["ServedGallery"]
) -> dict[str, "Describer"]:
    """Open the caption generators `names` of a run, and return them as name -> describer. A repeated name gets a
    number.

    Each describer encodes photos with the encoders of one of the served indexes.
    """
    from pipeline.run.reading.generators import gather_sources, read_corpus, read_generator
    from pipeline.serve.gallery import Describer

    corpus = read_corpus(run)
    describers = {}
    sources = {}
    for name in names:
        stored = read_generator(run, name)
        features = _gallery_with_encoders(stored, galleries).features
        if stored.space not in sources:  # Generators with the same space share their sources, which need much memory.
            sources[stored.space] = gather_sources(run, stored, corpus, _index_of_space(stored, galleries))
        describers[_free_name(stored.name, describers)] = Describer(
            stored.spec.name, stored.generator, sources[stored.space], features, run.config.describe.top
        )
    return describers


def _gallery_with_encoders(stored: "StoredGenerator", galleries: Collection["ServedGallery"]) -> "ServedGallery":
    """Return the gallery that has all encoders of a generator and the fewest other encoders.

    Raises UsageError if no gallery has all of them.
    """
    from pipeline.errors import UsageError

    wanted = set(stored.generator.encoders)
    fitting = [gallery for gallery in galleries if wanted <= set(gallery.card.encoders)]
    if not fitting:
        raise UsageError(
            f"{stored.folder} needs the encoders {' and '.join(stored.generator.encoders)}, and no served index has"
            " all of them. Also serve an index whose model uses these encoders."
        )
    return min(fitting, key=lambda gallery: len(gallery.card.encoders))


def _index_of_space(stored: "StoredGenerator", galleries: Collection["ServedGallery"]) -> "StoredIndex | None":
    """Return the index whose joint space the generator uses, or None if it uses no joint space.

    Raises UsageError if none of the served indexes has this joint space.
    """
    from pipeline.errors import UsageError

    if stored.space is None:
        return None
    for gallery in galleries:
        index = gallery.searcher.index
        if index.first.model().fingerprint == stored.space:
            return index
    raise UsageError(
        f"{stored.folder} uses a joint space that no served index has. Also serve the index of the model with which the"
        " generator was trained."
    )
