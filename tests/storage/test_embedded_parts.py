"""Parts of a model's embeddings: their vectors are those of the shards, whichever splits they are of."""

from pathlib import Path

import numpy as np
import pytest
from made_up import make_run

from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_ids
from pipeline.storage.shards import EMBEDDINGS, Shard, shard_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """47 images in shards of ten, every third of which is of the split test."""
    return make_run(tmp_path_factory.mktemp("run"), images=47)


@pytest.mark.parametrize("splits", [["train"], ["train", "test"], ["dev"]])
@pytest.mark.parametrize("modality", ["images", "sentences"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_their_vectors_are_those_of_the_shards(run: Path, splits: list[str], modality: str, rows: int) -> None:
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    every = np.concatenate([Shard(shard_path(embeddings.folder, n), EMBEDDINGS)[modality] for n in range(5)])
    of_test = np.arange(47) % 3 == 2
    wanted = np.flatnonzero(np.where(of_test, "test" in splits, "train" in splits))
    if modality == "sentences":  # two an image
        wanted = np.stack([2 * wanted, 2 * wanted + 1], axis=1).ravel()

    ids = split_ids(embeddings.manifest, splits)[modality]
    parts = embeddings.parts_of(modality, ids, rows)
    assert ids[:].tolist() == wanted.tolist() and [part.first for part in parts] == [*range(0, len(wanted), rows)]
    for own in (parts, embeddings.parts_of(modality, wanted, rows)):
        for part in own:
            expected = every[wanted[part.first : part.first + rows]]
            np.testing.assert_array_equal(np.concatenate(list(part.blocks())), expected)
            chosen = np.arange(0, part.count, 3)
            np.testing.assert_array_equal(part.take(chosen), expected[chosen])
            assert part.count == len(expected)
