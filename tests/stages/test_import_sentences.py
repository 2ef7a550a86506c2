"""import-sentences: vectors made elsewhere become the run's shards, every sentence with its own."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up import build_bundle, by_hand, features_of, make_run, make_stage, open_run, retell, write_config

from pipeline.errors import InputError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from pipeline.storage.parameters import TEXT_ENCODER, write_parameters
from pipeline.storage.texts import VectorShard
from pipeline.text.averaged import AveragedEncoder
from pipeline.text.tokens import TermSettings
from pipeline.text.wordvectors import WordVectors
from stages.closing import example_search

COUNT = 48
MAKER = {"name": "maker", "kind": "averaged"}


def configure(made: Path, *more: dict, **own: str) -> None:
    """Have the run a text encoder `theirs`, whose files lie beside its folder."""
    entry = {"name": "theirs", "kind": "imported", "imported": {"path": "s.npy", **own}}
    write_config(made, {"data_root": str(made.parent), "models": ["ncca"], "text_encoders": [entry]}, *more)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run of 24 images with two sentences each, in shards of 10 images."""
    configure(run := make_run(tmp_path / "run"))
    return run


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """Rows in reverse order: that of sentence i is [i, 2 i], named by its image's path elsewhere and its number."""
    ids, paths = np.arange(COUNT)[::-1], open_run(made).manifest.images["path"].to_pylist()
    np.save(tmp_path / "s.npy", np.stack([ids, 2 * ids], axis=1).astype(np.float32))
    (tmp_path / "s.txt").write_text("".join(f"/elsewhere/{paths[i // 2]}#{i % 2}\n" for i in ids))
    return tmp_path / "s.npy"


def imported(made: Path) -> np.ndarray:
    """(48, dim) the vectors of all sentences."""
    make_stage("import_sentences", made, "theirs")
    run = open_run(made)
    shards = [VectorShard(run.layout.sentences("theirs").shard(number)) for number in range(run.manifest.n_shards)]
    assert np.concatenate([one.sentence_id for one in shards]).tolist() == list(range(COUNT))
    return np.concatenate([one.matrix for one in shards])


def rename(source: Path, old: str, new: str) -> None:
    names = source.with_suffix(".txt")
    assert old in names.read_text()
    names.write_text(names.read_text().replace(old, new))


def test_by_image_and_number(made: Path, source: Path) -> None:
    assert imported(made).tolist() == [[i, 2 * i] for i in range(COUNT)]


def test_without_names_rows_are_in_the_order_of_the_manifest(made: Path, source: Path) -> None:
    source.with_suffix(".txt").unlink()
    assert imported(made).tolist() == [[i, 2 * i] for i in range(COUNT)][::-1]
    np.save(source, np.load(source)[1:])
    with pytest.raises(InputError, match="s.npy has 47 rows and the run 48 "):
        make_stage("import_sentences", made, "theirs")


