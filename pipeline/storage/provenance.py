"""The chain of fingerprints from an encoder to a bundle: what made each artefact is recorded in the next, and checked.

    encoder     its fingerprint covers its settings and weights
    features    `inputs.encoder` (or, of rows made elsewhere, the sha256 of their files under `encoder.imported`);
                regions the same, and of reduced ones their `projection`
    moments     `encoders`: the origin of every block of the image view; `inputs`: the shards that were summed
    model       `encoders` and, of a model of regions, `regions`: the origins of what it learned from
    embeddings  `inputs.model`
    bundle      `inputs.model`, `inputs.encoders/<name>`

An origin is what makes an image into its features, so that images added later have the same: {"encoder": fingerprint},
{"encoder": fingerprint, "projection": fingerprint}, or {"imported": fingerprint}.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import Sidecar
from pipeline.storage.fingerprint import fingerprint, require_same
from pipeline.storage.names import plain
from pipeline.storage.parameters import ENCODER, Parameters, read_parameters

Origin = Mapping[str, str]


def origin_of(sidecar: Sidecar) -> Origin:
    """What made the features, or the features of regions, of a shard."""
    inputs, details = sidecar.details.get("inputs", {}), sidecar.details
    if "encoder" in inputs:
        projection = {"projection": details["projection"]} if "projection" in details else {}
        return {"encoder": inputs["encoder"], **projection}
    about = details.get("encoder")
    imported = about.get("imported") if isinstance(about, Mapping) else None
    return {"imported": fingerprint("imported", 1, imported)} if imported else {}


def same_origin(name: str, origins: Mapping[str, Origin]) -> Origin:
    """The origin of the features of the encoder `name` that all of `origins` (file -> origin) share.

    Raises IntegrityError naming two files whose features other encoders made.
    """
    told = {file: json.dumps(origin, sort_keys=True) for file, origin in origins.items()}
    return json.loads(require_same(f"the encoder {name}", told))


def require_origins(
    expected: Mapping[str, Origin], where: Path | str, found: Mapping[str, Mapping[str, Origin]]
) -> None:
    """Raises IntegrityError unless the features of every encoder in `found` (name -> file -> origin) are of the origin
    that the record of `where` has of it."""
    for name, origin in encoders_of(where, expected, found).items():
        same_origin(name, {str(where): origin, **found[name]})


def encoders_of(where: Path | str, known: Mapping[str, Origin], names: Iterable[str]) -> dict[str, Origin]:
    """The origins of some encoders among the `known` ones; IntegrityError names one that `where` was made without, or
    that is not a plain name."""
    names = [plain(name, where) for name in names]
    if missing := [name for name in names if name not in known]:
        raise IntegrityError(f"{where} was made without the encoder {missing[0]} ({', '.join(known)}); make it again")
    return {name: known[name] for name in names}


def join_origins(parts: Iterable[tuple[str, Mapping[str, Origin]]]) -> dict[str, Origin]:
    """The origins of all encoders of some models (file -> encoder -> origin), which must not differ on one."""
    by_name: dict[str, dict[str, Origin]] = {}
    for file, origins in parts:
        for name, origin in origins.items():
            by_name.setdefault(name, {})[file] = origin
    return {name: same_origin(name, files) for name, files in by_name.items()}


def require_same_origins(files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises IntegrityError where the records of two of `files` (file -> details) differ on the origin of an encoder
    that both have, or on their vocabulary."""
    for key in ("encoders", "regions"):
        join_origins((file, details.get(key) or {}) for file, details in files.items())
    require_same("vocabulary", {file: details["vocabulary"] for file, details in files.items()})


def read_encoder(root: Path, name: str) -> Parameters:
    """The encoder in the folder `root / name`. Raises IntegrityError where that holds one of another name."""
    path = Path(root) / name / "model.safetensors"
    parameters = read_parameters(path, ENCODER)
    if (held := parameters.details.get("name", name)) != name:
        raise IntegrityError(f"{path} is the encoder {held}, not {name}; run prepare-encoder again")
    return parameters


def read_own_encoders(root: Path, origins: Mapping[str, Origin], where: Path | str) -> dict[str, Parameters]:
    """The encoders that made the features of `origins`, by name; without those of imported features, which no encoder
    of the run makes. Raises IntegrityError where `root` has another encoder of that name than
    the one that the record of `where` names."""
    found = {}
    for name, origin in origins.items():
        if "encoder" not in origin:
            continue
        found[name] = read_encoder(root, name)
        path = Path(root) / name / "model.safetensors"
        same_origin(name, {str(where): {"encoder": origin["encoder"]}, str(path): {"encoder": found[name].fingerprint}})
    return found
