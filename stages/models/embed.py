"""`embed`: images and sentences in the joint space of a model."""

from collections.abc import Callable

from pipeline.run import Inputs, Job, Run, stage
from pipeline.run.reading.inputs import region_shards, sentence_shards


def _reads(config, layout, model: str) -> Inputs:
    configured = config.model(model)
    regions = region_shards(config, layout) if configured.spec.multi_vector else []
    features = map(layout.features, configured.encoders)
    return [layout.model(model), *sentence_shards(configured, layout), *features, *regions]


@stage(
    version=4,
    gpu=True,
    choices=lambda config: [(name,) for name in config.every_model() if not config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
def embed(run: Run, model: str) -> Callable[[Job], None]:
    """Embed all images and captions in the joint space of MODEL."""
    from pipeline.run.reading.models import describe_embeddings, open_region_rows, restore_model
    from pipeline.run.reading.texts import read_sentences
    from pipeline.storage.embeddings import write_embeddings

    mapping, parameters = restore_model(run, model)
    details = describe_embeddings(parameters, mapping.metric)
    rule = mapping.rule if mapping.multi_vector else None
    encoders = getattr(mapping, "text_encoders", ())

    def make(job: Job) -> None:
        features = {name: run.features.open(name, job.number)["features"] for name in mapping.encoders}
        regions = []
        if mapping.multi_vector:
            regions = [open_region_rows(run, mapping.region_encoders, job.image_id)]
        sides = {
            "images": mapping.embed_images(features, *regions),
            "sentences": mapping.embed_sentences(read_sentences(run, mapping.sentence_view, encoders, [job.number])),
        }
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        write_embeddings(job.path, sides, ids, details, rule, provenance=job.provenance)

    return make
