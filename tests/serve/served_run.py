"""Galleries, clients and applications over the synthetic run, for the tests of the server."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from synthetic_run import THINGS, by_hand, features_of, run_command

from pipeline.images.decode import check_header, decode
from pipeline.images.opening import ImageLimits
from pipeline.index.search import Searcher
from pipeline.serve.app import build_app
from pipeline.serve.border import Limits
from pipeline.serve.gallery import ServedGallery, ServedIndex
from pipeline.storage.stored_index import open_index
from pipeline.storage.tables import write_table

IMAGE_LIMITS = ImageLimits(max_pixels=1_000_000, min_side=8, max_aspect=20)
PIXELS = partial(decode, limits=IMAGE_LIMITS)
CHECK = partial(check_header, limits=IMAGE_LIMITS)
LIMITS = Limits(5, 0, 100, 4, max_top=20, max_upload_bytes=10_000, upload_seconds=5, max_descriptions=2)


def colour_of(thing: int) -> tuple[int, ...]:
    """Return the RGB colour of the synthetic photos that show the thing with the number `thing`."""
    return tuple(int(c) for c in np.random.default_rng(thing).integers(256, size=3))


def see(data: bytes) -> dict[str, np.ndarray]:
    """Return the features of a synthetic photo, as encoder -> (1, dim), from the bytes of its file: the features of the
    thing whose colour is nearest to the colour of the first pixel."""
    pixel = np.array(PIXELS(data).getpixel((0, 0)))
    return features_of(THINGS[int(np.argmin([np.abs(pixel - colour_of(thing)).sum() for thing in range(8)]))])


def open_gallery(*folders: Path) -> ServedGallery:
    """Open the indexes in `folders` as one gallery with the encoder `see`."""
    bundle = open_index(*folders)
    return ServedGallery(Searcher(bundle), see, bundle.photographs().read, PIXELS, 32)


def make_client(gallery: ServedGallery, limits: Limits = LIMITS, originals: bool = False) -> TestClient:
    """Return an HTTP client of an application that serves the gallery under the names `ncca` and `other`."""
    indexes = {name: ServedIndex(name, lambda: gallery) for name in ("ncca", "other")}
    return TestClient(build_app(indexes, limits, 2, ["testserver"], CHECK, originals=originals))


def photograph(run: Path, name: str = "dog-0.png") -> dict:
    """Return a form with the photo `name` of the run as the upload, for the argument `files` of an HTTP client."""
    return {"photograph": (name, (run / "data" / name).read_bytes())}


def audited_run(run: Path, folder: Path) -> Path:
    """Make a run in `folder` with a copy of the index of another run and with an audit that was not made by a stage,
    and return the folder of the copied index.

    The audit lists a near-duplicate, a single caption of each of two photos, and all captions of another photo. The
    list is not sorted.
    """
    index = shutil.copytree(run / "bundle", folder / "index/ncca")
    gallery = open_gallery(index)
    findings = []
    for image_id, score, whole in ((5, -2.0, True), (1, -1.0, False), (3, -3.0, False)):
        captions = gallery.sentences_of(image_id)
        numbers = {"image_id": image_id, "score": score, "threshold": -1.5, "reliable": image_id == 3}
        about = {"kind": "captions" if whole else "caption", "image": gallery.row(image_id)["path"]}
        findings.append({**about, **numbers, "captions": captions if whole else captions[:1], "other_image": None})
    copy = dict.fromkeys(findings[0]) | {"kind": "copy", "image": "dog-0.png", "image_id": 0, "score": 0.9}
    table = pa.Table.from_pylist([copy, *findings])
    write_table(folder / "audit/audit.parquet", "audit", table, provenance=by_hand(folder), details={"scored": True})
    return index


def serve_generators(run: Path, *names: str) -> FastAPI:
    """Return the application that the command `serve` would serve for the index `bundle` of a run and the generators
    `names`. No server is started."""
    return serve(run, "--trusted-run", run, *(part for name in names for part in ("--generator", name)))


def serve(run: Path, *arguments: object, index: str = "bundle") -> FastAPI:
    """Run the command `serve` for the folder `index` of a run with further command-line `arguments`, and return the
    application that the command would serve. No server is started, and photos are encoded by `see`."""
    started: list[FastAPI] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.index.serve._encoder_of", lambda bundle, decode: see)
        patch.setattr("uvicorn.Server.run", lambda server, sockets: started.append(server.config.app))
        run_command("serve", run / index, "--port", 0, *arguments)
    return started[0]
