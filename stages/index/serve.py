"""`serve`: indexes, and generators of descriptions, behind a page and a JSON API."""

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
from stages.commands import FOLDER, config_option, images_option, verify_option

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.config.names import Config
    from pipeline.index.queries import SharedEncoders
    from pipeline.run.reading.generators import StoredGenerator
    from pipeline.serve.gallery import Describer, ServedGallery
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)
THUMBNAIL_SIDE = 320
"""Longer side in pixels of photos as the page shows them."""
SUMMARY = Path("evaluation", "summary.json")
HEAD_BYTES = 1 << 14
"""Number of bytes of a request's head beside the sentence in it."""
SENT_BYTES = 12
"""Largest number of bytes of a character of a sentence in an address: four bytes, each as %XX."""
LAST_SECONDS = 5
"""Seconds in which visitors must have their answers when the server is stopped."""


@dataclass(frozen=True)
class ServeOptions:
    """The indexes and generators that are served, and their address: see the options of the command."""

    folders: tuple[Path, ...]
    images_root: Path | None = None
    root: Path | None = None
    generators: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    allowed: tuple[str, ...] = ()
    port: int = 8000
    top: int | None = None
    columns: tuple[str, ...] = ()
    lazy: bool = False
    verify: bool = False
    config_path: Path | None = None


@click.command("serve")
@click.argument("folders", nargs=-1, required=True, metavar="INDEX...", type=FOLDER)
@images_option
@click.option("--run", "root", type=FOLDER, help="Run that you trust: its generators and its parser are used.")
@click.option("--generator", "generators", multiple=True, help="Caption generator of --run; may be repeated.")
@click.option(
    "--host", default=ServeOptions.host, show_default=True, help="Address to listen on; 0.0.0.0 lets everyone in."
)
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME",
    help="A host name that browsers use; requests for others are refused. [default: any, if --host lets others in]",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=ServeOptions.port, show_default=True, help="0 takes a free one."
)
@click.option("--top", type=click.IntRange(min=1), help="Number of results shown at first. [default: serve.top]")
@click.option(
    "--column", "columns", multiple=True, metavar="NAME",
    help="Own column of the collection to show; may be repeated. [default: all, or none if others can reach the page]",
)  # fmt: skip
@click.option("--lazy", is_flag=True, help="Load the image encoders when the first photo arrives, not at start-up.")
@verify_option
@config_option
def command(**options: Any) -> None:  # Any: the fields of ServeOptions, as click has parsed them
    """Start a search page and a JSON API for one or more indexes.

    With generators it also writes captions. Whoever reaches the address can see the photos; by default, only this
    machine can.
    """
    serve(ServeOptions(**options))


