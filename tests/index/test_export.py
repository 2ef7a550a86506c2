"""Exported indexes give the same results in the programs for which they are exported."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from synthetic_run import build_bundle, features_of, run_command

from pipeline.errors import UsageError
from pipeline.index.codes import build_codes
from pipeline.index.search import Searcher
from pipeline.models.linear.corrected import HubnessCorrection
from pipeline.models.linear.hubness import Bank, Term
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index


@pytest.fixture
def bundle(run: Path) -> Path:
    return run / "bundle"


def make(bundle: Path, kind: str, output: Path) -> Path:
    run_command("export", bundle, "--to", kind, "--output", output)
    card = json.loads((output / "export.json").read_text())
    assert (card["model"], card["kind"], card["counts"]) == ("ncca", kind, {"images": 24, "sentences": 48})
    return output


@pytest.fixture
def query(bundle: Path) -> np.ndarray:
    return Searcher(open_index(bundle)).embed_image(features_of("dog"))[0]


@pytest.fixture
def right(bundle: Path) -> list[str]:
    """Return the paths of the three images of the index that are nearest to the fixture `query`, the best first."""
    return [hit.row["path"] for hit in Searcher(open_index(bundle)).similar(features_of("dog"), 3)]


def test_exported_numpy_arrays_and_json_lines_give_the_same_results(
    run: Path, bundle: Path, query: np.ndarray, right: list[str], tmp_path: Path
) -> None:
    folder = make(bundle, "npy", tmp_path / "out")
    stored = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    for modality, count in (("images", 24), ("sentences", 48)):
        np.testing.assert_array_equal(np.load(folder / f"{modality}.npy"), stored.read(modality, np.arange(count)))
    rows = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
    assert [rows[at]["path"] for at in np.argsort(-(np.load(folder / "images.npy") @ query))[:3]] == right


def test_an_exported_folder_is_a_collection_with_its_captions(run: Path, bundle: Path, tmp_path: Path) -> None:
    folder = make(bundle, "npy", tmp_path / "out")
    seen = json.loads(run_command("init", folder, "--json", "-o", tmp_path / "new.yaml"))
    assert seen["counts"] == {"images": 24, "sentences": 48} and not seen["rejects"]
    images = Manifest(run / "manifest").images["path"].to_pylist()
    assert (folder / "images.txt").read_text().splitlines() == images
    first = json.loads((folder / "sentences.jsonl").read_text().splitlines()[0])
    line = f"{images[first['image_id']]}\t{first['text']}"
    assert (folder / "sentences.txt").read_text().splitlines()[0] == line
    run_command("suggest", folder / "images.npy", "--count", 10, "-o", tmp_path / "lists")
    assert {line.split("\t")[0] for line in (tmp_path / "lists/captions.tsv").read_text().splitlines()} <= {*images}


def test_more_dimensions_than_the_vectors_have_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dims is 1000, but the vectors have 8 dimensions"):
        run_command("export", bundle, "--to", "faiss", "--dims", "1000", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def draw_vectors(count: int, metric: str, width: int = 40) -> np.ndarray:
    """Return `count` random vectors (count, width) float32 whose variance decreases from column to column. They have
    unit length if `metric` is inner_product. Equal arguments give equal vectors."""
    vectors = np.random.default_rng(count).standard_normal((count, width)) * 0.9 ** np.arange(width)
    if metric == "inner_product":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize(("code", "size"), [("int8", 24), ("pq64", 64), ("pq32", 32), ("pq16", 16)])
def test_codes_find_the_nearest_vectors_of_an_exact_search(code: str, size: int, metric: str) -> None:
    vectors = draw_vectors(2000, metric)
    queries = vectors[:200] + 0.05 * np.random.default_rng(0).standard_normal((200, 40)).astype(np.float32)
    index = build_codes(vectors, metric, code, dims=24)
    assert (index.sa_code_size(), index.ntotal, index.d) == (size, 2000, 40)
    exact = np.argmin(((queries[:, None] - vectors) ** 2).sum(axis=2), axis=1)
    if metric == "inner_product":
        exact = np.argmax(queries @ vectors.T, axis=1)
    found = index.search(queries, 10)[1]
    assert (found == exact[:, None]).any(axis=1).mean() > 0.97
    assert (
        faiss.serialize_index(index).tobytes()
        == faiss.serialize_index(build_codes(vectors, metric, code, 24)).tobytes()
    )


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize("code", ["int8", "pq64", "pq32", "pq16"])
@pytest.mark.parametrize(("count", "width"), [(0, 40), (1, 40), (2, 3), (5, 40)])
def test_codes_of_few_vectors_find_each_vector(code: str, metric: str, count: int, width: int) -> None:
    vectors = draw_vectors(count, metric, width)
    index = build_codes(vectors, metric, code)
    assert index.ntotal == count
    if count:
        assert index.search(vectors, 1)[1].ravel().tolist() == list(range(count))


def draw_corrected_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `count` pairs of unit vectors of an image and a sentence, many of them near a common direction, and return
    both sides with the four columns that a hubness correction adds."""
    generator = np.random.default_rng(1)
    images = generator.standard_normal((count, 60)) * 0.95 ** np.arange(60)
    images[:, 0] += 3 * generator.random(count)
    sentences = images + 1.5 * generator.standard_normal((count, 60)) * 0.95 ** np.arange(60)
    images, sentences = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, sentences))
    terms = [Term(0.75, "nearest", 20)]
    correction = HubnessCorrection(Bank(images, sentences), {"images": terms, "sentences": terms})
    return tuple(
        correction.extend(side, items).astype(np.float32)
        for side, items in (("images", images), ("sentences", sentences))
    )


