"""`extract`: features of images."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import JointspaceError
from pipeline.run import Job, Run, Stage
from pipeline.specs.encoders import TRAINED

if TYPE_CHECKING:
    from pipeline.images.extraction import Extractor
    from pipeline.images.preprocess import View

log = logging.getLogger(__name__)


def extract(run: Run, *encoders: str) -> Callable[..., None]:
    """Extract the features of images; a killed run is resumed."""
    from itertools import groupby, islice

    from tqdm import tqdm

    from pipeline.images.decode import ImageLimits
    from pipeline.images.extraction import extract_in_step
    from pipeline.images.preprocess import Photograph, load_views
    from pipeline.images.stopwatch import Stopwatch
    from pipeline.storage.features import UnfinishedShard, to_stored

    opened = dict(_open(run, encoders))
    chosen, limits, read = run.config.extract, ImageLimits.from_settings(run.config.collection), run.images.read

    def make(*jobs: Job) -> None:
        photographs = [Photograph.from_row(row) for row in run.manifest.table("images", jobs[0].number).to_pylist()]
        made, stopwatch = {job.names[0]: job for job in jobs if job.names[0] in opened}, Stopwatch()
        shards = {
            name: UnfinishedShard(job.path, job.fingerprint, job.image_id, chosen.checkpoint_images)
            for name, job in made.items()
        }
        shared = {"decoded_for": max(opened[name].view.preprocessing.resize for name in made)} if len(made) > 1 else {}
        lacking: dict[range, list[str]] = {}
        for name, shard in shards.items():
            for part in shard.missing():
                lacking.setdefault(part, []).append(name)
        for wanted, group in groupby(sorted(lacking, key=lambda part: part.start), key=lacking.__getitem__):
            parts, names = list(group), [name for name in wanted if name in opened]
            if not (using := [opened[name] for name in names]):
                continue
            todo = [photographs[row] for part in parts for row in part]
            pictures = load_views(todo, read, limits, [one.view for one in using], run.decoders)
            pictures = stopwatch.iterate("decode", tqdm(pictures, "extract", len(todo), unit=" images", disable=None))
            for part in parts:
                features = extract_in_step(islice(pictures, len(part)), [one.extractor for one in using])
                for name, found in zip(names, features, strict=True):
                    with stopwatch.measure("write"), _by_its_own_job(name, encoders, opened):
                        stored = to_stored(found, chosen.storage, [photographs[row].name for row in part])
                        shards[name].write(part, stored)
        for name in (name for name in made if name in opened):
            encoder, batch_size = opened[name].described, opened[name].extractor.plan.batch_size
            about = {"encoder": encoder, "inputs": made[name].inputs, "batch_size": batch_size}
            shards[name].publish({**about, **shared})
        log.info("shard %d: %s", jobs[0].number, stopwatch.describe(sum(map(len, lacking))))

    return make


class OpenedEncoder(NamedTuple):
    """What an encoder takes of a photograph, what makes features of that, and what a shard's card says of it."""

    view: "View"
    extractor: "Extractor"
    described: dict[str, Any]


def _open(run: Run, encoders: Sequence[str]) -> Iterator[tuple[str, OpenedEncoder]]:
    """Each of the encoders by its name; without others than the first that cannot be opened."""
    from pipeline.images.preprocess import View
    from pipeline.specs.stored import restore_encoder

    chosen = run.config.extract
    for name in encoders:
        with _by_its_own_job(name, encoders):
            parameters = run.encoder(name)
            network = restore_encoder(parameters.settings, parameters.tensors)
            work = network.work(run.config.device, chosen.precision, run.batch_size)
            if chosen.batch_size is None:
                work.extractor.grow(network.preprocessing.side)
            precision = {"precision": work.extractor.plan.precision}
            described = {"name": name, "sha256": parameters.sha256, **parameters.settings, **precision}
            yield name, OpenedEncoder(View(network.preprocessing, work.describe), work.extractor, described)


@contextmanager
def _by_its_own_job(name: str, encoders: Sequence[str], opened: dict[str, OpenedEncoder] | None = None):
    """What goes wrong with another encoder than the first is its own job's to say: here it is left out of `opened`."""
    try:
        yield
    except JointspaceError as error:
        if name == encoders[0]:
            raise
        log.info("without %s, whose own job says more: %s", name, error)
        if opened is not None:
            opened.pop(name, None)


def _together(config) -> list[tuple[str]]:
    """The encoders of the run that are there from the start; one that is trained is waited for by its own job."""
    able = [one for one in config.encoders if one.spec.reads == "pixels" and not one.spec.learned]
    return [(one.name,) for one in able if one.weights not in TRAINED] if config.extract.together else []


STAGE = Stage(
    extract,
    version=5,
    memory=4000,
    gpu=True,
    names=("encoder",),
    sharded=True,
    threads=16,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "pixels"],
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: {"encoder": layout.encoder(encoder)},
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
    together=_together,
)
