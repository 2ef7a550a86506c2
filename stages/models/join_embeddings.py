"""`join-embeddings`: an ensemble's vectors, from those of its members."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def join_embeddings(run: Run, model: str) -> Callable[[Job], None]:
    """Concatenate the weighted embeddings of an ensemble's members."""
    from pipeline.errors import UsageError
    from pipeline.models.linear.ensemble import join_images, join_sentences, joint_rule
    from pipeline.storage.embeddings import write_embeddings
    from stages.training import describe_embeddings

    stored = run.model(model)
    if "weights" not in stored.details:
        folder = run.layout.model(model).path
        raise UsageError(f"{folder} holds {stored.details['registered']}, not an ensemble; run embed for it")
    weights = {name: weight for name, weight in stored.details["weights"].items() if weight}
    members = [run.embeddings(name) for name in weights]
    rules = [member.comparison if member.multi_vector else None for member in members]
    details = describe_embeddings(stored, "inner_product")

    def make(job: Job) -> None:
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        sides = {}
        for modality, join in (("images", join_images), ("sentences", join_sentences)):
            parts = [member.read(modality, ids[modality]) for member in members]
            sides[modality] = join(parts, list(weights.values()), rules)
        write_embeddings(job.path, sides, ids, details, joint_rule(rules), provenance=job.provenance)

    return make


STAGE = Stage(
    join_embeddings,
    version=3,
    names=("model",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.every_model() if config.members(name)],
    reads=lambda config, layout, model: named(layout.model(model), *map(layout.embeddings, config.members(model))),
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
