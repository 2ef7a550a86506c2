"""`join-embeddings`: an ensemble's vectors, from those of its members."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.run.run import Run
from pipeline.run.stage import Input, Job, Stage


def join_embeddings(run: Run, model: str) -> Callable[[Job], None]:
    """Put the vectors of an ensemble's members side by side, weighted."""
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.fragments import open_embedded
    from pipeline.storage.names import plain

    folder, parameters = run.layout.model(model).path, run.model(model)
    known = parameters.details
    if "weights" not in known:
        raise UsageError(f"{folder} holds {known['registered']}, no ensemble; run embed for it")
    weights = {name: weight for name, weight in known["weights"].items() if weight}
    members = {}
    for name in weights:
        path = run.layout.embeddings(plain(name, folder)).folder
        members[name] = open_embedded(run.manifest, path, name)
        require_same("model", {str(path): members[name].model, str(folder): known["inputs"][f"models/{name}"]})
    details = {
        "model": known["row"], "refits": known.get("refits"), "registered": known["registered"],
        "metric": "inner_product", "vocabulary": known["vocabulary"],
    }  # fmt: skip
    write = _write_sets if any(hasattr(member, "score") for member in members.values()) else _write_vectors

    def make(job: Job) -> None:
        write(job, members, list(weights.values()), {**details, "inputs": job.inputs})

    return make


def _write_vectors(job: Job, members: Mapping[str, Any], weights: list, details: dict) -> None:
    """One vector an image, one a sentence."""
    from pipeline.metrics.combination import join_vectors
    from pipeline.storage.shards import EMBEDDINGS, write_shard

    parts = [member.shards[job.number] for member in members.values()]
    arrays = {what: join_vectors([part[what] for part in parts], weights) for what in ("images", "sentences")}
    arrays |= {name: parts[0][name] for name in ("image_id", "sentence_id")}
    details = {**details, "dim": arrays["images"].shape[1]}
    made = {"rows": len(arrays["images"]), "fingerprint": job.fingerprint, "details": details}
    write_shard(job.path, EMBEDDINGS, arrays, **made)


def _write_sets(job: Job, members: Mapping[str, Any], weights: list, details: dict) -> None:
    """One set an image, one a sentence."""
    import numpy as np

    from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule
    from pipeline.models.neural.fragment_ensemble import join_images, join_sentences, joint_rule
    from pipeline.storage.fragments import write_fragments

    places = {k: member for k, member in enumerate(members.values()) if hasattr(member, "score")}
    rules = {place: ScoreRule.from_dict(member.score) for place, member in places.items()}
    ids = {
        "images": np.arange(job.rows.first_image, job.rows.last_image),
        "sentences": np.arange(job.rows.first_sentence, job.rows.last_sentence),
    }
    sides, boxes = {}, None
    for what, join in (("images", join_images), ("sentences", join_sentences)):
        parts = []
        for place, member in enumerate(members.values()):
            if place not in rules:
                parts.append(member.read(what, ids[what]))
                continue
            sets = member.read_sets(what, ids[what])
            parts.append(FragmentSets(sets.vectors, sets.offsets, sets.globals))
            boxes = sets.boxes if what == "images" else boxes
        sides[what] = join(parts, weights, rules)
    score = joint_rule(list(rules.values()))._asdict()
    details = {**details, "dim": sides["images"].vectors.shape[1], "score": score}
    write_fragments(job.path, sides, ids, boxes, fingerprint=job.fingerprint, details=details)


def _reads(config, layout, model: str) -> Mapping[str, Input]:
    members = {f"embeddings/{name}": layout.embeddings(name) for name in config.members(model)}
    return {"model": layout.model(model), **members}


STAGE = Stage(
    join_embeddings,
    version=3,
    names=("model",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.every_row() if config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