def serve(options: ServeOptions) -> None:
    """Serve indexes, and generators of captions, until the process is told to stop.

    Raises UsageError for options that do not fit each other or the indexes, and if the address cannot be had.
    """
    from pipeline.compute import runtime
    from pipeline.config import loading
    from pipeline.errors import UsageError
    from pipeline.images.decode import ImageProcess, check_header, decoding_process
    from pipeline.images.opening import ImageLimits
    from pipeline.index.queries import SharedEncoders

    try:
        import uvicorn

        from pipeline.serve.app import build_app
        from pipeline.serve.border import ANY_HOST, Limits, in_address, is_loopback, trusted_hosts
        from pipeline.serve.gallery import ServedIndex
    except ImportError as error:
        raise UsageError(f"serve needs {error.name}; pip install 'jointspace[serve]'") from error

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
        raise UsageError(f"a request may ask for at most {limits.max_top} results, not {limits.top}; ask for fewer")
    named = _name_all(options.folders)
    image_limits = ImageLimits.from_settings(settings.collection)
    upload_limits = replace(image_limits, max_pixels=settings.serve.max_upload_pixels)
    check = ImageProcess(partial(check_header, limits=upload_limits), "serve.max_upload_pixels")
    uploads, thumbnails = decoding_process(image_limits), decoding_process(image_limits)  # which end with this process
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every bad form
    with _listen(options.host, options.port) as listener:
        bound, port = listener.getsockname()[:2]
        hosts = trusted_hosts(options.host, bound, options.allowed)
        private = is_loopback(bound) and not options.allowed
        columns = options.columns or settings.serve.columns
        shown = () if columns is None and not private else columns
        encoders, skip_verified = SharedEncoders(uploads), not options.verify
        shared = options.images_root, thumbnails, settings, encoders, options.root, shown, skip_verified
        indexes = {
            name: ServedIndex(name, partial(_open_gallery, folder, *shared), partial(_stamp, folder))
            for name, folder in named.items()
        }
        galleries = [index.gallery for index in indexes.values()]
        if missing := set(columns or ()).difference(*(gallery.columns for gallery in galleries)):
            raise UsageError(f"no index has a column {min(missing)}; correct --column or serve.columns")
        describers = {}
        if options.generators:
            if run is None:
                raise UsageError("--generator needs the generator's run; give --run too")
            describers = _open_describers(run, options.generators, galleries)
        originals = settings.serve.originals
        app = build_app(
            indexes, limits, runtime.threads(), hosts, check, describers,
            warm=not options.lazy, originals=private if originals is None else originals,
        )  # fmt: skip
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                proxy_headers=False,
                limit_concurrency=settings.serve.max_connections,
                h11_max_incomplete_event_size=HEAD_BYTES + SENT_BYTES * limits.max_sentence_chars,
                timeout_graceful_shutdown=LAST_SECONDS,
                log_level="warning",
                access_log=False,
                server_header=False,
            )
        )
        names = ", ".join([*indexes, *describers])
        log.info("%s at http://%s:%d (stop with Ctrl-C)", names, in_address(options.host), port)
        if ANY_HOST in hosts:
            log.warning(
                "it answers anyone who reaches this machine, under any name; --allow-host NAME admits only that name"
            )
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free port. Raises UsageError if it cannot be had."""
    from pipeline.errors import UsageError

    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port} ({reason}); choose another --port or --host") from error


def _stamp(folder: Path) -> tuple[tuple[int, ...], ...] | None:
    """Return a value that changes with every new card in the index `folder` and with every list of removed photos in
    its run, or None if there is no index. If another index of the run is damaged, changes of this index still count."""
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
    """Return the indexes by the names of their models. An index with a name that is taken gets a number.

    The indexes that their run has evaluated come first, and the best one before the others.
    """
    from pipeline.errors import MALFORMED, JointspaceError
    from pipeline.metrics.summary import ranking
    from pipeline.storage.json_files import read_json
    from pipeline.storage.stored_index import open_index

    def place(folder: Path) -> float:
        try:
            evaluations = ranking(read_json(folder.absolute().parents[1] / SUMMARY))
            return [evaluation["model"] for evaluation in evaluations].index(open_index(folder).card.model)
        except (OSError, IndexError, JointspaceError, *MALFORMED):
            return math.inf

    named: dict[str, Path] = {}
    for folder in sorted(folders, key=place):
        named[_free_name(open_index(folder).card.model, named)] = folder
    return named


def _free_name(name: str, taken: Collection[str]) -> str:
    """`name`, with a number behind it where it is taken."""
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
    """Open the index in `folder` for the page, which shows these own `columns` of the collection, or all (None).

    `skip_verified` is explained by IndexShard.
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
            "%s: the folder of its photos, %s, is not here, so these photos are not shown. If it was moved, name its"
            " new place: jointspace serve %s --images FOLDER",
            folder, photos, shlex.quote(str(folder)),
        )  # fmt: skip
    hidden = (
        [] if columns is None else set(index.packed_table("images").schema.names).difference(BUILT_IN_COLUMNS, columns)
    )
    source = index.photographs(images_root, settings.collection.follow_links)
    searcher = Searcher(index, hidden)
    return ServedGallery(searcher, _encoder_of(index, encoders), source.read, decode, THUMBNAIL_SIDE)


def _encoder_of(index: "StoredIndex", encoders: "SharedEncoders") -> Callable[[bytes], Mapping[str, Any]]:
    """Return a function that encodes photos like the photos of the index. It loads the encoders for the first photo."""
    from pipeline.index.queries import StoredEncoder

    stored = {name: StoredEncoder(index, name) for name in index.card.encoders}
    return lambda data: encoders(data, stored)


def _open_describers(
    run: Run, names: tuple[str, ...], galleries: Collection["ServedGallery"]
) -> dict[str, "Describer"]:
    """By the names of their generators; one of a name that is taken gets a number. Each has the eyes of a gallery."""
    from pipeline.run.reading.generators import gather_sources, read_corpus, read_generator
    from pipeline.serve.gallery import Describer

    corpus = read_corpus(run)
    describers, sources = {}, {}
    for name in names:
        stored = read_generator(run, name)
        features = _gallery_with_encoders(stored, galleries).features
        if stored.space not in sources:  # which take memory
            sources[stored.space] = gather_sources(run, stored, corpus, _index_of_space(stored, galleries))
        describers[_free_name(stored.name, describers)] = Describer(
            stored.spec.name, stored.generator, sources[stored.space], features, run.config.describe.top
        )
    return describers


def _gallery_with_encoders(stored: "StoredGenerator", galleries: Collection["ServedGallery"]) -> "ServedGallery":
    """The one with the fewest encoders among those that have all of the generator's."""
    from pipeline.errors import UsageError

    wanted = set(stored.generator.encoders)
    fitting = [gallery for gallery in galleries if wanted <= set(gallery.card.encoders)]
    if not fitting:
        raise UsageError(
            f"{stored.folder} needs the encoders {' and '.join(stored.generator.encoders)}, which no served index has;"
            " serve the index of a model on all of its encoders too"
        )
    return min(fitting, key=lambda gallery: len(gallery.card.encoders))


def _index_of_space(stored: "StoredGenerator", galleries: Collection["ServedGallery"]) -> "StoredIndex | None":
    """Return the index whose joint space the generator uses, or None if it uses no joint space."""
    from pipeline.errors import UsageError

    if stored.space is None:
        return None
    for gallery in galleries:
        index = gallery.searcher.index
        if index.first.model().fingerprint == stored.space:
            return index
    raise UsageError(
        f"{stored.folder} uses a joint space that no served index has; serve the index that it was trained with too"
    )
