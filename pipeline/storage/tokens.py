"""Token shards `text/tokens/shard-00000.h5`: the words of every sentence as numbers over `text/tokens.json`."""

from pathlib import Path

import numpy as np

from pipeline.storage.gather import TextShards
from pipeline.storage.shards import Shard, write_shard

TOKENS = "tokens"


def write_tokens(
    path: Path,
    ids: np.ndarray,
    offsets: np.ndarray,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    inputs: dict[str, str],
) -> None:
    """Publish m sentences: the words of sentence i are ids[offsets[i] : offsets[i + 1]]; ids of it and its image."""
    arrays = {"ids": ids, "offsets": offsets, "sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, TOKENS, arrays, rows=len(sentence_id), fingerprint=fingerprint, details={"inputs": inputs})


class TokenShard(Shard):
    """`ids` (total,), `offsets` (m + 1,), `sentence_id` (m,), `image_id` (m,), and the `vocabulary`'s fingerprint."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TOKENS)
        self.ids = self["ids"]
        self.offsets = self["offsets"]
        self.sentence_id = self["sentence_id"]
        self.image_id = self["image_id"]
        self.vocabulary: str = self.details["inputs"]["vocabulary"]


class TokenShards(TextShards):
    """The token shards of a manifest."""

    read, stage = TokenShard, "encode-tokens"