@pytest.mark.parametrize("form", ["parquet", "clip-retrieval"])
def test_by_the_sentences_words(made: Path, tmp_path: Path, form: str) -> None:
    """Every thing is in three images, so that "a dog" is three sentences, and three rows."""
    texts = open_run(made).manifest.sentences["text"].to_pylist()
    rows = np.array([[len(text), sum(map(ord, text)) % 1000] for text in texts], np.float32)
    order = np.random.default_rng(0).permutation(COUNT)
    words = [f" {texts[i]}\r" for i in order]
    if form == "parquet":
        table = pa.table({"image": words[::-1], "caption": words, "v": list(rows[order])})
        pq.write_table(table, tmp_path / "s.parquet")
        configure(made, path="s.parquet")
    else:
        for name in ("theirs/text_emb", "theirs/metadata"):
            (tmp_path / name).mkdir(parents=True)
        np.save(tmp_path / "theirs/text_emb/text_emb_0.npy", rows[order])
        pq.write_table(pa.table({"caption": words}), tmp_path / "theirs/metadata/metadata_0.parquet")
        configure(made, path="theirs")
    assert imported(made).tolist() == rows.tolist()
    if form == "parquet":
        table = table.set_column(2, "v", [list(rows[order] + np.arange(COUNT)[:, None])])
        pq.write_table(table, tmp_path / "s.parquet")
        with pytest.raises(InputError, match=r"rows \d+ and \d+ have the same words and different vectors"):
            make_stage("import_sentences", made, "theirs")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cat-1.png#1", "cut-1.png#1", r"have no row in s\.npy: cat-1\.png#1;"),
        ("cat-1.png#1", "cat-1.png#0", r"s\.npy: rows 44 and 45 are both of cat-1\.png#0; remove one of them"),
        ("cat-1.png#1", "cat-1.png#2", r"there is no sentence /elsewhere/cat-1\.png#2: .* cat-1\.png has 2, counted"),
        ("/elsewhere/cat-1.png#1\n", "", "has 48 rows and 47 names"),
    ],
)
def test_names_that_do_not_fit_are_refused(made: Path, source: Path, old: str, new: str, message: str) -> None:
    rename(source, old, new)
    with pytest.raises(InputError, match=message):
        make_stage("import_sentences", made, "theirs")
    assert not list((made / "text").rglob("*.h5"))


def test_the_encoder_that_made_them_is_kept_for_queries_if_it_makes_the_same(made: Path, source: Path) -> None:
    configure(made, {"query_text_encoders": [MAKER]}, made_by="maker")
    things = sorted({text.split()[1] for text in open_run(made).manifest.sentences["text"].to_pylist()[::2]})
    vectors = np.random.default_rng(0).standard_normal((len(things), 4)).astype(np.float32)
    words = TermSettings(False, (), 1)
    maker = AveragedEncoder(words, WordVectors(things, vectors))
    folder = open_run(made).layout.text_encoder("maker").path
    about = {"settings": maker.settings(), "provenance": by_hand(made), "details": {"name": "maker", "dim": 4}}
    write_parameters(folder / "model.safetensors", TEXT_ENCODER, maker.tensors(), **about)
    with pytest.raises(InputError, match="s.npy has 2 dimensions, the encoder maker 4; correct made_by of theirs"):
        make_stage("prepare_text_encoder", made, "theirs")
    rows = 5 * maker.encode(open_run(made).manifest.sentences["text"].to_pylist())[::-1]
    np.save(source, rows)
    make_stage("prepare_text_encoder", made, "theirs")
    np.testing.assert_allclose(imported(made), rows[::-1], rtol=1e-3)
    kept = open_run(made).text_encoder("theirs")
    np.testing.assert_array_equal(kept.tensors["vectors"], vectors)
    np.save(source, rows[:, ::-1])
    with pytest.raises(InputError, match="other features of a .* than the encoder maker makes"):
        make_stage("prepare_text_encoder", made, "theirs")


def test_an_index_without_their_encoder_answers_photographs_alone(made: Path) -> None:
    entry = {"name": "tfidf", "kind": "imported", "imported": {"path": "s.npy"}}
    write_config(made, {"models": ["ncca"], "text_encoders": [entry]})
    retell(made / "models/ncca/model.json", "details", "text_encoders", "tfidf", value={"imported": "files"})
    searcher = Searcher(bundle := Bundle(build_bundle(made)))
    assert len(searcher.sentences(features_of("dog"), 3)) == 3
    with pytest.raises(UsageError, match="has no text encoder tfidf, whose vectors were imported, so it cannot"):
        searcher.images("a dog", 3)
    *words, photograph = example_search(bundle)
    assert words == ["search", "--index", str(bundle.folder), "--image"]
    Path(photograph).unlink()
    assert example_search(bundle)[-1] != photograph
    shutil.rmtree(bundle.card["data_root"])
    assert example_search(bundle) is None
