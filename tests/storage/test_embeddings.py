"""Embeddings of a multi-vector model are read by id."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import make_run

from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.storage.embeddings import Embeddings, write_embeddings
from pipeline.storage.manifest import Manifest

COUNT = 25


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return Manifest(make_run(tmp_path_factory.mktemp("run"), images=COUNT) / "manifest")


def synthetic_vectors(ids: np.ndarray, seed: int, wholes: bool) -> MultiVectors:
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *(1 + ids % 3)])
    whole = rng.random((len(ids), 3)).astype(np.float32) if wholes else None
    return MultiVectors(rng.random((offsets[-1], 4)).astype(np.float32), offsets, whole)


@pytest.mark.parametrize("wholes", [False, True])
def test_written_multi_vectors_are_read_by_id(manifest: Manifest, tmp_path: Path, wholes: bool) -> None:
    written = []
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = {
            "images": np.arange(rows.first_image, rows.last_image),
            "sentences": np.arange(rows.first_sentence, rows.last_sentence),
        }
        sides = {name: synthetic_vectors(own, 7 * number + len(name), wholes) for name, own in ids.items()}
        boxes = np.repeat(np.arange(len(sides["images"].vectors))[:, None], 4, axis=1)
        sides["images"] = replace(sides["images"], boxes=boxes)
        details = {"model": "row", "registered": "dvsa", "metric": "inner_product", "made_of": "m"}
        path = tmp_path / f"shard-{number:05d}.h5"
        rule = ScoreRule("words", float(wholes))
        write_embeddings(path, sides, ids, details, rule)
        written.append((ids, sides, boxes))
    fragments = Embeddings(manifest, tmp_path)
    assert fragments.multi_vector and fragments.name == "row" and fragments.rule == rule
    for name in ("images", "sentences"):
        chosen = np.array([0, 3, 11, 12, 24])
        found = fragments.read(name, chosen)
        for k, wanted in enumerate(chosen):
            ids, sides, boxes = next(each for each in written if wanted in each[0][name])
            row = int(wanted - ids[name][0])
            part = slice(found.offsets[k], found.offsets[k + 1])
            expected = slice(sides[name].offsets[row], sides[name].offsets[row + 1])
            np.testing.assert_array_equal(found.vectors[part], sides[name].vectors[expected])
            if name == "images":
                np.testing.assert_array_equal(found.boxes[part], boxes[expected])
            if wholes:
                np.testing.assert_array_equal(found.globals[k], sides[name].globals[row])
        assert (found.globals is None) != wholes and (found.boxes is None) == (name == "sentences")
        count = len(manifest.images if name == "images" else manifest.sentences)
        for absent in (count, -1, -2, -count):
            for ask in (fragments.read, fragments.outline):
                with pytest.raises(IndexError, match=f"there are {count} rows, counted from 0"):
                    ask(name, np.array([3, absent]))
    assert len(fragments.read("images", np.zeros(0, np.int64)).vectors) == 0
