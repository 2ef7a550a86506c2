"""`plan`: estimates the time, disk and memory of a run on this machine. `doctor`: checks this machine."""

import hashlib
import io
import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import click

from pipeline.compute import runtime
from pipeline.errors import InputError, UsageError
from pipeline.printable import printable_json
from pipeline.run import Run
from stages.commands import CONFIG, PATH, Command, json_option, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.config.names import Config
    from pipeline.images.preprocess import Photograph
    from pipeline.run.machine import Speed

log = logging.getLogger(__name__)
SYNTHETIC_SIZE = (500, 375)
"""Width and height of synthetic photos, in pixels."""
SYNTHETIC_QUALITY = 85
"""JPEG quality of synthetic photos."""
DEMO_CAPTIONS = 5
"""Number of captions of each captioned photo of the demo."""


class Sample(NamedTuple):
    """Some photos, and a function `read` that returns the bytes of a photo by the location of the photo. `kind` says,
    for the user, where the photos are from."""

    photographs: "list[Photograph]"
    read: "Callable[..., bytes]"
    kind: str


class Collection(NamedTuple):
    """The number of photos and captions of a collection, and a sample of its photos."""

    images: int
    sentences: int
    sample: Sample


@click.command(
    "plan", cls=Command,
    former={"--run": "", "--config": "", "--images": "--photos", "--sentences": "--captions-per-photo"},
)  # fmt: skip
@click.argument("target", metavar="CONFIG|RUN", type=PATH, required=False)
@click.option(
    "--photos", "images", type=click.FloatRange(min=10), metavar="N",
    help="Number of photos, e.g. 100e6. [default: the photos of the collection]",
)  # fmt: skip
@click.option(
    "--captions-per-photo", "sentences", type=click.FloatRange(min=0), metavar="N",
    help="Captions per photo. [default: as in the collection, or 1]",
)  # fmt: skip
@click.option(
    "--sample", type=click.IntRange(min=8), metavar="N", default=64, show_default=True,
    help="Number of photos to encode as a measurement.",
)  # fmt: skip
@json_option
def plan(target: Path | None, images: float | None, sentences: float | None, sample: int, as_json: bool) -> None:
    """Estimate the hours, disk and memory of a run.

    Give a configuration or the folder of a run. The command counts the photos of the collection, and encodes a sample
    of them on this machine. If there is no collection yet, it encodes synthetic photos, and --photos is needed.
    """
    from pipeline.config import loading
    from pipeline.run.machine import estimate, format_estimate

    if target is None:
        raise UsageError("Give a configuration or a run, as in: jointspace plan holiday.yaml")
    chosen = Run(target).config if target.is_dir() else loading.load(target)
    run = Run(target if target.is_dir() else Path(chosen.results_root) / chosen.name, chosen)
    collection = _count_collection(run, sample)
    if collection is None:
        if images is None:
            raise UsageError(
                f"data_root {chosen.data_root} does not exist. Correct this key in {target}, or give the number of"
                f" photos: jointspace plan {shlex.quote(str(target))} --photos 1000"
            )
        collection = Collection(1, 1, draw_photographs(sample))
    photos = collection.images if images is None else round(images)
    captions = collection.sentences / collection.images if sentences is None else sentences
    speeds = dict(measure(run, collection.sample))
    found = estimate(chosen, photos, round(photos * captions), speeds)
    if as_json:
        click.echo(printable_json({"speeds": {name: asdict(speed) for name, speed in speeds.items()}, **asdict(found)}))
        return
    kind = collection.sample.kind
    for name, speed in speeds.items():
        click.echo(f"{name}: {speed.images_per_second:,.1f} photos per second ({kind}), {speed.dim} dimensions")
    click.echo("\n".join(format_estimate(found)))


