"""Indices in pieces: the answers of one index, made by parts, searched where they lie."""

import hashlib
import json
import re
from pathlib import Path

import faiss
import numpy as np
import pytest
from made_up import build_bundle, make_run, write_config
from test_build import clustered, nearest, overlap

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index import filtering, mapped
from pipeline.index.candidates import build, candidate_factories, lists_of, train_factory
from pipeline.index.filtering import search_among
from pipeline.index.format import METRICS, from_bytes, to_bytes
from pipeline.index.pieces import assemble, fill_piece, piece_rows, shrink_piece
from pipeline.index.search import Searcher
from pipeline.index.tuning import stages_of
from pipeline.index.vectors import ArrayVectors
from pipeline.serve.gallery import ServedGallery
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundle_folders import piece_file
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.reading import map_hashed
from pipeline.storage.revision import open_parts

CUTS = (0, 1700, 1701, 4500, 6000)
SENTENCES = ["a dog", "the big cat number 9", "a horse"]


def in_pieces(vectors: np.ndarray, factory: str, metric: str) -> tuple[memoryview, list[memoryview], dict]:
    """A trained index, its pieces, and their card."""
    data = to_bytes(train_factory(factory, ArrayVectors(vectors), metric))
    parts = [vectors[first:last] for first, last in zip(CUTS, CUTS[1:], strict=False)]
    pieces = [fill_piece(data, [part[:500], part[500:]], first) for first, part in zip(CUTS, parts, strict=False)]
    card = {"count": len(vectors), "dim": vectors.shape[1], "metric": metric}
    return data, pieces, {**card, "pieces": [{"rows": len(part), "count": len(part)} for part in parts]}


def put_together(data: memoryview, pieces: list[memoryview], card: dict) -> faiss.Index:
    return assemble(from_bytes(data, "it", {**card, "count": 0}), pieces, card, "it")


@pytest.mark.parametrize(
    "factory", ["IVF50,Flat", "IVF50,SQ8", "IVF50,PQ4x8", "PCA8,IVF50_HNSW16,PQ4x8", "IVF50,RaBitQ4"]
)
@pytest.mark.parametrize("metric", METRICS)
def test_the_answers_are_those_of_one_index_of_the_same_codes(factory: str, metric: str) -> None:
    vectors, queries = clustered(6000, 16)
    data, pieces, card = in_pieces(vectors, factory, metric)
    index = put_together(data, pieces, card)
    whole = from_bytes(data, "it", {**card, "count": 0})
    whole.add(vectors)
    for nprobe in (1, 7, 50):
        for one in (index, whole):
            stages_of(one).inverted.nprobe = nprobe
        found, expected = index.search(queries, 10), whole.search(queries, 10)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
        # Blocks of other sizes are rounded otherwise: a vector on the border of two lists may be in the other one.
        assert (found[1] == expected[1]).mean() >= 0.995


@pytest.mark.parametrize("metric", METRICS)
def test_all_lists_of_whole_vectors_are_exact(metric: str) -> None:
    vectors, queries = clustered(6000, 16)
    index = put_together(*in_pieces(vectors, "IVF50,Flat", metric))
    stages_of(index).inverted.nprobe = 50
    assert overlap(index.search(queries, 10)[1], nearest(vectors, queries, metric)) >= 0.999


def test_the_centroids_are_in_no_piece() -> None:
    vectors, _ = clustered(6000, 16)
    data, pieces, _ = in_pieces(vectors, "IVF1000,SQ8", "inner_product")
    assert len(data) > 1000 * 16 * 4
    for piece, count in zip(pieces, np.diff(CUTS), strict=True):
        assert len(piece) < count * (16 + 8) + 1000 * 8 + 4096


def test_what_is_taken_out_of_a_piece_is_never_found() -> None:
    vectors, _ = clustered(6000, 16)
    data, pieces, card = in_pieces(vectors, "IVF50,SQ8", "inner_product")
    gone = np.array([1701, 1800, 4499])
    pieces[2] = shrink_piece(pieces[2], gone)
    card |= {"count": 5997, "pieces": [*card["pieces"][:2], {"rows": 2799, "count": 2796}, card["pieces"][3]]}
    index = put_together(data, pieces, card)
    stages_of(index).inverted.nprobe = 50
    found = index.search(vectors[[*gone, 1802]], 5997)[1]
    assert not np.isin(found, gone).any() and (found[3] >= 0).sum() == 5997
    assert found[3, 0] == 1802


def mapped_bytes(folder: Path) -> int:
    """Of the pages of the files in `folder` that are in this process's memory."""
    found, own = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            own = f"{folder}/" in line
        elif own and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are mapped")
