"""Tests of precomputed vectors without photos: from files to an index that is searched, with `run` and with Python."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from synthetic_run import make_stage, run_command

import jointspace
from pipeline.collections.formats import FORMATS
from pipeline.collections.records import ColumnsRecord, Options, Reject
from pipeline.errors import InputError, UsageError
from pipeline.storage.manifest import Manifest

ROOT = Path(__file__).parents[1]
PAIRS = 120
DIM = 24
GRID = {"dimensions": [6], "image_ridge": [0.01], "text_ridge": [0.01], "eigenvalue_power": [1]}


@pytest.fixture(scope="module")
def planted() -> SimpleNamespace:
    """Make synthetic pairs: `images` (120, 24) and `texts` (120, 24), in which image i and text i share six hidden
    values.

    `names` are the names of the images: web addresses and absolute paths in turn. `paths` are the paths that a manifest
    has for these names, and `words` are the captions.
    """
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(PAIRS, 6))
    images, texts = (shared @ rng.normal(size=(6, DIM)) + 0.1 * rng.normal(size=(PAIRS, DIM)) for _ in range(2))
    names = [f"{'https://a.org/' if row % 2 else '/elsewhere/'}{row:03d}.jpg" for row in range(PAIRS)]
    words = [f"text #{row}" for row in range(PAIRS)]
    paths = [name.removeprefix("/") for name in names]
    return SimpleNamespace(images=images.astype("f4"), texts=texts.astype("f4"), names=names, paths=paths, words=words)


def write_npy(folder: Path, planted: SimpleNamespace, texts: list[str] | None = None) -> None:
    folder.mkdir()
    np.save(folder / "images.npy", planted.images)
    np.save(folder / "texts.npy", planted.texts)
    (folder / "images.txt").write_text("\n".join(planted.names))
    if texts is not None:
        (folder / "texts.npy.txt").write_text("\n".join(texts))


def write_words(folder: Path, planted: SimpleNamespace) -> None:
    write_npy(folder, planted, planted.words)


def write_image_names(folder: Path, planted: SimpleNamespace) -> None:
    """Write .npy files in which the texts are in another order than the images. The name of each text is the name of
    its image without the ending, and a number.
    """
    order = np.random.default_rng(1).permutation(PAIRS)
    shuffled = SimpleNamespace(**{**vars(planted), "texts": planted.texts[order]})
    write_npy(folder, shuffled, [f"{planted.names[row].removesuffix('.jpg')}#0" for row in order])


def write_clip_retrieval(folder: Path, planted: SimpleNamespace) -> None:
    """Write the output of clip-retrieval in two parts. Every image has two rows with the same vectors, but with
    different captions.
    """
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    rows = np.repeat(np.arange(PAIRS), 2)
    words = [f"{planted.words[row]} again" if number % 2 else planted.words[row] for number, row in enumerate(rows)]
    table = pa.table({"image_path": [planted.names[row] for row in rows], "caption": words, "price": rows})
    for part, half in enumerate((slice(0, PAIRS), slice(PAIRS, None))):
        np.save(folder / f"img_emb/img_emb_{part}.npy", planted.images[rows[half]])
        np.save(folder / f"text_emb/text_emb_{part}.npy", planted.texts[rows[half]])
        pq.write_table(table[half], folder / f"metadata/metadata_{part}.parquet")


def write_parquet(folder: Path, planted: SimpleNamespace) -> None:
    """Write the vectors of images and texts as columns of one table, in two Parquet files as on the Hugging Face
    hub.
    """
    (folder / "data").mkdir(parents=True)
    for part, half in enumerate((slice(0, 50), slice(50, PAIRS))):
        columns = {"url": planted.names, "caption": planted.words, "price": list(range(PAIRS))}
        vectors = {"image_embedding": planted.images, "text_embedding": planted.texts}
        table = {name: values[half] for name, values in columns.items()}
        table |= {name: rows[half].tolist() for name, rows in vectors.items()}
        pq.write_table(pa.table(table), folder / f"data/train-{part}.parquet")


def begin(folder: Path, data: Path) -> Path:
    """Make the folder of a run, with the configuration that `init` writes for the vectors in `data`, but with one
    choice of parameters. Return the folder.
    """
    run_command("init", data, "--output", folder / "found.yaml")
    values = yaml.safe_load((folder / "found.yaml").read_text())
    assert values["models"] == ["zero-shot", "ncca"]
    run = folder / "results/found"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({**values, "fit": GRID, "evaluate": {"bootstrap": 5}}))
    return run


def make_bundle(run: Path) -> jointspace.Index:
    for stage, *names in (
        ("ingest",),
        ("import_vectors", "features/images"),
        ("import_vectors", "text/texts"),
        ("accumulate", "target"),
        ("fit", "ncca"),
        ("embed", "ncca"),
        ("build_index", "ncca"),
    ):
        make_stage(stage, run, *names)
    return jointspace.load(run / "index/ncca")


@pytest.mark.parametrize("write", [write_words, write_npy, write_image_names, write_clip_retrieval, write_parquet])
def test_a_folder_of_vectors_becomes_an_index(planted: SimpleNamespace, tmp_path: Path, write) -> None:
    write(tmp_path / "data", planted)
    run = begin(tmp_path, tmp_path / "data")
    index = make_bundle(run)
    assert Manifest(run / "manifest").images["path"].to_pylist() == planted.paths
    for row in range(0, PAIRS, 7):
        (hit,) = index.search(text_vector=planted.texts[row], k=1)
        assert hit.row["path"] == planted.paths[row]
    sentences = index.stored.table("sentences")
    owned = list(zip(sentences["image_id"].to_pylist(), sentences["text"].to_pylist(), strict=True))
    if write in (write_clip_retrieval, write_parquet):
        assert [hit.row["price"] for hit in index.search(text_vector=planted.texts[0], where="price = 4")] == [4]
    if write is write_clip_retrieval:
        assert owned[6:8] == [(3, "text #3"), (3, "text #3 again")] and len(owned) == 2 * PAIRS
    else:
        names = planted.words if write in (write_words, write_parquet) else [f"{name}#0" for name in planted.names]
        assert owned == [
            (row, name.replace(".jpg", "") if write is write_image_names else name) for row, name in enumerate(names)
        ]


@pytest.mark.parametrize("form", ["file", "name", "npy"])
def test_a_table_of_texts_names_its_captions_and_images(planted: SimpleNamespace, tmp_path: Path, form: str) -> None:
    """Each image has two captions, in another order than the images. The captions and their images are columns of a
    Parquet table (`form` is the name of the column with the images) or lines of a text file.
    """
    data = tmp_path / "data"
    rows = np.random.default_rng(2).permutation(np.repeat(np.arange(PAIRS), 2))
    words = [f"caption {number} of {planted.words[row]}" for number, row in enumerate(rows)]
    owners = [planted.names[row] + f"#{number}" * (form == "name") for number, row in enumerate(rows)]
    write_npy(data, planted)
    np.save(data / "texts.npy", planted.texts[rows])
    if form == "npy":
        (data / "texts.npy.txt").write_text(
            "".join(f"{owner}\t{text}\n" for owner, text in zip(owners, words, strict=True))
        )
    else:
        (data / "texts.npy").unlink()
        table = {form: owners, "caption": words, "vector": planted.texts[rows].tolist()}
        pq.write_table(pa.table(table), data / "texts.parquet")
    run = begin(tmp_path, data)
    make_stage("ingest", run)
    make_stage("import_vectors", run, "features/images")
    make_stage("import_vectors", run, "text/texts")
    sentences = Manifest(run / "manifest").sentences.to_pylist()
    assert sorted((one["image_id"], one["text"]) for one in sentences) == sorted(zip(rows, words, strict=True))


def test_an_error_names_the_column_that_was_read_as_names(planted: SimpleNamespace, tmp_path: Path) -> None:
    write_npy(tmp_path / "data", planted)
    (tmp_path / "data/texts.npy").unlink()
    table = {"text": ["a dog"] * 3, "vector": planted.texts[:3].tolist()}
    pq.write_table(pa.table(table), tmp_path / "data/texts.parquet")
    options = Options({"images": "images.npy", "texts": "texts.parquet"}, {}, "x")
    reasons = [one.reason for one in FORMATS["vectors"](tmp_path / "data", options) if isinstance(one, Reject)]
    assert len(reasons) == 3 and all("'a dog' in the column text" in reason for reason in reasons)


def test_texts_are_not_paired_by_row_where_most_name_their_image(planted: SimpleNamespace, tmp_path: Path) -> None:
    words = [f"{name}#0" for name in planted.names[::-1]]
    write_npy(tmp_path / "data", planted, [*words[:-1], "its own words"])
    options = Options({"images": "images.npy", "texts": "texts.npy"}, {}, "x")
    *records, last = FORMATS["vectors"](tmp_path / "data", options)
    assert [one.key for one in records[PAIRS:]] == planted.paths[:0:-1]
    assert isinstance(last, Reject) and "such as a.jpg#0" in last.reason


def test_a_tab_in_some_captions_names_no_image(planted: SimpleNamespace, tmp_path: Path) -> None:
    words = ["a tab\tin it", *planted.words[1:]]
    write_npy(tmp_path / "data", planted, words)
    options = Options({"images": "images.npy", "texts": "texts.npy"}, {}, "x")
    records = list(FORMATS["vectors"](tmp_path / "data", options))
    assert [(one.key, one.text) for one in records[PAIRS:]] == list(zip(planted.paths, words, strict=True))


def test_a_value_that_equals_the_name_of_its_row_is_kept(tmp_path: Path) -> None:
    table = {"id": [3, 4, 5], "price": [3, 9, 5], "image_embedding": np.eye(3).tolist()}
    pq.write_table(pa.table(table), tmp_path / "images.parquet")
    records = FORMATS["vectors"](tmp_path, Options({"images": "images.parquet"}, {}, "x"))
    assert [one.values for one in records if isinstance(one, ColumnsRecord)] == [{"price": n} for n in (3, 9, 5)]


def test_faults_of_vectors_are_named(planted: SimpleNamespace, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_npy(data, planted, planted.words)
    np.save(data / "images.npy", np.where(np.arange(PAIRS)[:, None] == 5, np.nan, planted.images))
    np.save(data / "texts.npy", np.where(np.arange(PAIRS)[:, None] == 7, np.inf, planted.texts))
    run = begin(tmp_path, data)
    make_stage("ingest", run)
    rejects = [json.loads(line) for line in (run / "manifest/rejects.jsonl").read_text().splitlines()]
    reasons = {(reject["what"], reject["row"]): reject["reason"] for reject in rejects}
    assert all("not finite" in reasons[place] for place in (("images", None), ("sentences", 8)))
    assert len(Manifest(run / "manifest").images) == PAIRS - 1
    make_stage("import_vectors", run, "text/texts")
    assert len(Manifest(run / "manifest").sentences) == PAIRS - 2
    (data / "images.txt").unlink()
    with pytest.raises(InputError, match=r"images\.txt"):
        run_command("init", data, "--output", tmp_path / "other.yaml")
    np.save(data / "more-images.npy", planted.images)
    with pytest.raises(UsageError, match=r"images\.npy, more-images\.npy"):
        run_command("init", data, "--output", tmp_path / "other.yaml")


@pytest.mark.parametrize("normalise", [("l2",), ("sqrt", "l2")])
def test_a_fitted_joint_space_is_an_index(
    planted: SimpleNamespace, tmp_path: Path, normalise: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    held = slice(PAIRS - 20, PAIRS)
    space = jointspace.fit(planted.images[: held.start], planted.texts[: held.start], normalise=normalise, **GRID)
    assert space.held_out["zero_shot"]["sentence_to_image"]["recall@10"] <= 100
    rows = np.repeat(np.arange(PAIRS), 2)
    names = [planted.names[row] for row in rows]
    folder = Path("results/holiday/index/ncca")
    names = [Path(name) if name.startswith("/") else name for name in names]
    index = space.index(folder, planted.images[rows], planted.texts[rows], names=names)
    found = [index.search(text_vector=vector, k=1)[0].row["path"] for vector in planted.texts[held]]
    assert found == planted.paths[held]
    assert index.card["images"]["count"] == PAIRS and index.card["sentences"]["count"] == 2 * PAIRS
    images = index.embed(image_vectors=planted.images)
    texts = index.embed(text_vectors=planted.texts)
    np.testing.assert_array_equal(images, space.embed_images(planted.images))
    np.testing.assert_array_equal(texts, space.embed_texts(planted.texts))
    alone = space.index(tmp_path / "alone", planted.images, names=pa.chunked_array([list(map(str, range(PAIRS)))]))
    assert alone.search(text_vector=planted.texts[3], k=1)[0].row["path"] == "3" and "sentences" not in alone.card
    (tmp_path / "pairs.csv").write_text("file,caption\n000.jpg,text\n")
    for options in ((), ("--ask",)):
        with pytest.raises(UsageError, match="cannot be searched with text, because the vectors of its text encoder"):
            run_command("calibrate", folder, tmp_path / "pairs.csv", *options)
    for wrong in ({}, {"image_vectors": planted.images, "text_vectors": planted.texts}):
        with pytest.raises(UsageError):
            index.embed(**wrong)
    with pytest.raises(InputError, match="23"):
        index.embed(text_vectors=planted.texts[:, :23])
    with pytest.raises(UsageError, match="overwrite"):
        space.index(folder, planted.images)
    for names in (["a"], ["a"] * PAIRS, [""] * PAIRS, range(PAIRS), ["\udcff", *planted.names[1:]]):
        with pytest.raises((InputError, UsageError), match="names"):
            space.index(folder, planted.images, names=names, overwrite=True)
    for texts in ("a" * PAIRS, 3):
        with pytest.raises(UsageError, match="^texts has the type"):
            space.index(tmp_path / "other", planted.images, planted.texts, texts=texts)
    with pytest.raises(UsageError, match="texts describe text_vectors"):
        space.index(tmp_path / "other", planted.images, texts=planted.words)
    with pytest.raises(InputError, match="There are no vectors of image"):
        space.index(tmp_path / "other", planted.images[:0])
