"""Moments of chunks of shards: their values, their sum, and the chunks that are recomputed."""

import shutil
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import make_run, make_stage, open_run, write_feature_shards

from pipeline.compute import mapreduce
from pipeline.models.linear.moments import Moments
from pipeline.storage import pairs
from pipeline.storage.commit import Provenance
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import PairSet
from pipeline.storage.shards import FEATURES, Shard
from pipeline.storage.texts import VectorShard
from pipeline.storage.verify import examine


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a run of five shards in three chunks. The last chunk has one shard of four images."""
    monkeypatch.setattr(mapreduce, "IMAGES_PER_CHUNK", 20)
    run = make_run(tmp_path / "run", images=44)
    accumulate(run)
    return run


def accumulate(run: Path) -> None:
    """Make random features of all images, encode all sentences, and sum the moments of the target pairs."""
    write_feature_shards(Manifest(run / "manifest"), run / "features/colour")
    make_stage("encode_sentences", run)
    make_stage("accumulate", run, "target")


def target(run: Path) -> PairSet:
    opened = open_run(run)
    texts = {"tfidf": opened.layout.sentences("tfidf")}
    return PairSet(opened.features, texts, run / "moments/target")


def read(run: Path) -> tuple[list[str], Moments]:
    """Return the names of the files of target moments from which `fit` reads the fold 0, and the sum of their
    moments."""
    readers = target(run).moments([0])
    return [reader.args[0].name for reader in readers], reduce(add, (Moments.from_arrays(one()) for one in readers))


def compute_dense(run: Path) -> dict[str, np.ndarray]:
    """Compute the moments of the training pairs from one dense row per sentence, in double precision.

    Return the arrays mean_x, mean_y, xx, xy and yy by name.
    """
    manifest = Manifest(run / "manifest")
    numbers = range(manifest.n_shards)
    x = np.concatenate([Shard(run / f"features/colour/shard-{n:05d}.h5", FEATURES)["features"] for n in numbers])
    y = np.concatenate([VectorShard(run / f"text/tfidf/shard-{n:05d}.h5").matrix.toarray() for n in numbers])
    is_train = manifest.splits[manifest.sentence_images] == "train"
    x, y = (rows[is_train].astype(float) for rows in (x[manifest.sentence_images], y))
    z = x - x.mean(axis=0)
    w = y - y.mean(axis=0)
    return {"mean_x": x.mean(axis=0), "mean_y": y.mean(axis=0), "xx": z.T @ z, "xy": z.T @ w, "yy": w.T @ w}


def modified(run: Path) -> dict[str, int]:
    """Return file name -> the time of the last change in nanoseconds, for each chunk of the target moments."""
    return {path.name: path.stat().st_mtime_ns for path in sorted((run / "moments/target").glob("chunk-*.h5"))}


def test_fit_reads_one_sum_of_all_chunks(run: Path) -> None:
    names, total = read(run)
    assert names == ["sum.h5"] and not examine(run).faults
    for path in (run / "moments/target").glob("sum.h5*"):
        path.unlink()
    names, parts = read(run)
    assert names == ["chunk-00000.h5", "chunk-00001.h5", "chunk-00002.h5"]
    assert total.n == parts.n == 2 * (Manifest(run / "manifest").splits == "train").sum()
    for name, expected in compute_dense(run).items():
        for moments in (total, parts):
            np.testing.assert_allclose(getattr(moments, name), expected, rtol=1e-5, atol=1e-4)


def test_one_chunk_needs_no_sum(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapreduce, "IMAGES_PER_CHUNK", 1 << 16)
    make_stage("accumulate", run, "target")
    names, total = read(run)
    assert names == ["chunk-00000.h5"] and list(modified(run)) == names and not examine(run).faults
    for name, expected in compute_dense(run).items():
        np.testing.assert_allclose(getattr(total, name), expected, rtol=1e-5, atol=1e-4)


def test_a_grown_collection_recomputes_only_chunks_with_new_images(run: Path, tmp_path: Path) -> None:
    before = modified(run)
    shutil.rmtree(run / "manifest")
    shutil.copytree(make_run(tmp_path / "grown", images=75) / "manifest", run / "manifest")
    accumulate(run)
    after = modified(run)
    kept = {name for name, time in before.items() if after[name] == time}
    assert kept == {"chunk-00000.h5", "chunk-00001.h5"}
    assert after.keys() - before.keys() == {"chunk-00003.h5"}
    names, total = read(run)
    assert names == ["sum.h5"]
    assert not [fault for fault in examine(run).faults if "moments" in fault.path.parts]
    for name, expected in compute_dense(run).items():
        np.testing.assert_allclose(getattr(total, name), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("former_chunk_images", "chunk_images", "images"),
    [(20, 20, 30), (30, 40, 44)],
    ids=["the collection is smaller", "chunks are longer"],
)
def test_a_last_chunk_with_fewer_shards_is_made_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former_chunk_images: int, chunk_images: int, images: int
) -> None:
    """The last chunk loses one of its two shards. The other shard is unchanged, but the stored moments have pairs of
    both."""
    monkeypatch.setattr(mapreduce, "IMAGES_PER_CHUNK", former_chunk_images)
    make_stage("accumulate", run, "target")
    shutil.rmtree(run / "manifest")
    shutil.copytree(make_run(tmp_path / "other", images=images) / "manifest", run / "manifest")
    monkeypatch.setattr(mapreduce, "IMAGES_PER_CHUNK", chunk_images)
    accumulate(run)
    _, total = read(run)
    for name, expected in compute_dense(run).items():
        np.testing.assert_allclose(getattr(total, name), expected, rtol=1e-5, atol=1e-4)


def test_an_interrupted_run_keeps_the_chunks_that_it_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run / "moments/target"
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    write = pairs.write_moments

    def interrupt(path: Path, *arguments: object, **about: object) -> None:
        if path.name == "chunk-00001.h5":
            raise RuntimeError("interrupted")
        write(path, *arguments, **about)

    with monkeypatch.context() as patch:
        patch.setattr(pairs, "write_moments", interrupt)
        with pytest.raises(RuntimeError, match="interrupted"):
            make_stage("accumulate", run, "target")
    first = modified(run)
    assert list(first) == ["chunk-00000.h5"]
    make_stage("accumulate", run, "target")
    assert modified(run)["chunk-00000.h5"] == first["chunk-00000.h5"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


def test_moments_of_an_earlier_version_are_removed(run: Path) -> None:
    """Earlier versions stored one file of moments per shard, in the folder that now has one file per chunk. The stage
    `accumulate` removes such a file."""
    folder = run / "moments/target"
    path = folder / "shard-00000.h5"
    provenance = Provenance(run, "accumulate", 6)
    sums = {0: pairs.read_moments(folder / "chunk-00000.h5", 0)}
    pairs.write_moments(path, sums, np.arange(1), np.zeros(1, np.int64), details={}, provenance=provenance)
    assert len(list(folder.glob("shard-*"))) == 2
    make_stage("accumulate", run, "target")
    assert not list(folder.glob("shard-*"))
