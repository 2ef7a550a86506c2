"""`join-embeddings`: an ensemble's vectors, from those of its members."""

from collections.abc import Callable

from pipeline.run import Inputs, Job, Run, Stage


def join_embeddings(run: Run, model: str) -> Callable[[Job], None]:
    """Put the vectors of an ensemble's members side by side, weighted."""
    from pipeline.errors import UsageError
    from pipeline.metrics.joining import join_images, join_sentences, joint_rule
    from pipeline.storage.embeddings import write_embeddings

    folder, parameters = run.layout.model(model).path, run.model(model)
    known = parameters.details
    if "weights" not in known:
        raise UsageError(f"{folder} holds {known['registered']}, not an ensemble; run embed for it")
    weights = {name: weight for name, weight in known["weights"].items() if weight}
    members = {name: run.embeddings(name) for name in weights}
    details = {
        "model": known["model"], "refits": known.get("refits"), "registered": known["registered"],
        "metric": "inner_product", "made_of": parameters.fingerprint,
        **({"vocabulary": known["vocabulary"]} if "vocabulary" in known else {}),
    }  # fmt: skip
    rules = [member.comparison if member.multi_vector else None for member in members.values()]

    def make(job: Job) -> None:
        ids, sides = {"images": job.image_id, "sentences": job.sentence_id}, {}
        for what, join in (("images", join_images), ("sentences", join_sentences)):
            parts = [member.read(what, ids[what]) for member in members.values()]
            sides[what] = join(parts, list(weights.values()), rules)
        write_embeddings(job.path, sides, ids, details, joint_rule(rules), provenance=job.provenance)

    return make


def _reads(config, layout, model: str) -> Inputs:
    members = {f"embeddings/{name}": layout.embeddings(name) for name in config.members(model)}
    return {"model": layout.model(model), **members}


STAGE = Stage(
    join_embeddings,
    version=3,
    names=("model",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.every_model() if config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
