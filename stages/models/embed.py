"""`embed`: images and sentences in the joint space of a model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Inputs, ShardJob, stage
from pipeline.run.reading.inputs import feature_shards, region_shards, sentence_shards

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout


def _reads(config: "Config", layout: "Layout", model: str) -> Inputs:
    configured = config.model(model)
    return {
        "model": layout.model(model),
        "sentences": sentence_shards(configured, layout),
        "features": feature_shards(configured.encoders, layout),
        "regions": region_shards(config, layout) if configured.spec.multi_vector else None,
    }


@stage(
    version=4,
    gpu=True,
    choices=lambda config: [(name,) for name in config.every_model() if not config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
def embed(run: "StageRun", jobs: Iterator[ShardJob], model: str) -> Iterator[int]:
    """Embed all images and captions in the joint space of MODEL."""
    from pipeline.run.reading.models import describe_embeddings, open_region_rows, restore_model
    from pipeline.run.reading.texts import read_sentences
    from pipeline.storage.embeddings import write_embeddings

    mapping, parameters = restore_model(run, model)
    details = describe_embeddings(parameters, mapping.metric)
    rule = mapping.rule if mapping.multi_vector else None
    for job in jobs:
        features = {name: run.features.open(name, job.number)["features"] for name in mapping.encoders}
        regions = []
        if mapping.multi_vector:
            regions = [open_region_rows(run, mapping.region_encoders, job.image_id)]
        sentences = read_sentences(run, mapping.sentence_view, getattr(mapping, "text_encoders", ()), [job.number])
        sides = {
            "images": mapping.embed_images(features, *regions),
            "sentences": mapping.embed_sentences(sentences),
        }
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        write_embeddings(job.path, sides, ids, details, rule, provenance=job.provenance)
        yield job.number
