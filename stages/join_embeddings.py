"""`join-embeddings`: one shard of an ensemble's vectors, from those of its members."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("join-embeddings")
@options.manifest
@options.shard
@click.option(
    "--embeddings", "embeddings_root", type=options.FOLDER, required=True, help="Folder with the members' embeddings."
)
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder that `combine` wrote.")
@options.output("file", "The shard, an HDF5 file.")
def command(manifest_folder: Path, shard: int, embeddings_root: Path, model_folder: Path, output: Path) -> None:
    """Put the vectors of an ensemble's members side by side, weighted."""
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.fragments import open_embedded
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.names import plain
    from pipeline.storage.parameters import MODEL, read_parameters

    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    if "weights" not in parameters.details:
        raise UsageError(f"{model_folder} holds {parameters.details['registered']}, no ensemble; run embed for it")
    manifest, weights = Manifest(manifest_folder), parameters.details["weights"]
    rows, members = manifest.shard(shard), {}
    for name in (name for name, weight in weights.items() if weight):
        folder = embeddings_root / plain(name, model_folder)
        members[name] = open_embedded(manifest, folder, name)
        expected = parameters.details["inputs"][f"models/{name}"]
        require_same("model", {str(folder): members[name].model, str(model_folder): expected})
    inputs = {
        "model": parameters.fingerprint,
        **{f"embeddings/{name}": member.shards[shard].fingerprint for name, member in members.items()},
        **{what: rows.fingerprints[what] for what in ("images", "sentences")},
    }
    known = parameters.details
    details = {
        "model": known["model"], "refits": known.get("refits"), "registered": known["registered"],
        "metric": "inner_product", "vocabulary": known["vocabulary"], "inputs": inputs,
    }  # fmt: skip

    fragments = any(hasattr(member, "score") for member in members.values())
    write = _write_sets if fragments else _write_vectors
    write(output, shard, members, [weights[name] for name in members], details)


def _write_vectors(output: Path, shard: int, members: Mapping[str, Any], weights: list, details: dict) -> None:
    """One vector an image, one a sentence."""
    from pipeline.metrics.combination import join_vectors
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.shards import EMBEDDINGS, write_shard

    parts = [member.shards[shard] for member in members.values()]
    arrays = {what: join_vectors([part[what] for part in parts], weights) for what in ("images", "sentences")}
    arrays |= {name: parts[0][name] for name in ("image_id", "sentence_id")}
    digest = fingerprint("embeddings", 2, inputs=details["inputs"])
    details = {**details, "dim": arrays["images"].shape[1]}
    write_shard(output, EMBEDDINGS, arrays, rows=len(arrays["images"]), fingerprint=digest, details=details)


def _write_sets(output: Path, shard: int, members: Mapping[str, Any], weights: list, details: dict) -> None:
    """One set an image, one a sentence."""
    import numpy as np

    from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule
    from pipeline.models.neural.fragment_ensemble import join_images, join_sentences, joint_rule
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.fragments import write_fragments

    places = {k: member for k, member in enumerate(members.values()) if hasattr(member, "score")}
    rules = {place: ScoreRule.from_dict(member.score) for place, member in places.items()}
    rows = next(iter(members.values())).rows[shard]
    ids = {
        "images": np.arange(rows.first_image, rows.last_image),
        "sentences": np.arange(rows.first_sentence, rows.last_sentence),
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
    digest = fingerprint("fragments", 2, inputs=details["inputs"])
    score = joint_rule(list(rules.values()))._asdict()
    details = {**details, "dim": sides["images"].vectors.shape[1], "score": score}
    write_fragments(output, sides, ids, boxes, fingerprint=digest, details=details)
