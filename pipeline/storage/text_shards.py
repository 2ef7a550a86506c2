"""Shards of sentences or documents: tf-idf vectors `text/tfidf`, and token numbers `text/tokens`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.atomic import Sidecar, read_sidecar
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import TFIDF, Shard, shard_path, write_shard

TOKENS = "tokens"


class TextShard(Shard):
    """The texts of one manifest shard: `sentence_id` (m,), `image_id` (m,), and the fingerprint of the `vocabulary`."""

    kind: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path, self.kind)
        self.sentence_id, self.image_id = self["sentence_id"], self["image_id"]
        self.vocabulary: str = self.details["inputs"]["vocabulary"]


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


def write_tfidf(
    path: Path,
    matrix: sparse.csr_array,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    inputs: Mapping[str, str],
    documents: str | None = None,
) -> None:
    """Publish text vectors (m, d) and the ids (m,) of sentences and images; `documents` is the name of weak texts."""
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr.astype(np.int64)}
    arrays |= {"sentence_id": sentence_id, "image_id": image_id}
    details = {"dim": matrix.shape[1], "inputs": inputs, **({"documents": documents} if documents else {})}
    write_shard(path, TFIDF, arrays, rows=matrix.shape[0], fingerprint=fingerprint, details=details)


class TfidfShard(TextShard):
    """`matrix` (m, d) sparse."""

    kind = TFIDF

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        parts = (self["data"], self["indices"], self["indptr"])
        self.matrix = sparse.csr_array(parts, shape=(self.rows, self.details["dim"]))


class Sentences(TextShards):
    """The tf-idf shards of a manifest's sentences or documents."""

    read, stage = TfidfShard, "encode-sentences"

    def sidecar(self, number: int) -> Sidecar:
        """The sidecar of shard `number`, without its texts. Raises as `open` does."""
        found = read_sidecar(self._path(number), TFIDF)
        self._check(self._path(number), found.details, number)
        return found


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
