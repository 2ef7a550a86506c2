"""`extract`: features of images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pipeline.run import Job, Run, stage

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config
    from pipeline.run.reading.photos import Part


def _extracted(config: "Config", encoders: "Iterable[EncoderEntry]") -> list[tuple[str]]:
    """Those of the encoders that read photographs, and whose features are not mapped from others."""
    return [(one.name,) for one in encoders if one.spec.reads == "pixels" and one.name not in config.extract.mapped]


@stage(
    version=6,
    gpu=True,
    choices=lambda config: _extracted(config, config.every_encoder),
    wanted=lambda config: _extracted(config, config.encoders),
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: [layout.encoder(encoder)],
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
    together="encoder",
    in_stream=True,
)
def extract(run: Run, *encoders: str) -> Callable[[Iterable[Sequence[Job]]], Iterator[int]]:
    """Extract image features with every encoder, or with one; each photo is decoded once. Resumable."""
    from pipeline.compute.workers import behind
    from pipeline.encoders.extraction import extract_in_step
    from pipeline.images.preprocess import Photograph
    from pipeline.run.reading.photos import describe_parts, missing_parts, open_encoder, photograph_reader
    from pipeline.storage.features import UnfinishedShard, to_stored

    settings, reader = run.config.extract, photograph_reader(run)
    extractors, described = {}, {}
    for name in encoders:
        extractors[name], described[name] = open_encoder(run, name)

    def make(shards: Iterable[Sequence[Job]]) -> Iterator[int]:
        """The shards of several encoders, whose parts are read, described and written at the same time."""
        groups = groupby(chain.from_iterable(map(parts, shards)), key=attrgetter("names"))
        return behind(write, chain.from_iterable(describe(names, group) for names, group in groups))

    def parts(jobs: Sequence[Job]) -> "Iterator[Part]":
        number = jobs[0].number
        photographs = [Photograph.from_row(row) for row in run.manifest.table("images", number).to_pylist()]
        shards = {
            job.names[0]: UnfinishedShard(job.path, job.provenance, job.image_id, settings.checkpoint_images)
            for job in jobs
        }
        return missing_parts(number, shards, photographs)

    def describe(names: list[str], group: "Iterable[Part]") -> "Iterator[tuple[Part, list[np.ndarray]]]":
        """The features of parts by the same encoders."""
        chosen = [extractors[name] for name in names]
        return describe_parts(
            group,
            lambda photographs, _: reader.views(photographs, [extractor.view for extractor in chosen]),
            lambda pictures, lengths: extract_in_step(pictures, chosen, lengths),
            "extract",
        )

    def write(features_of: "tuple[Part, list[np.ndarray]]") -> int | None:
        """Keep the features of a part, and publish the shards that are whole with it; returns their number then."""
        part, features = features_of
        for name, rows in zip(part.names, features, strict=True):
            stored = to_stored(rows, settings.storage, [photograph.name for photograph in part.images])
            part.shards[name].keep(part.rows, {"features": stored})
        if not part.last:
            return None
        sides = [extractors[name].view.preprocessing.resize for name in part.shards]
        shared = {"decoded_for": max(sides)} if len(sides) > 1 else {}
        for name, shard in part.shards.items():
            batch_size = extractors[name].plan.batch_size
            shard.publish({"encoder": described[name], "batch_size": batch_size, **shared})
        return part.number

    return make
