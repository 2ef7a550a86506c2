"""Shards of texts, which are captions or documents (title, tags, description).

The folder `text/<text encoder>` has their vectors, `text/tokens` the numbers of their tokens, `text/parses` their
parses (`shard-00000.conllu` and `shard-00000.brackets`), and `text/trees` the trees that are made from the parses. All
of these shards except parses have the arrays `sentence_id` (m,) and `image_id` (m,).
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from scipy import sparse

from pipeline.compute.ragged import offsets_of
from pipeline.errors import InputError
from pipeline.foreign.files import decode_text, each_line
from pipeline.storage.commit import About, Provenance, open_commit, publish
from pipeline.storage.features import to_stored
from pipeline.storage.files import read_bytes
from pipeline.storage.shards import PARSES, TOKENS, TREES, VECTORS, Shard, shard_path, write_shard

KINDS = ("dependency", "phrase")
FIELDS = ("parents", "words", "labels", "offsets")
"""Names of the packed arrays of trees (see pipeline.text.trees.Trees)."""
Matrix = np.ndarray | sparse.csr_array


# --- writing


def write_vectors(
    path: Path,
    vectors: Matrix,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    provenance: Provenance | None = None,
    encoder: str,
    storage: str = "float32",
    documents: str | None = None,
    imported: Mapping[str, str] | None = None,
) -> None:
    """Write the vectors (m, d) of the text encoder `encoder` as one shard with its commit record.

    `sentence_id` (m,) and `image_id` (m,) are the ids of the texts and of their images. If the vectors are of
    documents, `documents` is the name of their entry in the section `documents` of the configuration. `imported` are
    the fingerprints of the files of precomputed vectors by name, or None for vectors of an encoder that the run has
    applied. Vectors without `provenance` do not belong to a run. Dense vectors are stored as the dtype `storage`.
    Raises InputError if a dense vector is not finite, or is too large or too small for this dtype, and IntegrityError
    if a sparse vector is not finite.
    """
    shape = vectors.shape
    assert shape is not None
    if isinstance(vectors, sparse.csr_array):
        arrays = {"data": vectors.data, "indices": vectors.indices, "indptr": vectors.indptr.astype(np.int64)}
    else:
        names = [f"sentence {number}" for number in sentence_id.tolist()]
        arrays = {"vectors": to_stored(vectors, storage, names, storage_key(encoder))}
    about = {"name": encoder, "imported": imported} if imported else {"name": encoder}
    details = {"dim": shape[1], "encoder": about, **({"documents": documents} if documents else {})}
    write_sentences(path, VECTORS, arrays, sentence_id, image_id, provenance=provenance, details=details)


def storage_key(encoder: str) -> str:
    """Return how messages name the configuration key for the dtype of a text encoder's dense vectors."""
    return f"`storage` of the text encoder {encoder}"


def write_parses(path: Path, conllu: str, brackets: str, rows: int, **about: Unpack[About]) -> None:
    """Write the parses of a shard with their commit record.

    The dependency trees `conllu`, in the CoNLL-U format, are written to `path`, and the phrase trees `brackets` to a
    file next to it. `rows` is the number of texts, and `about` has the provenance and the details.
    """
    beside = {path.with_suffix(".brackets").name: brackets.encode()}
    publish(path, conllu.encode(), kind=PARSES, rows=rows, beside=beside, **about)


def write_sentences(
    path: Path,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    **about: Unpack[About],
) -> None:
    """Write `arrays` of m texts as one shard, together with the ids (m,) of the texts and of their images.

    A shard of the kind TOKENS has the arrays `ids` and `offsets`: the tokens of text i are
    `ids[offsets[i]:offsets[i + 1]]`. A shard of the kind TREES has the FIELDS for each of KINDS, with names such as
    `phrase_parents`. `about` may have the provenance, the details, and the batch that publishes the shard.
    """
    arrays = {**arrays, "sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, kind, arrays, rows=len(sentence_id), **about)


# --- reading a shard


class VectorShard(Shard):
    """A shard of text vectors. `matrix` (m, d) is a csr_array, or a memory map of dense vectors in the stored dtype."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VECTORS)
        self.sentence_id = self["sentence_id"]
        self.image_id = self["image_id"]
        if "vectors" in self:
            self.matrix: Matrix = self["vectors"]
        else:
            shape = (self.rows, self.details["dim"])
            self.matrix = sparse.csr_array((self["data"], self["indices"], self["indptr"]), shape=shape)


class ParseShard:
    """The parses of the texts of the shard `number` in a folder.

    `conllu` and `brackets` are the lines of its two files, at `path` and `brackets_path`. `rows` is the number of
    texts, and `details` are the details of the commit record. Raises IntegrityError if a file is missing or was
    changed.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.path = shard_path(folder, number).with_suffix(".conllu")
        self.brackets_path = self.path.with_suffix(".brackets")
        commit = open_commit(self.path, PARSES)
        self.conllu = read_bytes(self.path).decode().split("\n")
        self.brackets = read_bytes(self.brackets_path).decode().split("\n")
        self.rows = commit.rows
        self.details = commit.details


# --- reading all shards of a manifest


Texts = Mapping[str, Any]
"""The shards of text vectors by text encoder. The values are of the class Shards of pipeline.run.layout."""


def open_texts(texts: Texts, number: int) -> dict[str, VectorShard]:
    """Open the shard `number` of each text encoder, and return encoder -> shard. Raises IntegrityError if a shard is
    missing or damaged."""
    return {name: VectorShard(shards.shard(number)) for name, shards in texts.items()}


def read_tokens(folder: Path, numbers: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Read the tokens of the m captions in the shards `numbers`, at least one: `ids` (total,) and `offsets` (m + 1,).

    The tokens of caption i are `ids[offsets[i]:offsets[i + 1]]`.
    """
    shards = [Shard(shard_path(folder, number), TOKENS) for number in numbers]
    lengths = np.concatenate([np.diff(shard["offsets"]) for shard in shards])
    return np.concatenate([shard["ids"] for shard in shards]), offsets_of(lengths)


def read_packed_trees(folder: Path, kind: str, numbers: Iterable[int]) -> dict[str, np.ndarray]:
    """Read the trees of the captions in the shards `numbers`, at least one. `kind` is one of KINDS, such as "phrase".

    Returns the packed arrays of pipeline.text.trees.Trees by name.
    """
    shards = [Shard(shard_path(folder, number), TREES) for number in numbers]
    trees = {name: np.concatenate([shard[f"{kind}_{name}"] for shard in shards]) for name in FIELDS}
    lengths = np.concatenate([np.diff(shard[f"{kind}_offsets"]) for shard in shards])
    return {**trees, "offsets": offsets_of(lengths)}


def stack_rows(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the rows of `parts`, at least one, which are either all dense or all sparse."""
    if len(parts) == 1:
        return parts[0]
    dense = [part for part in parts if isinstance(part, np.ndarray)]
    return np.concatenate(dense) if dense else sparse.csr_array(sparse.vstack(parts, format="csr"))


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file of the user, without their line endings. A file whose name ends in .gz is
    decompressed.

    CR, LF or CRLF ends a line. The file may be UTF-8, or UTF-16 with a byte order mark. Raises InputError if the file
    cannot be read or decoded, or has a line that is too long.
    """
    try:
        with io.BufferedReader(gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb") as stream:
            for number, line in enumerate(each_line(stream, path), start=1):
                yield decode_text(line, path, number)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"jointspace cannot read {path} ({reason}). Correct the name of the file in the configuration."
        ) from error
