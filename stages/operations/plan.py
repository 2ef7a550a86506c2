"""What a run will take on this machine, by a few photos that are encoded here; and what the machine lacks."""

import hashlib
import io
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import click

from pipeline.compute import runtime
from pipeline.errors import UsageError
from pipeline.printable import printable_json
from pipeline.run import Run
from stages.commands import FILE, FOLDER, PATH, config_option, json_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.images.preprocess import Photograph
    from pipeline.plan.machine import Speed

SIDES, QUALITY = (500, 375), 85
"""Pixels and JPEG quality of synthetic photos."""


class Sample(NamedTuple):
    """Some photographs, and what reads the bytes of one by its location."""

    photographs: "list[Photograph]"
    read: "Callable[..., bytes]"


@click.command("plan")
@click.argument("configuration", type=FILE, required=False)
@click.option("--run", "root", type=FOLDER, help="Folder of the run.")
@click.option("--images", type=click.FloatRange(min=10), help="Number of photos, e.g. 100e6. [default: the run's]")
@click.option("--sentences", type=click.FloatRange(min=0), help="Captions per photo. [default: the run's, else 1]")
@click.option(
    "--sample", type=click.IntRange(min=8), default=64, show_default=True, help="Photos to encode as a measurement."
)
@json_option
@config_option
def plan(
    configuration: Path | None,
    root: Path | None,
    config_path: Path | None,
    images: float | None,
    sentences: float | None,
    sample: int,
    as_json: bool,
) -> None:
    """Encode a few photos on this machine, then estimate the hours, disk and memory of a run.

    Before `ingest` has read the photos, the command encodes synthetic ones. Give the number of photos as --images then.
    """
    from pipeline.config import loading
    from pipeline.plan.machine import estimate, format_estimate

    if config_path := config_path or configuration:
        chosen = loading.load(config_path)
    elif root:
        chosen = Run(root).config
    else:
        raise UsageError("plan: give a configuration, such as holiday.yaml, or a run (--run)")
    run = Run(root or Path(chosen.results_root) / chosen.name, chosen)
    ingested = run.layout.manifest.commit.exists()
    if images is None and not ingested:
        raise UsageError(
            f"plan: {run.root} has no manifest yet; ingest first, or give the number of photos as --images"
        )
    speeds = dict(measure(run, own_photographs(run, sample) if ingested else draw_photographs(sample)))
    of_each = sentences
    if of_each is None:
        of_each = len(run.manifest.sentence_images) / run.manifest.n_images if ingested else 1
    count = round(images) if images is not None else run.manifest.n_images
    found = estimate(chosen, count, round(count * of_each), speeds)
    if as_json:
        click.echo(printable_json({"speeds": {name: asdict(speed) for name, speed in speeds.items()}, **asdict(found)}))
        return
    kind = "the run's" if ingested else "synthetic"
    for name, speed in speeds.items():
        click.echo(f"{name}: {speed.images_per_second:,.1f} photos a second ({kind}), {speed.dim} dimensions")
    click.echo("\n".join(format_estimate(found)))


def measure(run: Run, sample: Sample) -> "Iterator[tuple[str, Speed]]":
    """The name and speed of each encoder that reads pixels, with untrained weights where it is not prepared; an encoder
    that must learn or be fetched first is left out.

    On a GPU the decoders and the network work at the same time; on a processor they take turns.
    """
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.restore import restore_encoder
    from pipeline.images.opening import ImageLimits
    from pipeline.images.preprocess import PhotographReader
    from pipeline.plan.machine import Speed
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
        extractor = encoder.extractor(settings.device, settings.extract.precision, run.batch_size)
        view = extractor.view
        assert view is not None
        start = perf_counter()
        pictures = [picture for photograph in sample.photographs for picture in reader.load([view], photograph)]
        processes = max(1, min(runtime.threads(), run.decoders))
        decoding = (perf_counter() - start) / processes
        dim = extractor(pictures[: run.batch_size]).shape[1]  # kernels are chosen in the first pass
        start = perf_counter()
        extractor(pictures)
        forward = perf_counter() - start
        seconds = decoding + forward if extractor.plan.device.type == "cpu" else max(decoding, forward)
        yield entry.name, Speed(len(pictures) / seconds, dim)


def own_photographs(run: Run, count: int) -> Sample:
    """Return a sample of `count` photos of the run, evenly spaced."""
    from pipeline.images.preprocess import Photograph
    from pipeline.index.exact import evenly_spaced

    rows = run.manifest.pick(evenly_spaced(run.manifest.n_images, count))
    return Sample([Photograph.from_row(row) for row in rows], run.images.read)


def draw_photographs(count: int, seed: int = 0) -> Sample:
    """Return a sample of `count` synthetic photos: smooth noise with a grain, as JPEGs."""
    import numpy as np
    from PIL import Image

    from pipeline.images.preprocess import Photograph

    rng, drawn = np.random.default_rng(seed), {}
    for number in range(count):
        noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        smooth = np.asarray(noise.resize(SIDES, Image.Resampling.BICUBIC))
        pixels = np.clip(smooth + rng.integers(-8, 9, smooth.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
        drawn[f"{number}.jpg"] = file.getvalue()
    listed = [Photograph(name, hashlib.sha256(data).hexdigest(), (name, None, None)) for name, data in drawn.items()]
    return Sample(listed, lambda path, *_: drawn[path])


@click.command("doctor")
@click.option("--folder", type=PATH, help="Check the free space of this folder's disk. [default: results_root]")
@json_option
@config_option
def doctor(folder: Path | None, as_json: bool, config_path: Path | None) -> None:
    """Check devices, BLAS, faiss, free disk and memory, and extras; exits with 1 if something needed is missing."""
    from pipeline.config import loading
    from pipeline.plan.machine import examine

    findings = examine(folder or Path(loading.load(config_path).results_root))
    missing = [finding.what for finding in findings if finding.mark == "MISS"]
    if as_json:
        click.echo(printable_json([vars(finding) for finding in findings]))
        sys.exit(bool(missing))
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        click.echo(f"{finding.mark:4} {finding.what:14} {finding.found}{remedy}")
    if missing:
        click.echo(f"missing: {', '.join(missing)}", err=True)
        sys.exit(1)
    click.echo("everything needed is here")
