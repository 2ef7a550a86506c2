"""Shards of sentences or documents: vectors `text/<text encoder>`, and token numbers `text/tokens`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.atomic import Sidecar, read_sidecar
from pipeline.storage.features import to_stored
from pipeline.storage.manifest import Manifest
from pipeline.storage.places import stated
from pipeline.storage.shards import VECTORS, Shard, shard_path, write_shard

TOKENS = "tokens"


class TextShard(Shard):
    """The texts of one manifest shard: `sentence_id` (m,), `image_id` (m,), and the fingerprint of the `vocabulary`,
    None where they are not of one."""

    kind: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path, self.kind)
        self.sentence_id, self.image_id = self["sentence_id"], self["image_id"]
        self.vocabulary: str | None = self.details["inputs"].get("vocabulary")


class TextShards:
    """The shards that a `stage` made of a manifest's texts in one `folder`, each checked to be of these texts."""

    read: Callable[[Path], Any]
    stage: str
    ending = ".h5"

    def __init__(self, manifest: Manifest, folder: Path | None) -> None:
        """Raises UsageError if no folder is given."""
        if folder is None:
            name = self.stage.removeprefix("encode-")
            how = "word by word" if name == "tokens" else f"as {name}"
            raise UsageError(f"this model takes sentences {how}; give what {self.stage} wrote as --{name}")
        self.manifest = manifest
        self.folder = Path(folder)

    def open(self, number: int) -> Any:
        """Shard `number`. Raises IntegrityError unless it was made from exactly the manifest's texts."""
        shard = type(self).read(self._path(number))
        self._check(shard.path, shard.details, number)
        return shard

    def _path(self, number: int) -> Path:
        return shard_path(self.folder, number).with_suffix(self.ending)

    def _check(self, path: Path, details: Mapping[str, Any], number: int) -> None:
        made_from, rows = details["inputs"], self.manifest.shard(number)
        for what in sorted({"sentences", "documents", "images"} & set(made_from)):
            if made_from[what] != rows.fingerprints[what]:
                stage = self.stage if "sentences" in made_from else "encode-documents"
                raise IntegrityError(f"{path} was made from other {what}; run {stage} again")


def write_vectors(
    path: Path,
    vectors: np.ndarray | sparse.csr_array,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    inputs: Mapping[str, str],
    encoder: str,
    storage: str = "float32",
    documents: str | None = None,
    imported: Mapping[str, str] | None = None,
) -> None:
    """Publish the vectors (m, d) of texts by the text encoder `encoder`, and the ids (m,) of sentences and images;
    `documents` is the name of weak texts, `imported` the files (name -> fingerprint) of vectors made elsewhere. Dense
    vectors are stored as the dtype `storage`. Texts whose vector is zero are counted."""
    if sparse.issparse(vectors):
        arrays = {"data": vectors.data, "indices": vectors.indices, "indptr": vectors.indptr.astype(np.int64)}
    else:
        named = [f"sentence {number}" for number in sentence_id.tolist()]
        arrays = {"vectors": to_stored(vectors, storage, named, storage_key(encoder))}
    arrays |= {"sentence_id": sentence_id, "image_id": image_id}
    kept = abs(vectors).sum(axis=1) > 0
    details = {"dim": vectors.shape[1], "encoder": {"name": encoder}, "inputs": inputs}
    details["empty"] = len(kept) - int(np.count_nonzero(kept))
    details["encoder"] |= {"imported": imported} if imported else {}
    details |= {"documents": documents} if documents else {}
    write_shard(path, VECTORS, arrays, rows=vectors.shape[0], fingerprint=fingerprint, details=details)


def storage_key(encoder: str) -> str:
    """What the configuration calls the dtype of a text encoder's dense vectors."""
    return f"`storage` of the text encoder {encoder}"


class VectorShard(TextShard):
    """`matrix` (m, d): a csr_array, or a memory map of dense vectors as stored."""

    kind = VECTORS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        shape = (self.rows, self.details["dim"])
        if "vectors" in self:
            self.matrix = self["vectors"]
            if self.matrix.shape != shape:
                raise IntegrityError(f"{path} holds vectors {self.matrix.shape}, not {shape}; run its stage again")
        else:
            self.matrix = sparse.csr_array((self["data"], self["indices"], self["indptr"]), shape=shape)


class TextVectors(TextShards):
    """The vectors of a manifest's sentences or documents by one text encoder, in the `folder` of its name."""

    read, stage = VectorShard, "encode-sentences"

    @property
    def encoder(self) -> str:
        return self.folder.name

    def sidecar(self, number: int) -> Sidecar:
        """The sidecar of shard `number`, without its texts. Raises as `open` does."""
        found = read_sidecar(self._path(number), VECTORS)
        self._check(self._path(number), found.details, number)
        return found

    def count_empty(self) -> int:
        """How many of all texts have a zero vector, because the encoder knows none of their words. Raises
        IntegrityError for a shard of an earlier version, which does not say so."""
        total = 0
        for number in range(self.manifest.n_shards):
            if (count := self.sidecar(number).details.get("empty")) is None:
                raise IntegrityError(f"{self._path(number)} does not count its empty vectors; run its stage again")
            total += count
        return total

    def _check(self, path: Path, details: Mapping[str, Any], number: int) -> None:
        super()._check(path, details, number)
        if (held := stated(details).get("encoder")) != self.encoder:
            raise IntegrityError(f"{path} is of the text encoder {held}, not of {self.encoder}; run its stage again")


class Texts:
    """The vectors of a manifest's sentences or documents by several text encoders: `folders` text encoder -> folder."""

    def __init__(self, manifest: Manifest, folders: Mapping[str, Path]) -> None:
        self.manifest = manifest
        self.by_encoder = {name: TextVectors(manifest, folder) for name, folder in folders.items()}

    def open(self, number: int) -> dict[str, VectorShard]:
        """Shard `number` of each encoder. Raises IntegrityError where two are not of the same texts."""
        opened = {name: shards.open(number) for name, shards in self.by_encoder.items()}
        first = next(iter(opened.values()))
        for shard in opened.values():
            if not np.array_equal(shard.sentence_id, first.sentence_id):
                raise IntegrityError(f"{first.path} and {shard.path} are of different texts; run their stage again")
        return opened

    def select(self, names: Iterable[str]) -> "Texts":
        """Those of some of the encoders."""
        return Texts(self.manifest, {name: self.by_encoder[name].folder for name in names})


def write_tokens(
    path: Path,
    ids: np.ndarray,
    offsets: np.ndarray,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    inputs: Mapping[str, str],
) -> None:
    """Publish m sentences with their ids and those of their images; sentence i has the words
    ids[offsets[i] : offsets[i + 1]], numbered as in `text/tokens.json`."""
    arrays = {"ids": ids, "offsets": offsets, "sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, TOKENS, arrays, rows=len(sentence_id), fingerprint=fingerprint, details={"inputs": inputs})


class TokenShard(TextShard):
    """`ids` (total,) and `offsets` (m + 1,)."""

    kind = TOKENS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ids, self.offsets = self["ids"], self["offsets"]


class TokenShards(TextShards):
    """The token shards of a manifest's sentences."""

    read, stage = TokenShard, "encode-tokens"
