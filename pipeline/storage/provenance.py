"""What turns an image or a sentence into its vectors, so that those that are added later get the same.

An origin is {"encoder": digest}, {"encoder": digest, "projection": digest}, or {"imported": fingerprint}: details of
models carry them by encoder into bundles, where the run is not.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.commit import Commit
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.names import plain
from pipeline.storage.parameters import ENCODER, Parameters, read_parameters

Origin = Mapping[str, str]
ENCODERS = ("encoders/", "text/encoders/")
"""Where the commits of encoders lie."""


def origin_of(commit: Commit) -> Origin:
    """What made the vectors (of images, regions or texts) in a shard."""
    if "origin" in commit.details:
        return commit.details["origin"]
    for place, digest in commit.inputs.items():
        if place.startswith(ENCODERS):
            return {"encoder": digest}
    imported = commit.details.get("encoder", {}).get("imported")
    return {"imported": fingerprint("imported", 1, imported)} if imported else {}


def encoders_of(where: Path | str, known: Mapping[str, Origin], names: Iterable[str]) -> dict[str, Origin]:
    """The origins of the encoders `names`. Raises IntegrityError for one that is not among the `known` ones of `where`,
    or whose name is not plain."""
    names = [plain(name, where) for name in names]
    if missing := [name for name in names if name not in known]:
        raise IntegrityError(f"{where} was made without the encoder {missing[0]} ({', '.join(known)}); make it again")
    return {name: known[name] for name in names}


def read_own_encoders(root: Path, origins: Mapping[str, Origin], kind: str = ENCODER) -> dict[str, Parameters]:
    """The encoders in `root` that made the vectors of `origins`, by name; imported ones have none."""
    made = [name for name, origin in origins.items() if "encoder" in origin]
    return {name: read_parameters(Path(root) / name / "model.safetensors", kind) for name in made}
