"""A program that damages artefacts, reads each with its reader, and says what happened, under limits.

    python readers.py RUN MEMORY SECONDS < tasks        one JSON list [file, damage, seed] a line

For each task it prints `begin N`, then `end N OUTCOME`: `refused`, `harmless` (nothing that is read has changed),
`unchanged` (the damage changed no byte), or what went wrong. A crash or a hang is that of the last one begun.
"""

import json
import resource
import signal
import sys
from functools import cache
from pathlib import Path
from random import Random

import damage
import numpy as np

from pipeline.errors import JointspaceError
from pipeline.storage import atomic
from pipeline.storage.bundle import Bundle
from pipeline.storage.evaluations import read_ranks
from pipeline.storage.fingerprint import canonical_json
from pipeline.storage.integrity import examine
from pipeline.storage.manifest import TABLES, Manifest
from pipeline.storage.parameters import TEXT_ENCODER, read_parameters
from pipeline.storage.regions import RegionShard
from pipeline.storage.shards import Shard
from pipeline.storage.text_shards import TokenShard, VectorShard
from pipeline.storage.trees import ParseShard, TreeShard

EXAMINED = 5
"""One in so many damages is looked for by `verify` too, which hashes the whole run for it."""


def shard_values(shard: Shard) -> list:
    names = sorted(shard._arrays)
    return [dict(shard.commit.value), *((name, np.asarray(shard[name]).tobytes().hex()) for name in names)]


def manifest_values(folder: Path) -> list:
    manifest = Manifest(folder)
    tables = [getattr(manifest, name).to_pydict() for name in TABLES]
    shards = [vars(manifest.shard(number)) for number in range(manifest.n_shards)]
    return [manifest.summary, tables, shards, manifest.rejects]


def bundle_values(folder: Path) -> list:
    bundle = Bundle(folder)
    bundle.check()
    return [bundle.card, *(bundle.table(name).num_rows for name in ("images", "sentences")), bundle.model().fingerprint]


def parameter_values(path: Path, kind: str) -> list:
    read = read_parameters(path, kind)
    tensors = [(name, read.tensors[name].tobytes().hex()) for name in sorted(read.tensors)]
    return [tensors, dict(read.settings), read.fingerprint, dict(read.details)]


SHARDS = {"tfidf": VectorShard, "tokens": TokenShard, "documents": VectorShard}
OTHERS = {"regions.h5": RegionShard, "trees.h5": TreeShard}


def read(run: Path, file: Path) -> list:
    """All that the reader of `file`, an artefact or a commit, finds in it."""
    parts = file.relative_to(run).parts
    artefact = file.with_suffix("") if file.name.endswith((".h5.json", ".conllu.json", ".brackets.json")) else file
    if parts[0] == "manifest":
        return manifest_values(run / "manifest")
    if parts[0] == "index":
        return bundle_values(run / "index" / parts[1])
    if parts[0] in ("models", "encoders"):
        return parameter_values(file.with_suffix(".safetensors"), parts[0].removesuffix("s"))
    if parts[:2] == ("text", "encoders"):
        return parameter_values(file.with_suffix(".safetensors"), TEXT_ENCODER)
    if artefact.name in OTHERS:
        return shard_values(OTHERS[artefact.name](artefact))
    if artefact.stem == "parses":
        shard = ParseShard(artefact.with_suffix(".conllu"))
        return [shard.conllu, shard.brackets, dict(shard.details)]
    if artefact.suffix == ".h5":
        if parts[0] == "text":
            return shard_values(SHARDS[parts[1]](artefact))
        return shard_values(Shard(artefact, {"features": "features"}.get(parts[0], parts[0])))
    if file.name.endswith(".ranks.npz"):
        ranks = read_ranks(file.with_suffix("").with_suffix(".json"))
        return [(name, values.tobytes().hex()) for name, values in sorted(ranks.items())]
    value = atomic.read_json(file)
    return [{key: part for key, part in value.items() if key != "made_by"} if isinstance(value, dict) else value]


@cache
def sound_value(run: Path, file: Path) -> bytes:
    return canonical_json(read(run, file))


def attempt(run: Path, name: str, how: str, seed: int) -> str:
    file = run / name
    sound, before = file.read_bytes(), sound_value(run, file)
    spoilt = damage.ALL[how](sound, Random(seed))
    if spoilt == sound:
        return "unchanged"
    file.write_bytes(spoilt)
    try:
        after = canonical_json(read(run, file))
    except JointspaceError as error:
        # By its own name, or by that of the file that it and others belong to.
        named = any(part in str(error) for part in (name, name.removesuffix(".json"), str(Path(name).parent)))
        outcome = "refused" if named else f"refused without its name: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    else:
        outcome = "harmless" if after == before else "accepted"
    finally:
        missed = seed % EXAMINED == 0 and not examine(run).faults
        file.write_bytes(sound)
    if outcome == "refused" and missed:
        return "refused by its reader, but not found by examine"
    return outcome


def main() -> None:
    run, memory, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for number, line in enumerate(sys.stdin):
        print("begin", number, flush=True)
        signal.alarm(seconds)
        print("end", number, attempt(run, *json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