@pytest.mark.parametrize("factory", ["IVF50,Flat", "PCA8,IVF50_HNSW16,PQ4x8"])
@pytest.mark.parametrize("most", [1, 40_000, 1 << 30])
def test_what_a_search_has_mapped_is_given_back(
    factory: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "MOST", most)
    vectors, queries = clustered(6000, 16)
    data, pieces, card = in_pieces(vectors, factory, "inner_product")
    for number, piece in enumerate(pieces):
        (tmp_path / f"{number}").write_bytes(piece)
    opened = [map_hashed(tmp_path / f"{number}") for number in range(len(pieces))]
    assert [digest for _, digest in opened] == [hashlib.sha256(piece).hexdigest() for piece in pieces]
    assert mapped_bytes(tmp_path) == 0
    index = put_together(data, [file for file, _ in opened], card)
    stages_of(index).inverted.nprobe = 7
    expected = index.search(queries, 10)
    assert mapped_bytes(tmp_path) > 100_000
    scores, rows = mapped.search_index(index, queries, 10)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-5)
    left = mapped_bytes(tmp_path)
    assert left == 0 if most == 1 else left > 100_000 if most == 1 << 30 else left < most + 50 * 4096 * len(pieces)
    allowed = np.arange(6000) < 3000
    monkeypatch.setattr(filtering, "FEW", 100)
    found = search_among(index, queries, 10, allowed).rows
    monkeypatch.setattr(mapped, "MOST", 1 << 30)
    np.testing.assert_array_equal(found, search_among(index, queries, 10, allowed).rows)
    assert (found[:, 0] >= 0).all() and (found < 3000).all()


def test_pieces_of_others_are_refused() -> None:
    vectors, _ = clustered(6000, 16)
    data, pieces, card = in_pieces(vectors, "IVF50,SQ8", "inner_product")
    _, others, _ = in_pieces(vectors, "IVF40,SQ8", "inner_product")
    _, codes, _ = in_pieces(vectors, "IVF50,Flat", "inner_product")
    for wrong in (
        [*pieces[:3], others[3]], [*pieces[:3], codes[3]], [*pieces[:3], pieces[1]], pieces[:3],
        [*pieces[:3], memoryview(bytes(pieces[3])[:-900])], [*pieces[:3], memoryview(b"not an index")],
    ):  # fmt: skip
        with pytest.raises(IntegrityError, match="piece"):
            put_together(data, wrong, card)
    with pytest.raises(IntegrityError, match="has 6000 vectors in its pieces"):
        put_together(data, pieces, {**card, "count": 5999})


def test_a_piece_fits_a_worker() -> None:
    trained = faiss.index_factory(96, "IVF50,SQ8")
    assert piece_rows(trained, 4_000_000, 1 << 40) == 4_000_000
    assert 3 * piece_rows(trained, 4_000_000, 1 << 20) * (96 + 8) <= 1 << 20


def test_large_collections_try_what_others_choose() -> None:
    for count, lists in ((100_000_000, 131072), (1_000_000_000, 131072), (1_000_000_000, 262144)):
        factories = sum(candidate_factories(count, 96), [])
        assert f"OPQ24_96,IVF{lists}_HNSW32,PQ24x8" in factories
        assert all("HNSW" in factory for factory in factories if lists_of(factory) >= 65536)
    assert not any("_HNSW" in factory for factory in sum(candidate_factories(1_000_000, 96), []))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", images=80)


def built(run: Path, output: str, **index: object) -> Path:
    asked = {"exact_limit": 10, "candidates": ["IVF3,SQ8"], "sample": 1000, "recall_floor": 0.5, **index}
    write_config(run, {"index": asked})
    return build_bundle(run, output=output)


def hits(searcher: Searcher, where: str | None = None) -> list[list[tuple]]:
    """All answers to some sentences; equal scores by their image."""
    found = [searcher.images(sentence, 80, where) for sentence in SENTENCES]
    return [sorted((round(-hit.score, 4), hit.row["image_id"], hit.row["path"]) for hit in one) for one in found]


def test_a_bundle_in_pieces_answers_as_one_that_is_whole(run: Path) -> None:
    whole, pieces = Bundle(built(run, "whole")), Bundle(built(run, "pieces", piece=33))
    pieces.check()
    assert [one["rows"] for one in pieces.card["images"]["pieces"]] == [33, 33, 14]
    assert {file.name for file in pieces.folder.glob("images*")} >= {
        "images.faiss", *(f"images-0000{number}.{kind}" for number in range(3) for kind in ("faiss", "parquet"))
    }  # fmt: skip
    assert not (pieces.folder / "images.parquet").exists() and not (run / "pieces/ncca").exists()
    names = ["images.faiss", *map("images-{:05d}.faiss".format, range(3))]
    sizes = sum((pieces.folder / name).stat().st_size for name in names)
    assert pieces.card["images"]["bytes"] == sizes
    for modality in ("images", "sentences"):
        assert pieces.table(modality).equals(whole.table(modality))
        nprobe = [stages_of(Searcher(one).gallery(modality).index).inverted.nprobe for one in (pieces, whole)]
        assert nprobe == [one.card[modality]["nprobe"] for one in (pieces, whole)]
    one, other = Searcher(whole), Searcher(pieces)
    for searcher in (one, other):
        searcher.open()
        stages_of(searcher.gallery("images").index).inverted.nprobe = 3
    assert other._tables == {} and hits(other) == hits(one)
    condition = "split = 'test' or image_id < 9"
    assert hits(other, condition) == hits(one, condition) != hits(one)
    assert [hit.row for hit in other.batch(SENTENCES, 3)[1]] == [hit.row for hit in other.images(SENTENCES[1], 3)]