def _count_collection(run: Run, sample: int) -> Collection | None:
    """Count the photos and captions of a run's collection, and sample its photos.

    The manifest is used if `ingest` has written it. Otherwise, the numbers for the demo come from the section `demo`,
    and its sample has synthetic photos. For any other collection, the lists and files of the collection are read as
    `ingest` reads them, without opening the photos. Return None if the folder of such a collection does not exist.
    """
    if run.layout.manifest.commit.exists():
        manifest = run.manifest
        return Collection(manifest.n_images, len(manifest.sentence_images), own_photographs(run, sample))
    demo = run.config.demo
    if demo.generate:
        captioned = demo.train + demo.dev + demo.test
        return Collection(captioned + demo.weak, DEMO_CAPTIONS * captioned, draw_photographs(sample))
    if not Path(run.config.data_root).exists():
        return None
    return _read_collection(run.config, sample)


def _read_collection(config: "Config", sample: int) -> Collection:
    """Read the lists of a collection that was not ingested, and count its usable photos and their captions.

    A photo is usable if its record has no fault and its file exists. A collection of vectors gets an empty sample.
    Raises InputError if there is no usable photo.
    """
    from tqdm import tqdm

    from pipeline.collections import formats
    from pipeline.collections.files import CollectionFolder
    from pipeline.collections.formats.vectors import FORMAT
    from pipeline.collections.intake import Intake
    from pipeline.collections.records import Options
    from pipeline.images.preprocess import Photograph
    from pipeline.storage.sources import ImageSource

    root = Path(config.data_root)
    settings = config.collection
    options = Options.from_settings(settings)
    log.info("The photos in %s are being counted", root)
    records = tqdm(formats.read(settings.format, root, options), "read", unit=" records", disable=None)
    folder = None if settings.format == FORMAT else CollectionFolder(root, options)
    with closing(Intake(settings.max_sentence_chars, (), folder=folder, gigabytes=settings.memory_gb)) as intake:
        tables = intake.add(records).tables
        usable = f"fault IS NULL{' AND there' * (folder is not None)}"
        images = tables.value(f"SELECT count(*) FROM images WHERE {usable}")
        if not images:
            raise InputError(f"{root} has no photo that can be used. Check data_root and the section collection.")
        owned = f"SELECT count(*) FROM sentences WHERE owner IN (SELECT seq FROM images WHERE {usable})"
        sampled = f'SELECT path, "offset", size FROM images WHERE {usable} ORDER BY hash(path) LIMIT {sample}'
        source = ImageSource(root, settings.follow_links)
        photographs = []
        for location in tables.rows(sampled) if folder else ():
            digest = hashlib.sha256(source.read(*location)).hexdigest()
            photographs.append(Photograph(location[0], digest, location))
        return Collection(images, tables.value(owned), Sample(photographs, source.read, "the collection's"))