@pytest.mark.parametrize("side", ["images", "sentences"])
@pytest.mark.parametrize(
    ("code", "dims", "size", "least"),
    [("int8", None, 62, 9.7), ("int8", 40, 40, 9), ("pq64", 64, 64, 9), ("pq32", 64, 32, 8.5), ("pq16", 64, 16, 7)],
)
def test_codes_of_a_corrected_model_keep_the_corrections(
    code: str, dims: int | None, size: int, least: float, side: str
) -> None:
    images, sentences = draw_corrected_pairs(2000)
    vectors, queries = (images, sentences[:200]) if side == "images" else (sentences, images[:200])
    index = build_codes(vectors, "inner_product", code, dims, corrected=True)
    assert (index.sa_code_size(), index.ntotal, index.d) == (size, 2000, 64)
    for column in (60, 62) if side == "images" else (61, 63):
        only = np.zeros((1, 64), np.float32)
        only[0, column] = 1  # The score of this query with a vector is the vector's value in this column.
        found, rows = index.search(only, 2000)
        assert np.abs(found[0] - vectors[rows[0], column]).mean() < 0.02 * vectors[:, column].std()
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = index.search(queries, 10)[1]
    common = [len(np.intersect1d(*pair)) for pair in zip(found, exact, strict=True)]
    assert np.mean(common) > least


@pytest.mark.parametrize("code", ["int8", "pq64", "pq32", "pq16"])
@pytest.mark.parametrize(("count", "dims"), [(0, None), (1, None), (5, None), (5, 1)])
def test_codes_of_few_corrected_vectors_have_their_scores(code: str, count: int, dims: int | None) -> None:
    images, sentences = (side[:count] for side in draw_corrected_pairs(100))
    index = build_codes(images, "inner_product", code, dims, corrected=True)
    assert index.ntotal == count
    if count and dims is None:
        scores, rows = index.search(sentences, count)
        difference = scores - np.take_along_axis(sentences @ images.T, rows, axis=1)
        np.testing.assert_allclose(difference, np.broadcast_to(difference[:, :1], difference.shape), atol=0.01)


@pytest.mark.parametrize("name", ["bundle", "several"])
def test_exported_faiss_index_finds_the_photos_of_a_search(
    run: Path, bundle: Path, name: str, query: np.ndarray, right: list[str], tmp_path: Path
) -> None:
    folder = bundle
    if name == "several":
        copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("bundle", "regions"))
        folder = build_bundle(copy, {"index": {"bundles": 2}}, output="several")
    run_command("export", folder, "--to", "faiss", "--type", "int8", "--dims", "8", "--output", tmp_path / "out")
    about = json.loads((tmp_path / "out/export.json").read_text())
    assert (about["kind"], about["type"], about["counts"]) == ("faiss", "int8", {"images": 24, "sentences": 48})
    index = faiss.read_index(str(tmp_path / "out/images.faiss"))
    rows = [json.loads(line) for line in (tmp_path / "out/images.jsonl").read_text().splitlines()]
    found = index.search(query[None], 3)[1][0]
    assert sorted(rows[row]["path"] for row in found) == sorted(right)
    assert faiss.read_index(str(tmp_path / "out/sentences.faiss")).ntotal == 48


BLOCKS = re.findall(r"```python\n(.+?)```", (Path(__file__).parents[2] / "docs/searching.md").read_text(), re.S)
(PROGRAM,) = [block for block in BLOCKS if "vectors/images.parquet" in block]


def test_program_of_the_documentation_reads_the_exported_parquet(bundle: Path, tmp_path: Path) -> None:
    make(bundle, "parquet", tmp_path / "vectors")
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    table = pq.read_table(tmp_path / "clip/metadata/metadata_0.parquet")
    assert table["image_path"].to_pylist()[0] == "dog-0.png"
    assert np.load(tmp_path / "clip/img_emb/img_emb_0.npy").shape == (24, 8)
