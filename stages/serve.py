"""`serve`: bundles behind a page and a JSON API."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    import socket

    from pipeline.config.root import Config
    from pipeline.images.decode import ImageLimits
    from pipeline.serve.gallery import Gallery
    from pipeline.storage.bundle import Bundle

LOCAL = ("127.0.0.1", "localhost")


@click.command("serve")
@click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...", type=options.FOLDER)
@click.option(
    "--images", "images_root", type=options.FOLDER,
    help="Folder of the photographs. [default: the data root that each bundle was made from]",
)  # fmt: skip
@click.option("--host", default=LOCAL[0], show_default=True, help="Address to listen on; 0.0.0.0 lets everyone in.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--top", type=click.IntRange(min=1), help="Number of results shown at first. [default: serve.top]")
@options.config
def command(
    bundles: tuple[Path, ...],
    images_root: Path | None,
    host: str,
    port: int,
    top: int | None,
    config_path: Path | None,
) -> None:
    """Answer sentences and photographs from one or several bundles in a browser, and as JSON for programs.

    Whoever reaches the address can see the photographs; by default that is this machine alone.
    """
    import logging

    from pipeline import config, runtime
    from pipeline.errors import UsageError
    from pipeline.serve.limits import Limits

    try:
        import uvicorn

        from pipeline.serve.app import build_app
    except ImportError as error:
        raise UsageError(f"serve needs {error.name}; pip install 'jointspace[serve]'") from error

    settings = config.load(config_path)
    given = settings.serve.model_dump(exclude={"thumbnail_side"}) | ({"top": top} if top else {})
    limits = Limits(max_sentence_chars=settings.collection.max_sentence_chars, **given)
    if limits.top > limits.max_top:
        raise UsageError(f"{limits.top} results are more than serve.max_top allows ({limits.max_top}); ask for fewer")
    galleries = _open_all(bundles, images_root, settings)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every bad form
    with _listen(host, port) as listener:
        app = build_app(galleries, limits, runtime.threads(), LOCAL if host in LOCAL else ("*",))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
        names, address = ", ".join(galleries), f"http://{host}:{listener.getsockname()[1]}"
        logging.getLogger(__name__).info("%s at %s (stop with Ctrl-C)", names, address)
        server.run(sockets=[listener])


def _open_all(bundles: tuple[Path, ...], images_root: Path | None, settings: "Config") -> dict[str, "Gallery"]:
    """By the names of their models; one of a name that is taken gets a number."""
    from pipeline.images.decode import ImageLimits
    from pipeline.index.search import open_searcher
    from pipeline.serve.gallery import Gallery
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.sources import ImageSource

    collection, galleries = settings.collection, {}
    limits = ImageLimits(collection.max_image_pixels, collection.min_image_side, collection.max_aspect_ratio)
    for folder in bundles:
        bundle = Bundle(folder)
        source = ImageSource(images_root or Path(bundle.card["data_root"]))
        name, number = bundle.card["model"], 2
        while name in galleries:
            name, number = f"{bundle.card['model']}-{number}", number + 1
        side = settings.serve.thumbnail_side
        galleries[name] = Gallery(open_searcher(bundle), _encoder_of(bundle, limits), source.read, limits, side)
    return galleries


def _encoder_of(bundle: "Bundle", limits: "ImageLimits") -> Callable[[bytes], Mapping[str, Any]]:
    """Encodes photographs as the bundle's were; its encoders, and torch, are loaded for the first one."""
    encoders: dict[str, Any] = {}

    def features(data: bytes) -> Mapping[str, Any]:
        from pipeline.images.kinds import restore
        from pipeline.index.query import encode_image

        if not encoders:
            parts = {name: bundle.encoder(name) for name in bundle.card["encoders"]}
            encoders.update({name: restore(part.settings, part.tensors) for name, part in parts.items()})
        return encode_image(data, encoders, limits)

    return features


def _listen(host: str, port: int) -> "socket.socket":
    import socket

    from pipeline.errors import UsageError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from error