def test_few_vectors_are_not_in_pieces(run: Path) -> None:
    bundle = Bundle(built(run, "few", piece=1000))
    assert "pieces" not in bundle.card["images"] and (bundle.folder / "images.parquet").exists()


def test_an_index_that_has_no_lists_cannot_be_in_pieces(run: Path) -> None:
    with pytest.raises(UsageError, match="HNSW8 has no inverted lists"):
        built(run, "none", piece=33, candidates=["HNSW8"])


def test_a_damaged_piece_is_refused(run: Path) -> None:
    folder = built(run, "damaged", piece=33)
    for name in ("images-00001.faiss", "images-00002.parquet"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=name):
            Searcher(Bundle(folder)).images("dog", 80)
        (folder / name).write_bytes(data)
    card = json.loads((folder / "card.json").read_text())
    assert card["images"]["pieces"][2]["rows"] == 14


def test_a_killed_job_makes_only_what_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stages.pieces as pieces

    made, fill = [], pieces.fill_piece

    def count(trained: bytes, blocks: object, first: int) -> memoryview:
        made.append(first)
        if len(made) == 3:
            raise KeyboardInterrupt
        return fill(trained, blocks, first)

    monkeypatch.setattr(pieces, "fill_piece", count)
    with pytest.raises(KeyboardInterrupt):
        built(run, "killed", piece=33)
    assert made == [0, 33, 66]
    again = built(run, "killed", piece=33)
    assert made[3] == 66 and made.count(0) == 2  # images, and later sentences
    monkeypatch.undo()
    whole = built(run, "at-once", piece=33)
    names = [file.name for file in whole.glob("*-0*")]
    assert len(names) > 6 and all((again / name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_an_index_is_trained_as_when_it_is_whole() -> None:
    vectors, queries = clustered(6000, 16)
    data, pieces, card = in_pieces(vectors, "IVF50,SQ8", "inner_product")
    index, whole = put_together(data, pieces, card), build("IVF50,SQ8", ArrayVectors(vectors), "inner_product").index
    for one in (index, whole):
        stages_of(one).inverted.nprobe = 5
    assert (index.search(queries, 10)[1] == whole.search(queries, 10)[1]).mean() >= 0.99


def test_workers_make_the_same_pieces(run: Path) -> None:
    distributed = pytest.importorskip("distributed")
    here = built(run, "here", piece=33)
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        index = {"exact_limit": 10, "candidates": ["IVF3,SQ8"], "sample": 1000, "recall_floor": 0.5, "piece": 33}
        write_config(run, {"index": index, "scheduler": address})
        there = build_bundle(run, output="there")
    names = [file.name for file in here.glob("*-0*")]
    assert len(names) > 6 and all((here / name).read_bytes() == (there / name).read_bytes() for name in names)


def test_a_bundle_in_pieces_is_served_by_row(run: Path) -> None:
    bundle = Bundle(built(run, "served", piece=33))
    searcher = Searcher(bundle)
    gallery = ServedGallery(searcher, dict, lambda row: row["path"].encode(), lambda data: None, 64)
    assert searcher._tables == {} and (gallery.count("images"), gallery.count("sentences")) == (80, 160)
    texts = bundle.table("sentences")["text"].to_pylist()
    assert len(gallery.examples) == 3 and set(gallery.examples) <= set(texts)
    assert gallery.columns["split"] == "text"
    assert gallery.images("a dog", 3) == searcher.images("a dog", 3)
    for image_id, told in (
        (70, "no longer the photograph"),
        (80, "there is no image 80"),
        (-1, "there is no image -1"),
    ):
        with pytest.raises(InputError, match=told):
            gallery.thumbnail(image_id)
    assert searcher._tables == {}


def test_an_index_in_pieces_is_evaluated(run: Path) -> None:
    bundle = Bundle(built(run, "evaluated", piece=33))
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    _, parts = open_parts(bundle.folder, embeddings)
    assert [(part.modality, len(part.alive), part.card["count"]) for part in parts] == [
        ("images", 80, 80), ("sentences", 160, 160)
    ]  # fmt: skip


def test_a_bundle_with_fewer_pieces_leaves_none_of_its_predecessor(tmp_path: Path) -> None:
    for count, kept in ((3, "faiss"), (2, "faiss"), (0, "lists")):
        writer = BundleWriter(tmp_path)
        for name in (f"images.{kept}", *(piece_file("images", number, ".parquet") for number in range(count))):
            writer.add(name, b"bytes")
        writer.commit({})
        (tmp_path / "images-of-mine.parquet").write_bytes(b"a person's")
        expected = {"card.json", "images-of-mine.parquet", f"images.{kept}"}
        expected |= {f"images-{number:05d}.parquet" for number in range(count)}
        assert {path.name for path in tmp_path.iterdir()} == expected
