"""Sentences of which a text encoder knows no word are counted from the shards to the model."""

from pathlib import Path

import pytest
from made_up import retell
from made_up_training import add_moments, fit, make_trainable
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json, read_sidecar
from pipeline.storage.shards import VECTORS
from pipeline.storage.text_shards import VectorShard, write_vectors

GRID = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}


def test_sentences_without_a_known_word_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_trainable(tmp_path)
    add_moments(run, {"fit": GRID})
    path = run / "text/tfidf/shard-00001.h5"
    shard, sidecar = VectorShard(path), read_sidecar(path, VECTORS)
    matrix = shard.matrix.toarray()
    assert sidecar.details["empty"] == 0
    matrix[[2, 5]] = 0
    for vectors in (sparse.csr_array(matrix), matrix):
        about = {"fingerprint": sidecar.fingerprint, "inputs": sidecar.details["inputs"], "encoder": "tfidf"}
        write_vectors(path, vectors, shard.sentence_id, shard.image_id, **about)
        assert read_sidecar(path, VECTORS).details["empty"] == 2
    fit(run, "ncca")
    log = read_json(run / "models/ncca/model.json")["details"]["training_log"]
    assert log["empty_sentences"] == {"tfidf": 2} and "2 of " in caplog.text
    retell(path.with_suffix(".h5.json"), "details", "empty", value=None)
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5"):
        fit(run, "ncca", "--again")
