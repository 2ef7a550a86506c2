"""The chain of fingerprints from an encoder to a bundle: each artefact records its inputs, and readers check them.

    encoder     its fingerprint covers its settings and weights
    features    `inputs.encoder` (imported: the sha256 of their files under `encoder.imported`);
                regions likewise, and reduced ones their `projection`
    vectors     of sentences: `inputs.text_encoder`, likewise
    moments     `encoders` and `text_encoders`: the origin of every block of either view; `inputs`: the shards that were
                summed
    model       `encoders` and, for a model of regions, `regions`, for one of vectors of text `text_encoders`: the
                origins of its training data
    embeddings  `inputs.model`
    bundle      `inputs.model`, `inputs.encoders/<name>`, `inputs.text_encoders/<name>`

An origin is what turns an image into its features, so that images added later get the same: {"encoder": fingerprint},
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
    """What made the features (of images or regions) in a shard."""
    inputs, details = sidecar.details.get("inputs", {}), sidecar.details
    if made_by := inputs.get("encoder") or inputs.get("text_encoder"):
        projection = {"projection": details["projection"]} if "projection" in details else {}
        return {"encoder": made_by, **projection}
    about = details.get("encoder")
    imported = about.get("imported") if isinstance(about, Mapping) else None
    return {"imported": fingerprint("imported", 1, imported)} if imported else {}


def same_origin(name: str, origins: Mapping[str, Origin]) -> Origin:
    """The origin of the encoder `name` that all of `origins` (file -> origin) share.

    Raises IntegrityError naming two files that differ.
    """
    spelt = {file: json.dumps(origin, sort_keys=True) for file, origin in origins.items()}
    return json.loads(require_same(f"the encoder {name}", spelt))


def require_origins(
    expected: Mapping[str, Origin], where: Path | str, found: Mapping[str, Mapping[str, Origin]]
) -> None:
    """Raises IntegrityError unless every encoder in `found` (name -> file -> origin) has the `expected` origin, which
    the file `where` records."""
    for name, origin in encoders_of(where, expected, found).items():
        same_origin(name, {str(where): origin, **found[name]})


def encoders_of(where: Path | str, known: Mapping[str, Origin], names: Iterable[str]) -> dict[str, Origin]:
    """The origins of the encoders `names`. Raises IntegrityError for one that is not among the `known` ones of `where`,
    or whose name is not plain."""
    names = [plain(name, where) for name in names]
    if missing := [name for name in names if name not in known]:
        raise IntegrityError(f"{where} was made without the encoder {missing[0]} ({', '.join(known)}); make it again")
    return {name: known[name] for name in names}


def join_origins(parts: Iterable[tuple[str, Mapping[str, Origin]]]) -> dict[str, Origin]:
    """The origins of all encoders in `parts` (file, encoder -> origin), which must agree."""
    by_name: dict[str, dict[str, Origin]] = {}
    for file, origins in parts:
        for name, origin in origins.items():
            by_name.setdefault(name, {})[file] = origin
    return {name: same_origin(name, files) for name, files in by_name.items()}


def require_same_origins(files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises IntegrityError if two of `files` (file -> details) differ in vocabulary or in an encoder's origin."""
    for key in ("encoders", "regions", "text_encoders"):
        join_origins((file, details.get(key) or {}) for file, details in files.items())
    require_same("vocabulary", {file: str(details.get("vocabulary")) for file, details in files.items()})


def read_encoder(root: Path, name: str, kind: str = ENCODER) -> Parameters:
    """The encoder in the folder `root / name`, of images or of text by its `kind`. Raises IntegrityError if it has
    another name."""
    path = Path(root) / name / "model.safetensors"
    parameters = read_parameters(path, kind)
    if (held := parameters.details.get("name", name)) != name:
        raise IntegrityError(f"{path} is the encoder {held}, not {name}; run prepare-{kind} again")
    return parameters


def read_own_encoders(
    root: Path, origins: Mapping[str, Origin], where: Path | str, kind: str = ENCODER
) -> dict[str, Parameters]:
    """The encoders that made the features of `origins`, by name; imported features have none.

    Raises IntegrityError if an encoder in `root` is not the one that the file `where` records.
    """
    found = {}
    for name, origin in origins.items():
        if "encoder" not in origin:
            continue
        found[name] = read_encoder(root, name, kind)
        path = Path(root) / name / "model.safetensors"
        same_origin(name, {str(where): {"encoder": origin["encoder"]}, str(path): {"encoder": found[name].fingerprint}})
    return found