def measure(run: Run, sample: Sample) -> "Iterator[tuple[str, Speed]]":
    """Measure the speed of each encoder of the run that reads pixels, and yield (name, speed).

    An encoder without prepared weights gets random weights, which are as fast. An encoder that must learn first, or
    whose architecture is in a file that does not exist, is left out. On a GPU, photos are decoded while the network
    computes. On a CPU, the times of decoding and of the network are added. Raises InputError if no photo of the sample
    can be decoded.
    """
    from tqdm import tqdm

    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.restore import restore_encoder
    from pipeline.images.opening import ImageLimits
    from pipeline.images.preprocess import PhotographReader
    from pipeline.run.machine import Speed
    from pipeline.run.reading.encoders import encoder_material

    settings = run.config
    reader = PhotographReader(sample.read, ImageLimits.from_settings(settings.collection))
    for entry in settings.encoders:
        if entry.spec.reads != "pixels":
            continue
        if run.layout.encoder(entry.name).commit.exists():
            parameters = run.encoder(entry.name)
            encoder = restore_encoder(ImageEncoder, parameters)
        elif untrained := entry.without_weights():
            encoder = entry.spec.load().prepare(untrained, encoder_material(run, untrained))
        else:
            continue
        log.info("The speed of the encoder %s is being measured with %d photos", entry.name, len(sample.photographs))
        extractor = encoder.extractor(settings.device, settings.extract.precision, run.batch_size)
        view = extractor.view
        assert view is not None
        start = perf_counter()
        pictures = []
        for photograph in tqdm(sample.photographs, f"decode for {entry.name}", unit=" photos", disable=None):
            with suppress(InputError):  # A photo that cannot be decoded is left out, because `ingest` will reject it.
                pictures += reader.load([view], photograph)
        if not pictures:
            raise InputError(
                f"None of {len(sample.photographs)} sampled photos can be decoded. Check that the files are whole, and"
                " check the libraries with `jointspace doctor`."
            )
        processes = max(1, min(runtime.threads(), run.decoders))
        decoding = (perf_counter() - start) / processes
        batches = [pictures[first : first + run.batch_size] for first in range(0, len(pictures), run.batch_size)]
        dim = extractor(batches[0]).shape[1]  # The first pass also chooses kernels, so it is not timed.
        start = perf_counter()
        for batch in tqdm(batches, f"encode with {entry.name}", unit=" batches", disable=None):
            extractor(batch)
        forward = perf_counter() - start
        seconds = decoding + forward if extractor.plan.device.type == "cpu" else max(decoding, forward)
        yield entry.name, Speed(len(pictures) / seconds, dim)


def own_photographs(run: Run, count: int) -> Sample:
    """Return a sample of at most `count` photos of the run, evenly spaced in the order of the manifest."""
    from pipeline.images.preprocess import Photograph
    from pipeline.index.exact import evenly_spaced

    rows = run.manifest.pick(evenly_spaced(run.manifest.n_images, count))
    return Sample([Photograph.from_row(row) for row in rows], run.images.read, "the run's")


def draw_photographs(count: int) -> Sample:
    """Return a sample of `count` synthetic photos, always the same: JPEGs of smooth noise with a fine grain."""
    import numpy as np
    from PIL import Image

    from pipeline.images.preprocess import Photograph

    rng = np.random.default_rng(0)
    drawn = {}
    for number in range(count):
        noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        smooth = np.asarray(noise.resize(SYNTHETIC_SIZE, Image.Resampling.BICUBIC))
        pixels = np.clip(smooth + rng.integers(-8, 9, smooth.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=SYNTHETIC_QUALITY)
        drawn[f"{number}.jpg"] = file.getvalue()
    listed = [Photograph(name, hashlib.sha256(data).hexdigest(), (name, None, None)) for name, data in drawn.items()]
    return Sample(listed, lambda path, *_: drawn[path], "synthetic")


@click.command("doctor", cls=Command, former={"--config": "", "--folder": "--disk"})
@click.argument("config_path", metavar="[CONFIG]", type=CONFIG, required=False)
@click.option(
    "--disk", "folder", type=PATH, metavar="FOLDER",
    help="Check the free space of the disk of this folder. [default: results_root]",
)  # fmt: skip
@json_option
def doctor(config_path: Path | None, folder: Path | None, as_json: bool) -> None:
    """Check this machine and the installed libraries.

    Devices, memory, the disk and extras are checked too. CONFIG is a configuration whose results_root is the disk to
    check. The exit code is 1 if something needed is missing.
    """
    from pipeline.config import loading
    from pipeline.run.machine import examine

    findings = examine(folder or Path(loading.load(config_path).results_root))
    missing = [finding.what for finding in findings if finding.mark == "MISS"]
    if as_json:
        click.echo(printable_json([vars(finding) for finding in findings]))
        sys.exit(bool(missing))
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        say(f"{finding.mark:4} {finding.what:14} {finding.found}{remedy}")
    if missing:
        click.echo(
            f"The checks of {', '.join(missing)} failed. The lines above that begin with MISS say what to do.", err=True
        )
        sys.exit(1)
    click.echo("All required libraries are installed.")
