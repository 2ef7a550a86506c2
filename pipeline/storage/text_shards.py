"""Shards of sentences or documents: vectors `text/<text encoder>`, and token numbers `text/tokens`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pipeline.errors import UsageError
from pipeline.storage.commit import Provenance
from pipeline.storage.features import to_stored
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import VECTORS, Shard, shard_path, write_shard

TOKENS = "tokens"


class TextShard(Shard):
    """The texts of one manifest shard: `sentence_id` (m,) and `image_id` (m,)."""

    kind: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path, self.kind)
        self.sentence_id, self.image_id = self["sentence_id"], self["image_id"]


class TextShards:
    """The shards that a `stage` made of a manifest's texts in one `folder`."""

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
        """Shard `number`."""
        return type(self).read(self._path(number))

    def _path(self, number: int) -> Path:
        return shard_path(self.folder, number).with_suffix(self.ending)


def write_vectors(
    path: Path,
    vectors: np.ndarray | sparse.csr_array,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    provenance: Provenance | None = None,
    encoder: str,
    storage: str = "float32",
    documents: str | None = None,
    imported: Mapping[str, str] | None = None,
) -> None:
    """Publish the vectors (m, d) of texts by the text encoder `encoder`, and the ids (m,) of sentences and images;
    `documents` is the name of weak texts, `imported` the files (name -> fingerprint) of vectors made elsewhere. Dense
    vectors are stored as the dtype `storage`."""
    if sparse.issparse(vectors):
        arrays = {"data": vectors.data, "indices": vectors.indices, "indptr": vectors.indptr.astype(np.int64)}
    else:
        named = [f"sentence {number}" for number in sentence_id.tolist()]
        arrays = {"vectors": to_stored(vectors, storage, named, storage_key(encoder))}
    arrays |= {"sentence_id": sentence_id, "image_id": image_id}
    details = {"dim": vectors.shape[1], "encoder": {"name": encoder}}
    details["encoder"] |= {"imported": imported} if imported else {}
    details |= {"documents": documents} if documents else {}
    write_shard(path, VECTORS, arrays, rows=vectors.shape[0], provenance=provenance, details=details)


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
        else:
            self.matrix = sparse.csr_array((self["data"], self["indices"], self["indptr"]), shape=shape)


class TextVectors(TextShards):
    """The vectors of a manifest's sentences or documents by one text encoder, in the `folder` of its name."""

    read, stage = VectorShard, "encode-sentences"

    @property
    def encoder(self) -> str:
        return self.folder.name


class Texts:
    """The vectors of a manifest's sentences or documents by several text encoders: `folders` text encoder -> folder."""

    def __init__(self, manifest: Manifest, folders: Mapping[str, Path]) -> None:
        self.manifest = manifest
        self.by_encoder = {name: TextVectors(manifest, folder) for name, folder in folders.items()}

    def open(self, number: int) -> dict[str, VectorShard]:
        """Shard `number` of each encoder."""
        return {name: shards.open(number) for name, shards in self.by_encoder.items()}

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
    provenance: Provenance | None = None,
) -> None:
    """Publish m sentences with their ids and those of their images; sentence i has the words
    ids[offsets[i] : offsets[i + 1]], numbered as in `text/tokens.json`."""
    arrays = {"ids": ids, "offsets": offsets, "sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, TOKENS, arrays, rows=len(sentence_id), provenance=provenance)


class TokenShard(TextShard):
    """`ids` (total,) and `offsets` (m + 1,)."""

    kind = TOKENS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ids, self.offsets = self["ids"], self["offsets"]


class TokenShards(TextShards):
    """The token shards of a manifest's sentences."""

    read, stage = TokenShard, "encode-tokens"
