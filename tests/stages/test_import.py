"""Tests of the stage `import-vectors`: precomputed features of images and vectors of sentences become shards of a
run.
"""

import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import build_bundle, by_hand, features_of, make_run, make_stage, open_run, retell, write_config

from pipeline.encoders.averaged import AveragedEncoder
from pipeline.encoders.networks import NetworkSpec, untrained
from pipeline.errors import InputError, UsageError
from pipeline.images.preprocess import Preprocessing
from pipeline.index.search import Searcher
from pipeline.run.reading.photos import open_photographs
from pipeline.run.reading.results import example_search
from pipeline.run.run import Run
from pipeline.storage.features import Features
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import ENCODER, TEXT_ENCODER, digest_tensors, write_parameters
from pipeline.storage.stored_index import open_index
from pipeline.storage.texts import VectorShard
from pipeline.text.tokens import TermSettings
from pipeline.text.wordvectors import WordVectors

COUNT = 24
"""Number of images in the run."""
TEXTS = 48
"""Number of sentences in the run, two per image."""
IMPORTED = {"name": "precomputed", "kind": "imported", "path": "f.npy"}


def configure(made: Path, *more: dict, **entry: str) -> None:
    """Configure the run `made` to import the features of the encoder `precomputed` from f.npy in the parent folder of
    the run.

    `entry` replaces or adds keys of the encoder, and `more` are further parts of the configuration.
    """
    write_config(made, {"data_root": str(made.parent), "encoders": [IMPORTED | entry]}, *more)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Make a run of 24 images in shards of 10, configured to import features, and return its folder."""
    configure(run := make_run(tmp_path / "run"))
    return run


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """Write features of the images, in reverse order, and return the path of the file. The features of image i are [i,
    2 i]. A text file next to it names each row by the path of its image, but in another folder.
    """
    paths = Manifest(made / "manifest").images["path"].to_pylist()
    ids = np.arange(COUNT)[::-1]
    np.save(tmp_path / "f.npy", np.stack([ids, 2 * ids], axis=1).astype(np.float32))
    (tmp_path / "f.txt").write_text("".join(f"/elsewhere/{paths[i]}\n" for i in ids))
    return tmp_path / "f.npy"


def import_features(made: Path) -> Features:
    """Import the features of the encoder `precomputed`, and return all features of the run."""
    make_stage("import_vectors", made, "features/precomputed")
    return Run(made).features


def test_every_image_has_its_row(made: Path, source: Path) -> None:
    features = import_features(made)
    for number, ids in enumerate((range(0, 10), range(10, 20), range(20, 24))):
        shard = features.open("precomputed", number)
        assert shard["image_id"].tolist() == list(ids) and shard["features"].dtype == np.float16
        assert shard["features"].tolist() == [[i, 2 * i] for i in ids]
        assert shard.details["encoder"]["name"] == "precomputed"


def test_rows_without_an_image_are_named_in_a_warning(
    made: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(source, np.concatenate([np.load(source), np.ones((5, 2), np.float32)]))
    names = source.with_suffix(".txt")
    names.write_text(names.read_text() + "".join(f"stranger-{i}.png\n" for i in range(5)))
    with caplog.at_level(logging.WARNING):
        features = import_features(made)
    assert "'stranger-2.png' and 2 more" in caplog.text
    assert features.open("precomputed", 2).rows == 4


def rename(source: Path, old: str, new: str) -> None:
    """Replace `old` by `new` in the text file next to `source`, which names the rows of `source`. The test fails if the
    file does not contain `old`.
    """
    names = source.with_suffix(".txt")
    assert old in names.read_text()
    names.write_text(names.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda source: rename(source, "dog-0.png", "dig-0.png"), r"have no row in f\.npy: dog-0\.png\."),
        (lambda source: rename(source, "cat-1.png", "dog-0.png"), r"\.npy: rows 22 and 23 have the same name"),
        (lambda source: put_nan(source, 0), r"f\.npy row 0: .*car-23\.png is not finite"),
        (lambda source: put_nan(source, 23), r"f\.npy row 23: .*dog-0\.png is not finite"),
    ],
    ids=["no row", "two vectors", "not finite in the last shard", "not finite in the first shard"],
)
def test_a_faulty_row_is_reported_with_its_image_and_no_shard_is_written(
    made: Path, source: Path, spoil, message: str
) -> None:
    spoil(source)
    with pytest.raises(InputError, match=message):
        import_features(made)
    assert not list((made / "features").rglob("*.h5"))
    with pytest.raises(UsageError, match="has no encoder strange. The known names are features/precomputed"):
        make_stage("import_vectors", made, "strange")


def put_nan(source: Path, row: int) -> None:
    """Replace the first value of the row `row` in the .npy file `source` by NaN."""
    rows = np.load(source)
    rows[row, 0] = np.nan
    np.save(source, rows)


def test_the_encoder_of_precomputed_features_is_kept_for_queries_if_it_agrees(made: Path, source: Path) -> None:
    """A SqueezeNet computed the features, which were then multiplied by 5. The stage `prepare_encoder` compares only
    the direction of vectors, so it accepts the SqueezeNet as the encoder of queries.
    """
    maker = {"name": "maker", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 64, "crop": 64}
    configure(made, {"query_encoders": [maker]}, made_by="maker")
    network = untrained(NetworkSpec("squeezenet1_1", "average", Preprocessing(64, 64, (0, 0, 0), (1, 1, 1)), False), 3)
    settings = network.settings()
    folder = made / "encoders/maker"
    write_parameters(
        folder / "model.safetensors", ENCODER, network.tensors(), settings=settings, provenance=by_hand(made)
    )
    with pytest.raises(
        InputError,
        match="f.npy has vectors of 2 .* vectors of 512 dimensions. Correct the key made_by of precomputed",
    ):
        make_stage("prepare_encoder", made, "precomputed")
    images = [picture for picture, _ in open_photographs(open_run(made), list(range(COUNT)))]
    rows = np.concatenate([5 * network.encode([picture]) for picture in images])[::-1]
    np.save(source, rows)
    make_stage("prepare_encoder", made, "precomputed")
    assert import_features(made).open("precomputed", 0).commit.inputs["encoders/precomputed/model.json"]
    assert digest_tensors(open_run(made).encoder("precomputed").tensors) == digest_tensors(network.tensors())
    np.save(source, rows[:, ::-1])
    with pytest.raises(InputError, match=r"the vector of .*\.png in f\.npy differs from .*\(their cosine is"):
        make_stage("prepare_encoder", made, "precomputed")


# --- sentences

MAKER = {"name": "maker", "kind": "averaged"}
"""The configuration of the text encoder that computed the imported vectors."""


def configure_texts(made: Path, *more: dict, **own: str) -> None:
    """Configure the run `made` to import the vectors of the text encoder `precomputed` from s.npy in the parent folder
    of the run.

    `own` replaces or adds keys of the text encoder, and `more` are further parts of the configuration.
    """
    entry = {"name": "precomputed", "kind": "imported", "path": "s.npy", **own}
    write_config(made, {"data_root": str(made.parent), "models": ["ncca"], "text_encoders": [entry]}, *more)


@pytest.fixture
def captioned(made: Path) -> Path:
    """Configure the run to import vectors of its 48 sentences, two per image, and return the folder of the run."""
    configure_texts(made)
    return made


@pytest.fixture
def texts_source(captioned: Path, tmp_path: Path) -> Path:
    """Write vectors of the sentences, in reverse order, and return the path of the file. The vector of sentence i is
    [i, 2 i].

    A text file next to it names each row by the path of the image, but in another folder, and by the number of the
    sentence in the image (`PATH#NUMBER`).
    """
    ids = np.arange(TEXTS)[::-1]
    paths = open_run(captioned).manifest.images["path"].to_pylist()
    np.save(tmp_path / "s.npy", np.stack([ids, 2 * ids], axis=1).astype(np.float32))
    (tmp_path / "s.txt").write_text("".join(f"/elsewhere/{paths[i // 2]}#{i % 2}\n" for i in ids))
    return tmp_path / "s.npy"


def import_sentences(captioned: Path) -> np.ndarray:
    """Import the vectors of the text encoder `precomputed`, and return the vectors (48, dim) of all sentences in the
    order of their ids.
    """
    make_stage("import_vectors", captioned, "text/precomputed")
    run = open_run(captioned)
    shards = [VectorShard(run.layout.sentences("precomputed").shard(number)) for number in range(run.manifest.n_shards)]
    assert np.concatenate([one.sentence_id for one in shards]).tolist() == list(range(TEXTS))
    return np.concatenate([one.matrix for one in shards])


def test_rows_are_matched_by_image_and_number(captioned: Path, texts_source: Path) -> None:
    assert import_sentences(captioned).tolist() == [[i, 2 * i] for i in range(TEXTS)]


def test_without_names_rows_are_in_the_order_of_the_manifest(captioned: Path, texts_source: Path) -> None:
    texts_source.with_suffix(".txt").unlink()
    assert import_sentences(captioned).tolist() == [[i, 2 * i] for i in range(TEXTS)][::-1]
    np.save(texts_source, np.load(texts_source)[1:])
    with pytest.raises(InputError, match="s.npy has 47 rows, but the run has 48 "):
        make_stage("import_vectors", captioned, "text/precomputed")


@pytest.mark.parametrize("form", ["parquet", "clip-retrieval"])
def test_rows_are_matched_by_the_words_of_the_sentences(captioned: Path, tmp_path: Path, form: str) -> None:
    """Each thing is in three images, so three sentences and three rows have the text "a dog", with equal vectors. Rows
    with equal words but different vectors are refused.
    """
    texts = open_run(captioned).manifest.sentences["text"].to_pylist()
    rows = np.array([[len(text), sum(map(ord, text)) % 1000] for text in texts], np.float32)
    order = np.random.default_rng(0).permutation(TEXTS)
    words = [f" {texts[i]}\r" for i in order]
    if form == "parquet":
        table = pa.table({"image": words[::-1], "caption": words, "v": list(rows[order])})
        pq.write_table(table, tmp_path / "s.parquet")
        configure_texts(captioned, path="s.parquet")
    else:
        for name in ("precomputed/text_emb", "precomputed/metadata"):
            (tmp_path / name).mkdir(parents=True)
        np.save(tmp_path / "precomputed/text_emb/text_emb_0.npy", rows[order])
        pq.write_table(pa.table({"caption": words}), tmp_path / "precomputed/metadata/metadata_0.parquet")
        configure_texts(captioned, path="precomputed")
    assert import_sentences(captioned).tolist() == rows.tolist()
    if form == "parquet":
        table = table.set_column(2, "v", [list(rows[order] + np.arange(TEXTS)[:, None])])
        pq.write_table(table, tmp_path / "s.parquet")
        with pytest.raises(InputError, match=r"rows \d+ and \d+ have the same words but different vectors"):
            make_stage("import_vectors", captioned, "text/precomputed")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cat-1.png#1", "cut-1.png#1", r"have no row in s\.npy: cat-1\.png#1\."),
        ("cat-1.png#1", "cat-1.png#0", r"s\.npy: rows 44 and 45 both have a vector for cat-1\.png#0\. Remove one"),
        (
            "cat-1.png#1",
            "cat-1.png#2",
            r"there is no sentence /elsewhere/cat-1\.png#2, because cat-1\.png has 2 sentences",
        ),
        ("/elsewhere/cat-1.png#1\n", "", "has 48 vectors, but 47 names"),
    ],
)
def test_names_that_do_not_match_the_sentences_are_refused(
    captioned: Path, texts_source: Path, old: str, new: str, message: str
) -> None:
    rename(texts_source, old, new)
    with pytest.raises(InputError, match=message):
        make_stage("import_vectors", captioned, "text/precomputed")
    assert not list((captioned / "text").rglob("*.h5"))


def test_the_text_encoder_of_precomputed_vectors_is_kept_if_it_agrees(captioned: Path, texts_source: Path) -> None:
    configure_texts(captioned, {"query_text_encoders": [MAKER]}, made_by="maker")
    things = sorted({text.split()[1] for text in open_run(captioned).manifest.sentences["text"].to_pylist()[::2]})
    vectors = np.random.default_rng(0).standard_normal((len(things), 4)).astype(np.float32)
    words = TermSettings(False, (), 1)
    maker = AveragedEncoder(words, WordVectors(things, vectors))
    folder = open_run(captioned).layout.text_encoder("maker").path
    about = {"settings": maker.settings(), "provenance": by_hand(captioned), "details": {"name": "maker", "dim": 4}}
    write_parameters(folder / "model.safetensors", TEXT_ENCODER, maker.tensors(), **about)
    with pytest.raises(
        InputError,
        match="s.npy has vectors of 2 .* vectors of 4 dimensions. Correct the key made_by of precomputed",
    ):
        make_stage("prepare_encoder", captioned, "text/encoders/precomputed")
    rows = 5 * maker.encode(open_run(captioned).manifest.sentences["text"].to_pylist())[::-1]
    np.save(texts_source, rows)
    make_stage("prepare_encoder", captioned, "text/encoders/precomputed")
    np.testing.assert_allclose(import_sentences(captioned), rows[::-1], rtol=1e-3)
    kept = open_run(captioned).text_encoder("precomputed")
    np.testing.assert_array_equal(kept.tensors["vectors"], vectors)
    np.save(texts_source, rows[:, ::-1])
    with pytest.raises(InputError, match="the vector of a .* differs from the vector that the encoder maker computes"):
        make_stage("prepare_encoder", captioned, "text/encoders/precomputed")


def test_an_index_without_the_text_encoder_answers_only_queries_by_photo(captioned: Path) -> None:
    entry = {"name": "tfidf", "kind": "imported", "path": "s.npy"}
    write_config(captioned, {"models": ["ncca"], "text_encoders": [entry]})
    retell(captioned / "models/ncca/model.json", "details", "text_encoders", "tfidf", value={"imported": "files"})
    searcher = Searcher(bundle := open_index(build_bundle(captioned)))
    assert len(searcher.sentences(features_of("dog"), 3)) == 3
    with pytest.raises(UsageError, match="vectors of its text encoder tfidf were precomputed"):
        searcher.images("a dog", 3, match_text=False)
    *words, photograph = example_search(bundle)
    assert words == ["search", str(bundle.folder), "--image"]
    Path(photograph).unlink()
    assert example_search(bundle)[-1] != photograph
    shutil.rmtree(bundle.card.data_root)
    assert example_search(bundle) is None
