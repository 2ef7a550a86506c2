"""`join-embeddings`: one shard of an ensemble's vectors, from those of its members."""

from pathlib import Path

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
    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.metrics.joining import join_images, join_sentences, joint_rule
    from pipeline.storage.embeddings import Embeddings, write_embeddings
    from pipeline.storage.fingerprint import require_same
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
        members[name] = Embeddings(manifest, folder, name)
        expected = parameters.details["inputs"][f"models/{name}"]
        require_same("model", {str(folder): members[name].model, str(model_folder): expected})
    inputs = {
        "model": parameters.fingerprint,
        **{f"embeddings/{name}": member.shards[shard].fingerprint for name, member in members.items()},
        **{what: rows.fingerprints[what] for what in ("images", "sentences")},
    }
    known = parameters.details
    details = {
        "model": known["row"], "refits": known.get("refits"), "registered": known["registered"],
        "metric": "inner_product", "vocabulary": known["vocabulary"], "inputs": inputs,
    }  # fmt: skip

    ids = {
        "images": np.arange(rows.first_image, rows.last_image),
        "sentences": np.arange(rows.first_sentence, rows.last_sentence),
    }
    rules = [member.comparison if member.multi_vector else None for member in members.values()]
    used, sides = [weights[name] for name in members], {}
    for what, join in (("images", join_images), ("sentences", join_sentences)):
        sides[what] = join([member.read(what, ids[what]) for member in members.values()], used, rules)
    write_embeddings(output, sides, ids, details, joint_rule(rules))
